"""Which spec a release follows, and what is refused before any file is loaded."""

import os
from pathlib import Path
from typing import Any, cast

import pytest

from shiplift.runtime.admission import logged_files
from shiplift.runtime.admission.logged_files import LoggedFiles, datasets_of, logged_file, resolve_spec, still_logged
from shiplift.runtime.admission.policy import check_site, check_size
from shiplift.runtime.base.errors import NotAdmitted, PolicyRefused, SpecInvalid
from shiplift.runtime.records.base import identity
from shiplift.runtime.records.limits import Limits
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Cluster, Machine, SitePolicy
from shiplift.runtime.spec.document import ReleaseSpec, parse
from shiplift.runtime.spec.serving_settings import Metrics, RateLimiter, Serving
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.registry.client import Registry
from tests.unit.examples import admitted, site


class Run:
    """A run's artifacts, by path."""

    def __init__(self, **texts: str) -> None:
        self.texts = {name.replace("__", "/").replace("_dot_", "."): text for name, text in texts.items()}

    def download_run_file(self, run_id: str, path: str, to: Path) -> Path | None:
        if path not in self.texts:
            return None
        (to / Path(path).name).write_text(self.texts[path])
        return to / Path(path).name


def resolved(tmp_path: Path, spec: str = "", **texts: str) -> ReleaseSpec:
    (tmp_path / "model").mkdir(exist_ok=True)
    registry = cast("Registry", Run(**texts))
    return resolve_spec(
        Request(model="digits", version=1, spec=spec), registry, "run", tmp_path / "model", tmp_path / "to"
    )


def log(tmp_path: Path, path: str, text: str) -> None:
    (tmp_path / "model" / path).parent.mkdir(parents=True)
    (tmp_path / "model" / path).write_text(text)


def test_without_any_spec_the_defaults_hold(tmp_path: Path) -> None:
    assert resolved(tmp_path) == ReleaseSpec()


def test_a_spec_logged_with_the_run_is_followed(tmp_path: Path) -> None:
    assert resolved(tmp_path, shiplift__shiplift_dot_yaml="slo: {p99_ms: 5}").slo.p99_ms == 5


@pytest.mark.parametrize("path", ["shiplift/shiplift.yaml", "extra_files/shiplift.yaml"])
def test_a_spec_logged_with_the_model_wins_over_the_run_s(tmp_path: Path, path: str) -> None:
    log(tmp_path, path, "slo: {p99_ms: 7}")
    assert resolved(tmp_path, shiplift__shiplift_dot_yaml="slo: {p99_ms: 5}").slo.p99_ms == 7


def test_a_spec_given_by_hand_wins_over_all(tmp_path: Path) -> None:
    log(tmp_path, "shiplift/shiplift.yaml", "slo: {p99_ms: 7}")
    assert resolved(tmp_path, "slo: {p99_ms: 9}", shiplift__shiplift_dot_yaml="slo: {p99_ms: 5}").slo.p99_ms == 9


def test_a_wrong_spec_is_refused_wherever_it_came_from(tmp_path: Path) -> None:
    for given_ in ({"spec": "slo: 5"}, {"shiplift__shiplift_dot_yaml": "slo: 5"}):
        with pytest.raises(SpecInvalid, match="slo"):
            resolved(tmp_path, **given_)


def test_another_model_s_spec_is_refused(tmp_path: Path) -> None:
    assert resolved(tmp_path, "model: digits").model == "digits"
    with pytest.raises(SpecInvalid, match="the spec is for model 'fraud', not 'digits'"):
        resolved(tmp_path, "model: fraud")


def test_a_spec_that_is_no_text_is_refused_and_no_crash(tmp_path: Path) -> None:
    log(tmp_path, "shiplift/shiplift.yaml", "")
    (tmp_path / "model" / "shiplift" / "shiplift.yaml").write_bytes(b"slo: \xff\xfe")
    with pytest.raises(SpecInvalid):
        resolved(tmp_path)


