import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import shiplift
from shiplift.pipelines.engines import cache_key, sources
from shiplift.pipelines.engines.cache_key import code_digest, has_key, key
from shiplift.pipelines.engines.references import references
from shiplift.pipelines.graph import Stage
from shiplift.pipelines.release import RELEASE
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.verdict import Verdict
from shiplift.runtime.serving.triton import environment
from shiplift.runtime.spec.measurement import SearchSpace, Slo
from shiplift.runtime.spec.model import Quality
from tests.unit.examples import artifact, deployment, exported, site


def one(slo: Slo) -> Verdict:
    return Verdict.of(())


def two(slo: Slo) -> Verdict:
    return Verdict.of(())


def test_a_key_is_a_sha256_in_hex() -> None:
    assert re.fullmatch("[0-9a-f]{64}", key(Stage(one), {"slo": Slo()}))


def test_the_same_call_has_the_same_key() -> None:
    assert key(Stage(one), {"slo": Slo(p99_ms=5)}) == key(Stage(one), {"slo": Slo(p99_ms=5.0)})


def test_another_record_or_another_step_has_another_key() -> None:
    keys_ = {key(Stage(step), {"slo": slo}) for step in (one, two) for slo in (Slo(), Slo(p99_ms=5), Slo(failures=1))}
    assert len(keys_) == 6


def test_where_a_stage_runs_does_not_change_its_key(tmp_path: Path) -> None:
    here, there = site(tmp_path / "a"), site(tmp_path / "b")
    assert key(Stage(one), {"site": here}) == key(Stage(one), {"site": there})
    assert key(Stage(one), {"x": artifact(uri="a")}) == key(Stage(one), {"x": artifact(uri="b")})


def test_the_order_of_arguments_does_not_change_a_key() -> None:
    assert key(Stage(one), {"a": Slo(), "b": Quality()}) == key(Stage(one), {"b": Quality(), "a": Slo()})


@pytest.mark.parametrize(
    "record", [Slo(p99_ms=5), SearchSpace(time_budget_s=20), Quality(min_score=1), deployment(), exported()]
)
def test_a_record_from_the_ledger_gives_the_key_of_the_one_in_memory(record: Record) -> None:
    again = type(record).model_validate_json(record.model_dump_json())
    assert key(Stage(one), {"record": again}) == key(Stage(one), {"record": record})
    assert key(Stage(one), {"records": (again, again)}) == key(Stage(one), {"records": (record, record)})


# --- which code each key depends on ----------------------------------------------------------------------------------

