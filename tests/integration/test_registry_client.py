"""What a release reads and writes in a real MLflow, whether its server keeps the artifacts or clients reach them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from shiplift.pipelines.release import RELEASE
from shiplift.runtime.base.errors import NotAdmitted, NotFound, PromotionConflict, RegistryDenied
from shiplift.runtime.records.figure import Figure
from shiplift.runtime.records.release import Ending
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import Outcome, Verdict
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.terms import CHAMPION, FOLDER
from shiplift.steps.conclude import conclude
from tests.integration.conftest import Lab
from tests.integration.mlflow_server import running
from tests.unit.examples import check, site


@pytest.fixture(scope="module", params=["proxied", pytest.param("direct", marks=pytest.mark.slow)])
def uri(request: pytest.FixtureRequest, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The stack's server, which keeps the artifacts, or one whose clients reach them."""
    if request.param == "proxied":
        with lab.unannounced():
            yield lab.running.registry_uri
        return
    folder, before = tmp_path_factory.mktemp("direct"), (mlflow.get_tracking_uri(), mlflow.get_registry_uri())
    with running(folder, "--no-serve-artifacts", artifacts="--default-artifact-root") as server:
        mlflow.set_tracking_uri(server.address)
        mlflow.set_registry_uri(server.address)
        try:
            yield server.address
        finally:
            mlflow.set_tracking_uri(before[0])
            mlflow.set_registry_uri(before[1])


@pytest.fixture
def registry(uri: str) -> Registry:
    return Registry(uri)


@pytest.fixture(scope="module")
def logged(uri: str) -> Any:
    """A model with a file of its run, registered as `digits` version 1."""
    x, y = np.eye(4, dtype=np.float32), np.arange(4)
    with mlflow.start_run():
        mlflow.log_text("größe: 1\n", f"{FOLDER}/a folder/shiplift.yaml")
        info = mlflow.sklearn.log_model(
            LogisticRegression().fit(x, y),
            name="m",
            input_example=x,
            registered_model_name="digits",
            pip_requirements=[],  # MLflow would load the model in another process to find them
        )
    assert uri
    return info


def test_a_version_s_files_are_those_that_mlflow_downloads(registry: Registry, logged: Any, tmp_path: Path) -> None:
    info = registry.version("digits", 1)
    assert (info.name, info.version, info.run_id) == ("digits", 1, logged.run_id)
    folder = registry.download_model(info, tmp_path / "ours", limit_mb=100)
    theirs = Path(mlflow.artifacts.download_artifacts("models:/digits/1", dst_path=str(tmp_path / "theirs")))
    ours = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    kept = {path.relative_to(theirs): path.read_bytes() for path in theirs.rglob("*") if path.is_file()}
    kept.pop(Path("registered_model_meta"), None)  # MLflow's client adds it to what it downloads
    assert ours == kept
    assert len(ours) > 4


def test_files_that_are_too_large_are_not_fetched(registry: Registry, logged: Any, tmp_path: Path) -> None:
    with pytest.raises(NotAdmitted, match="this site's limit is"):
        registry.download_model(registry.version("digits", logged and 1), tmp_path / "m", limit_mb=0.0001)


def test_a_run_s_texts_are_written_and_read(registry: Registry, logged: Any, tmp_path: Path) -> None:
    assert registry.read_text(logged.run_id, f"{FOLDER}/a folder/shiplift.yaml") == "größe: 1\n"
    assert registry.read_text(logged.run_id, f"{FOLDER}/none") is None
    assert registry.read_text("0" * 32, "x") is None
    for text in ("first", "größer"):
        registry.write_text(logged.run_id, f"{FOLDER}/our 100 %.json", text)
        assert registry.read_text(logged.run_id, f"{FOLDER}/our 100 %.json") == text
    assert registry.download_run_file("", "x", tmp_path) is None


def test_metrics_and_links_are_those_of_the_run(registry: Registry, logged: Any) -> None:
    registry.metrics(logged.run_id, (Figure(name="p99_ms", value=1.5), Figure(name="score", value=float("nan"))))
    metrics = mlflow.MlflowClient().get_run(logged.run_id).data.metrics
    assert metrics[f"{FOLDER}.p99_ms"] == 1.5
    assert np.isnan(metrics[f"{FOLDER}.score"])
    link = registry.link(logged.run_id, f"{FOLDER}/report.html")
    assert link.startswith(registry.uri)
    assert link.endswith(f"/runs/{logged.run_id}/artifacts/{FOLDER}/report.html")
    with pytest.raises(NotFound):
        registry.metrics("0" * 32, (Figure(name="x", value=1),))
    with pytest.raises(NotFound):
        registry.link("0" * 32, "x")