@pytest.mark.parametrize("path", ["validation.npz", "shiplift/validation.npz"])
def test_data_beside_the_model_are_found_before_the_run_is_asked(tmp_path: Path, path: str) -> None:
    log(tmp_path, path, "beside")
    registry: Any = Run(**{path: "in the run"})
    file = logged_file(registry, "run", path, tmp_path / "model", tmp_path / "to")
    assert file is not None
    assert file.read_text() == "beside"


@pytest.mark.parametrize(
    ("since", "holds"),
    [
        ({}, True),
        ({"elsewhere.txt": "new"}, True),
        ({"shiplift/shiplift.yaml": "slo: {p99_ms: 6}"}, False),
        ({"shiplift/validation.npz": "data that were missing"}, False),
        ({"shiplift/requests.npz": None}, False),
    ],
)
def test_admission_holds_while_the_run_has_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, since: dict[str, str | None], holds: bool
) -> None:
    run = Run()
    run.texts = {"shiplift/shiplift.yaml": "slo: {p99_ms: 5}", "shiplift/requests.npz": "requests"}
    noted = LoggedFiles(cast("Registry", run))
    (tmp_path / "logged").mkdir()
    for path in ("shiplift/shiplift.yaml", "shiplift/validation.npz", "shiplift/requests.npz"):
        noted.download_run_file("run", path, tmp_path / "logged")
    known = admitted().model_copy(update={"logged": noted.found})
    run.texts = {path: text for path, text in (run.texts | since).items() if text is not None}
    monkeypatch.setattr(logged_files, "version_files", lambda uri: run)
    assert still_logged(known, site(tmp_path), Request(model="digits", version=1)) is holds


def test_a_wrong_logged_spec_names_the_command_that_releases_with_another(tmp_path: Path) -> None:
    with pytest.raises(SpecInvalid, match=r"`shiplift rerun digits/1 --spec shiplift\.yaml`"):
        resolved(tmp_path, shiplift__shiplift_dot_yaml="slo: {p98_ms: 5}")


OWN = "admission: {python: sandbox}\ndata: {metric: {python: score.py}}"


def test_an_author_s_metric_is_stored_as_it_was_logged(tmp_path: Path) -> None:
    log(tmp_path, "shiplift/score.py", "def score(labels, predictions): return 1")
    registry: Any = Run()
    store = ArtifactStore(site(tmp_path).artifacts_uri)
    datasets = datasets_of(registry, "run", parse(OWN), tmp_path / "model", store)
    assert datasets.metric is not None
    assert store.read(datasets.metric) == b"def score(labels, predictions): return 1"
    assert datasets_of(registry, "run", parse(""), tmp_path / "model", store).metric is None


def test_an_author_s_metric_that_is_missing_too_large_or_no_file_is_refused(tmp_path: Path) -> None:
    registry: Any = Run()
    store = ArtifactStore(site(tmp_path).artifacts_uri)
    with pytest.raises(SpecInvalid, match=r"data\.metric names shiplift/score\.py, which was not logged"):
        datasets_of(registry, "run", parse(OWN), tmp_path / "model", store)
    log(tmp_path, "shiplift/score.py", "x" * ((1 << 20) + 1))
    with pytest.raises(SpecInvalid, match=r"score\.py has 1048577 bytes, the limit is 1048576"):
        datasets_of(registry, "run", parse(OWN), tmp_path / "model", store)


def test_files_over_the_limit_are_refused_with_both_sizes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * (3 << 20))
    check_size(tmp_path, 3)
    with pytest.raises(NotAdmitted, match="have 3 MiB, the limit is 2 MiB"):
        check_size(tmp_path, 2)


def test_on_a_cluster_a_rate_limited_model_gets_servers_that_limit(tmp_path: Path) -> None:
    cluster = Cluster(namespace="shiplift", serving_namespace="models", server_image="example.org/server:1")
    check_site(site(tmp_path, place=cluster), ReleaseSpec(serving=Serving(rate_limiter=RateLimiter())))