# Rows: a file that is edited; a pattern stands for each file it matches. Columns: whether a stage's key then changes.
# Written by hand: a new row or cell is a decision on what a change of code costs users. A file that moves takes its row
# along.
TABLE = """
                                                   admit export quantize package tune deploy load_test gate
__init__.py                                          x     x       x        x     x     x        x      x
runtime/__init__.py                                  x     x       x        x     x     x        x      x
runtime/base/errors.py                               x     x       x        x     x     x        x      x
runtime/base/git.py                                  .     .       .        .     .     .        .      .
runtime/records/base.py                              x     x       x        x     x     x        x      x
runtime/records/measurement.py                       x     x       x        x     x     x        x      x
runtime/records/release.py                           .     .       .        .     .     .        .      .
runtime/records/failure.py                           x     x       x        x     x     .        x      .
runtime/spec/document.py                             x     x       x        x     x     .        x      .
runtime/spec/rules.py                                x     x       x        x     x     .        x      x
runtime/spec/serving.py                              x     x       x        x     x     x        x      x
runtime/store/artifacts.py                           x     x       x        x     x     x        x      .
runtime/store/mlflow_artifacts.py                    x     x       x        x     x     x        x      .
runtime/store/registry/client.py                     x     .       .        .     .     x        .      .
runtime/store/registry/lease.py                      .     .       .        .     .     .        .      .
runtime/store/registry/proxied.py                    x     .       .        .     .     x        .      .
runtime/store/ledger.py                              .     .       .        .     .     .        .      .
runtime/store/broker.py                              x     x       x        x     x     .        x      .
runtime/store/version_files.py                       x     .       .        .     .     .        .      .
runtime/store/journal.py                             .     .       .        .     x     .        .      .
runtime/host/folders.py                              x     x       x        x     x     x        x      .
runtime/host/interpreter.py                          x     x       x        x     x     x        x      .
runtime/host/outputs.py                              x     x       x        x     x     .        x      .
runtime/confinement/sandbox.py                       x     x       x        x     x     .        x      .
runtime/confinement/policy.py                        x     x       x        x     x     x        x      .
runtime/confinement/calls.py                         x     x       x        x     x     x        x      .
runtime/confinement/launch.py                        x     x       x        x     x     x        x      .
runtime/host/meter.py                                .     .       .        .     x     x        x      .
runtime/admission/scan.py                            x     x       x        x     x     .        x      .
runtime/admission/formats/pickles.py                 x     x       x        x     x     .        x      .
runtime/admission/globals.txt                        x     x       x        x     x     .        x      .
runtime/admission/operators.txt                      x     x       x        x     x     .        x      .
runtime/admission/formats/onnx_files.py              x     x       x        x     x     .        x      .
runtime/admission/formats/torchscript.py             x     x       x        x     x     .        x      .
runtime/admission/policy.py                          x     .       .        .     .     .        .      .
runtime/store/downloads.py                           x     .       .        .     .     x        .      .
runtime/host/processor.py                            x     x       x        x     x     .        x      .
runtime/admission/examples.py                        x     x       x        x     x     .        x      .
runtime/model/contracts.py                           x     x       x        x     x     .        x      .
runtime/model/graph_contract.py                      x     x       x        x     x     .        x      .
runtime/model/onnx_models.py                         x     x       x        x     x     .        x      .
runtime/model/conversion/*.py                        x     x       x        x     x     .        x      .
runtime/model/text/tasks.py                          x     x       x        x     x     .        x      .
runtime/model/text/*front*.py                        x     x       x        x     x     .        x      .
runtime/model/text/samples.py                        x     x       x        x     x     .        x      .
runtime/model/text/comparing.py                      x     x       x        x     x     x        x      .
runtime/admission/formats/huggingface_files.py       x     x       x        x     x     .        x      .
runtime/serving/packaging/text_backend.py            x     x       x        x     x     .        x      .
runtime/serving/packaging/earlier_versions.py        x     x       x        x     x     .        x      .
runtime/families/python/export.py                    x     x       x        x     x     .        x      .
runtime/families/python/answers.py                   x     x       x        x     x     .        x      .
runtime/families/pipeline/family.py                  x     x       x        x     x     .        x      .
runtime/model/python/requirements.py                 x     x       x        x     x     .        x      .
runtime/model/python/resolving.py                    x     x       x        x     x     .        x      .
runtime/model/python/environments.py                 x     x       x        x     x     x        x      .
runtime/model/python/pip.py                          x     x       x        x     x     x        x      .
runtime/model/python/bundle.py                       x     x       x        x     x     .        x      .
runtime/model/python/host.py                         x     x       x        x     x     .        x      .
runtime/model/python/worker.py                       x     x       x        x     x     .        x      .
runtime/targets/python_precision.py                  x     x       x        x     x     .        x      .
runtime/serving/packaging/python_backend.py          x     x       x        x     x     .        x      .
runtime/serving/triton/backends/python_model.py      x     x       x        x     x     .        x      .
runtime/admission/verification.py                    x     x       x        x     x     .        x      .
runtime/model/graph_digest.py                        x     x       x        x     x     .        x      .
runtime/model/golden.py                              x     x       x        x     x     .        x      .
runtime/precision/rungs.py                           x     x       x        x     x     .        x      .
runtime/precision/footprint.py                       x     x       x        x     x     .        x      .
runtime/precision/ladder.py                          x     x       x        x     x     .        x      .
runtime/precision/limits.py                          x     x       x        x     x     .        x      .
runtime/precision/selection.py                       x     x       x        x     x     .        x      .
runtime/precision/scoring/bootstrap.py               x     x       x        x     x     .        x      x
runtime/precision/scoring/estimates.py               x     x       x        x     x     .        x      x
runtime/precision/scoring/metrics.py                 x     x       x        x     x     .        x      .
runtime/precision/scoring/detection.py               x     x       x        x     x     .        x      .
runtime/precision/timing.py                          x     x       x        x     x     .        x      .
runtime/targets/precisions.py                        x     x       x        x     x     .        x      .
runtime/targets/operators.py                         x     x       x        x     x     .        x      .
runtime/targets/catalogue.py                         .     .       .        .     .     .        .      .
runtime/measure/generator.py                         x     x       x        x     x     .        x      .
runtime/measure/perf_analyzer.py                     x     x       x        x     x     .        x      .
runtime/measure/comparing.py                         .     .       .        .     .     .        x      .
runtime/search/planner.py                            .     .       .        .     x     .        .      .
runtime/search/space.py                              x     x       x        x     x     .        x      .
runtime/search/private_server.py                     .     .       .        .     x     .        .      .
runtime/search/pod_server.py                         .     .       .        .     x     .        .      .
runtime/gates/policy.py                              .     .       .        .     .     .        .      x
runtime/gates/quality.py                             x     x       x        x     x     .        x      x
runtime/gates/comparison.py                          .     .       .        .     .     .        x      x
runtime/gates/statistics.py                          .     .       .        .     .     .        x      x
runtime/gates/report.py                              .     .       .        .     .     .        .      .
runtime/serving/triton/requirements.txt              x     x       x        x     x     x        x      .
runtime/serving/triton/environment.py                x     x       x        x     x     x        x      .
runtime/serving/triton/building/*                    x     x       x        x     x     x        x      .
runtime/serving/triton/backends/common/*             x     x       x        x     x     x        x      .
runtime/serving/triton/backends/onnxruntime/*        x     x       x        x     x     x        x      .
runtime/serving/triton/backends/openvino/*           x     x       x        x     x     x        x      .
runtime/serving/triton/backends/[!gtps]*.py          x     x       x        x     x     x        x      .
runtime/serving/triton/backends/sequence_model.py    x     x       x        x     x     x        x      .
runtime/serving/triton/backends/service_model.py     .     .       .        .     .     .        .      .
runtime/serving/triton/backends/text_model.py        x     x       x        x     x     .        x      .
runtime/serving/triton/backends/generation_model.py  x     x       x        x     x     .        x      .
runtime/serving/triton/backends/pipelines/*.py       x     x       x        x     x     .        x      .
runtime/serving/bundles/[!d]*.py                     x     x       x        x     x     .        x      .
runtime/serving/bundles/decoders.py                  .     .       .        .     .     .        .      .
runtime/composition/incumbents.py                    x     x       x        x     x     .        x      .
runtime/composition/[!di]*.py                        x     x       x        x     x     .        x      .
runtime/composition/drawing.py                       .     .       .        .     .     .        .      .
runtime/composition/inference.py                     x     x       x        x     x     .        x      .
runtime/store/pipelines.py                           x     x       x        x     x     .        x      .
runtime/planning/*.py                                .     .       .        .     .     .        .      .
runtime/spec/pipeline.py                             x     x       x        x     x     .        x      .
runtime/serving/triton/config.py                     x     x       x        x     x     x        x      .
runtime/serving/triton/server.py                     x     x       x        x     x     x        x      .
runtime/serving/triton/staging.py                    .     .       .        .     .     x        x      .
runtime/serving/companions.py                        .     .       .        .     x     x        x      .
runtime/serving/triton/production.py                 .     .       .        .     .     .        .      .
runtime/serving/kubernetes/staging.py                .     .       .        .     .     x        x      .
runtime/serving/kubernetes/objects/front.py          .     .       .        .     .     x        x      .
runtime/serving/kubernetes/objects/serving.py        .     .       .        .     .     x        x      .
runtime/serving/kubernetes/objects/pods.py           .     .       .        .     x     x        x      .
runtime/serving/kubernetes/objects/bench.py          .     .       .        .     x     .        .      .
runtime/serving/kubernetes/bench_pod.py              .     .       .        .     x     .        .      .
runtime/serving/kubernetes/client.py                 .     .       .        .     x     x        x      .
runtime/serving/kubernetes/diagnosis.py              .     .       .        .     x     x        x      .
runtime/serving/kubernetes/fetch.py                  .     .       .        .     x     x        x      .
runtime/serving/kubernetes/serve.py                  .     .       .        .     x     x        x      .
runtime/serving/kubernetes/production.py             .     .       .        .     .     .        .      .
steps/tune.py                                        .     .       .        .     x     .        .      .
steps/gate.py                                        .     .       .        .     .     .        .      x
steps/conclude.py                                    .     .       .        .     .     .        .      .
templates/report.html.j2                             .     .       .        .     .     .        .      .
pipelines/release.py                                 .     .       .        .     .     .        .      .
pipelines/engines/attempt.py                         .     .       .        .     .     .        .      .
pipelines/commands/start/demo_story.py               .     .       .        .     .     .        .      .
"""
HEAD, *ROWS = [line.split() for line in TABLE.strip().splitlines()]
PACKAGE = Path(shiplift.__file__).parent


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with folders in the place of links, as a wheel installs it."""
    root = tmp_path_factory.mktemp("site-packages") / "shiplift"
    shutil.copytree(PACKAGE, root, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], dict[str, str]]:
    """The digest of each stage's code in a project. Syntax is parsed once, however often it is asked."""
    monkeypatch.setattr(sources, "references", cache(references))
    stages = [stage for stage in RELEASE.flat() if has_key(stage)]

    def of(root: Path) -> dict[str, str]:
        project = sources.Sources(root)
        return {stage.name: code_digest(stage.step, project) for stage in stages}

    return of