def concluded(registry: Registry, home: Path) -> None:
    """Ends a release of `digits` version 1, which was refused."""
    where = site(home, registry_uri=registry.uri, page="http://127.0.0.1:8007")
    verdict = Verdict.of((check(Outcome.FAIL, reason="slow", name="p99 of `x`"),))
    ending = Ending(release="digits-1-0123456789", started_at=1000.0, stages=(), givers=RELEASE.givers, verdict=verdict)
    conclude(where, Request(model="digits", version=1), Trigger(), ending)


def test_a_report_that_can_not_be_kept_is_said_and_the_rest_is_told(
    registry: Registry, logged: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise RegistryDenied("this account may not write", do="Use another.")

    monkeypatch.setattr(Registry, "write_text", denied)
    concluded(registry, tmp_path)
    version = mlflow.MlflowClient().get_model_version("digits", "1")
    assert logged
    assert "**Shiplift: refused**" in version.description
    assert "the report is not among the run's artifacts: `" in version.description
    assert "this account may not write" in version.tags["shiplift.reason"]
    assert version.tags["shiplift.verdict"] == "fail"


def test_an_ended_release_is_told_below_the_author_s_words_and_in_both_charts(
    registry: Registry, logged: Any, tmp_path: Path
) -> None:
    client = mlflow.MlflowClient()
    client.update_model_version("digits", "1", description="Trained *by hand*.\n")
    for _ in range(2):  # a release that is killed here runs this stage again
        concluded(registry, tmp_path)
    version = client.get_model_version("digits", "1")
    assert version.description.startswith("Trained *by hand*.\n\n\n<!-- shiplift")
    assert version.description.count("**Shiplift: refused**") == 1
    assert f"]({version.tags['shiplift.report_link']})" in version.description
    assert "(http://127.0.0.1:8007/release?model=digits&version=1)" in version.description
    key = f"{FOLDER}.p99_of__x_"
    assert [each.value for each in client.get_metric_history(logged.run_id, key)] == [10.0]
    assert {each.key: each.value for each in client.get_logged_model(logged.model_id).metrics}[key] == 10.0
    page = client.list_artifacts(logged.run_id, f"{FOLDER}/releases/digits-1-0123456789")
    assert f"{FOLDER}/releases/digits-1-0123456789/report.html" in [each.path for each in page]


def test_aliases_move_unless_somebody_else_moved_them(registry: Registry, logged: Any) -> None:
    assert registry.alias("digits", CHAMPION) == 0
    registry.move_alias("digits", CHAMPION, 1, expected=0)
    registry.move_alias("digits", CHAMPION, 1, expected=0)  # again: done already
    assert registry.alias("digits", CHAMPION) == 1
    assert registry.version("digits", 1).aliases == (CHAMPION,)
    with pytest.raises(PromotionConflict, match="names version 1, not 7"):
        registry.move_alias("digits", CHAMPION, 0, expected=7)
    registry.move_alias("digits", CHAMPION, 0)
    registry.move_alias("digits", CHAMPION, 0)
    assert (registry.alias("digits", CHAMPION), registry.alias("none", CHAMPION)) == (0, 0)
    with pytest.raises(NotFound):
        registry.move_alias("digits", CHAMPION, 9)
    assert logged


def test_a_version_without_a_run_gets_one(registry: Registry, logged: Any) -> None:
    mlflow.MlflowClient().create_registered_model("orphan")
    for version in (1, 2):
        mlflow.MlflowClient().create_model_version("orphan", source="s3://nowhere/x")
        info = registry.version("orphan", version)
        run_id = registry.run_of(info)
        assert registry.run_of(registry.version("orphan", version)) == run_id
        run = mlflow.MlflowClient().get_run(run_id)
        assert (run.info.run_name, run.info.status) == (f"orphan-{version}", "FINISHED")
    assert mlflow.get_experiment_by_name(FOLDER) is not None


def test_what_is_not_there_is_not_found(registry: Registry, logged: Any) -> None:
    with pytest.raises(NotFound, match="no version 9"):
        registry.version("digits", 9)
    with pytest.raises(NotFound, match="no version 1 of model 'none'"):
        registry.version("none", 1)
    assert [info.version for info in registry.versions("digits")] == [1]
    assert registry.versions("none") == []
    assert logged


def test_artifacts_of_the_server_need_no_import_of_mlflow(
    uri: str, logged: Any, request: pytest.FixtureRequest
) -> None:
    code = (
        "import sys; from pathlib import Path; from shiplift.runtime.store.registry.client import Registry\n"
        "registry = Registry(sys.argv[1]); registry.read_text(sys.argv[2], 'shiplift/none')\n"
        "print('mlflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, uri, logged.run_id], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == str("direct" in request.node.name)