def test_a_rate_limiter_needs_a_production_that_has_one(tmp_path: Path) -> None:
    limited = ReleaseSpec(serving=Serving(rate_limiter=RateLimiter()))
    check_site(site(tmp_path), ReleaseSpec())
    check_site(site(tmp_path, place=Machine(http="", grpc="", metrics="", rate_limiter=True)), limited)
    with pytest.raises(NotAdmitted, match="production runs without") as error:
        check_site(site(tmp_path), limited)
    assert "--rate-limiter" in error.value.do


@pytest.mark.timeout(100)
def test_metrics_of_one_model_need_a_server_of_its_own(tmp_path: Path) -> None:
    measured = ReleaseSpec(serving=Serving(metrics=Metrics(interval_ms=500)))
    cluster = Cluster(namespace="shiplift", serving_namespace="shiplift-serving", server_image="image")
    check_site(site(tmp_path, place=cluster), measured)
    with pytest.raises(NotAdmitted, match="here one server serves all models") as refused:
        check_site(site(tmp_path), measured)
    assert "--metrics-interval-ms" in refused.value.do


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("admission: {pickle: sandbox}", r"admission.pickle is 'sandbox', `policy.pickle` allows refuse"),
        ("admission: {python: sandbox}", r"admission.python is 'sandbox', `policy.python` allows refuse"),
        (
            "admission: {max_size_mb: 50000}",
            r"admission.max_size_mb is 50000, the limit is 100 \(`policy.max_size_mb`\)",
        ),
        ("export: {memory_mb: 8192}", "export.memory_mb is 8192, the limit is 4096"),
        ("export: {timeout_s: 601}", "export.timeout_s is 601, the limit is 600"),
        ("data: {min_samples: 1000001}", "data.min_samples is 1e"),
        ("data: {calibration_samples: 1000001}", "data.calibration_samples is 1e"),
        (
            "serving: {limits: {memory_mb: 2049}}",
            r"limits.memory_mb is 2049, the limit is 2048 \(`policy.served.memory_mb`\)",
        ),
        ("serving: {limits: {cpu_s: 2.5}}", "limits.cpu_s is 2.5, the limit is 2"),
        ("targets: [{name: a}, {name: b}, {name: c}]", "the number of targets is 3, the limit is 2"),
    ],
)
def test_a_spec_beyond_the_site_s_policy_is_refused_with_its_limit(tmp_path: Path, spec: str, message: str) -> None:
    policy = SitePolicy(
        pickle=("refuse",),
        python=("refuse",),
        max_size_mb=100,
        memory_mb=4096,
        timeout_s=600,
        samples=1_000_000,
        targets=2,
        served=Limits(memory_mb=2048, cpu_s=2),
    )
    small = "admission: {max_size_mb: 100}\n"
    own = spec if spec.startswith("admission") else small + spec
    own = own.replace("{pickle: sandbox}", "{pickle: sandbox, max_size_mb: 100}")
    with pytest.raises(PolicyRefused, match=message) as error:
        check_site(site(tmp_path, policy=policy), parse(own))
    assert "ask the owner of this site" in error.value.do
    assert error.value.exit_code == 52
    check_site(site(tmp_path, policy=policy), parse(small))


def test_a_fifo_or_a_link_in_a_model_s_folder_is_refused_at_once(tmp_path: Path) -> None:
    for name, what in (("pipe", "FIFO"), ("link", "symbolic link")):
        folder = tmp_path / name
        folder.mkdir()
        if name == "pipe":
            os.mkfifo(folder / name)
        else:
            (folder / name).symlink_to("/etc/passwd")
        with pytest.raises(NotAdmitted, match=f"{name} is a {what}"):
            check_size(folder, 1)


def test_a_stricter_policy_is_another_cache_key(tmp_path: Path) -> None:
    assert identity(site(tmp_path)) != identity(site(tmp_path, policy=SitePolicy(pickle=("refuse",))))