def test_a_change_of_code_changes_the_keys_in_the_table_and_no_others(
    elsewhere: Path, digests: Callable[[Path], dict[str, str]]
) -> None:
    before, wrong = digests(elsewhere), []
    assert list(before) == HEAD
    for pattern, *cells in ROWS:
        files = [file for file in sorted(elsewhere.glob(pattern)) if file.is_file()]
        assert files, f"{pattern} is not there: where it went, its row goes"
        for file in files:
            original = file.read_bytes()
            file.write_bytes(original + b"\n# edited\n")
            changed = ["x" if digest != before[stage] else "." for stage, digest in digests(elsewhere).items()]
            file.write_bytes(original)
            if changed != cells:
                wrong.append(f"{file.relative_to(elsewhere)}: {' '.join(changed)}, the table has {' '.join(cells)}")
    assert not wrong, "\n".join(wrong)


def test_the_table_has_a_file_of_each_room() -> None:
    rooms = {file.parent.relative_to(PACKAGE).parts[:2] for file in (PACKAGE / "runtime").rglob("*.py")}
    assert rooms | {("steps",), ("templates",)} <= {Path(row[0]).parent.parts[:2] for row in ROWS}


def test_the_same_code_has_the_same_digests_wherever_it_is_installed(
    elsewhere: Path, digests: Callable[[Path], dict[str, str]]
) -> None:
    assert digests(elsewhere) == digests(PACKAGE)
    assert len(set(digests(PACKAGE).values())) == len(HEAD)


def test_the_python_of_the_server_counts_for_what_runs_on_it(
    elsewhere: Path, digests: Callable[[Path], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digests(elsewhere)
    monkeypatch.setattr(environment, "PYTHON", "3.99")
    assert {stage for stage, digest in digests(elsewhere).items() if digest != before[stage]} == {
        "admit", "export", "quantize", "package", "tune", "deploy", "load_test",  # a family may start a server
    }  # fmt: skip


def test_a_daemon_keeps_the_digests_of_the_code_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    cache_key.take_digests(RELEASE.flat())
    monkeypatch.setattr(Path, "read_bytes", lambda file: pytest.fail(f"{file} was read later"))
    for stage in RELEASE.flat():
        if has_key(stage):
            key(stage, {})
