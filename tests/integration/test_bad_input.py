"""Mistakes of users and faults around them: each gives a clear message and exit code, and leaves production alone."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
import torch
from mlflow.models import ModelSignature, infer_signature
from mlflow.types import Schema, TensorSpec
from onnx import TensorProto, helper

from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.settings import Settings
from shiplift.runtime.base.errors import ExportFailed, MeasurementFailed, MissingTool, PortTaken, ShipliftError
from shiplift.runtime.base.names import release_name
from shiplift.runtime.host.processes import alive
from shiplift.runtime.records.process import Process
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.serving.machine.served import ServedPackage, every_served
from shiplift.runtime.serving.triton.environment import ServerEnvironment, default_root
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.registry.terms import CHALLENGER, CHAMPION
from tests.integration.conftest import FAST, ONE_FORM, Lab, Released, digits, request, until
from tests.old_records import package_of_0_1

SHIPLIFT = Path(sys.executable).with_name("shiplift")


def refused(lab: Lab, name: str, version: int, code: int, *messages: str) -> ReleaseReport:
    """Waits for a release that must end with `code` and a reason with all `messages`; nothing of it may serve."""
    report = lab.wait(name, version)
    assert report.exit_code == code, report.reason
    for message in messages:
        assert message in report.reason
    assert report.alias == ""
    assert lab.registry.alias(name, CHAMPION) == 0
    assert lab.registry.alias(name, CHALLENGER) == 0
    assert not (lab.home / "production" / "models" / name).exists()
    return report


def log_folder(lab: Lab, name: str, folder: Path, *, spec: str = FAST) -> int:
    """Registers an MLflow model from a folder, unchecked, as a hostile author can."""
    with lab.mlflow.start_run() as run:
        lab.mlflow.log_text(spec, "shiplift/shiplift.yaml")
        lab.mlflow.log_artifacts(str(folder), "model")
    return int(lab.mlflow.register_model(f"runs:/{run.info.run_id}/model", name).version)


def onnx_model(*, node: str = "Identity", weights: str = "") -> onnx.ModelProto:
    """A graph with one node on float32 (batch, 4); `weights` is the location of its external data."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy")
    nodes, constants = [helper.make_node(node, ["x"], ["y"])], []
    if weights:
        tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=weights)
        constants, nodes = [tensor], [helper.make_node("Add", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], initializer=constants)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


def saved_onnx(lab: Lab, folder: Path, model: onnx.ModelProto) -> Path:
    """An MLflow ONNX model in a folder, with its file replaced by `model`."""
    x = np.ones((2, 4), np.float32)
    signature = infer_signature({"x": x}, {"y": x})
    lab.mlflow.onnx.save_model(
        onnx_model(), str(folder), signature=signature, input_example={"x": x}, pip_requirements=[]
    )
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder


# --- not admitted ---------------------------------------------------------------------------------------------------


def test_a_version_without_a_signature_is_not_admitted(lab: Lab) -> None:
    version = lab.log_classifier("without-signature", signature=False, input_example=None)
    refused(lab, "without-signature", version, 30, "no signature", "infer_signature")


@pytest.mark.slow
def test_a_version_whose_signature_determines_no_example_is_not_admitted(lab: Lab) -> None:
    model, x = torch.jit.script(torch.nn.Linear(4, 4)), np.ones((2, 4), np.float32)
    spec, inputs = f"{FAST}\nadmission: {{pickle: sandbox}}", Schema([TensorSpec(np.dtype("float32"), (-1, -1), "x")])
    signature = ModelSignature(inputs=inputs, outputs=infer_signature(x, x).outputs)
    version = lab.log(
        "without-example",
        lambda **options: lab.mlflow.pytorch.log_model(
            model, signature=signature, serialization_format="pickle", **options
        ),
        spec=spec,
    )
    refused(lab, "without-example", version, 30, "its signature determines none: 'x' is of the shape (-1, -1)")


@pytest.mark.slow
def test_a_python_model_is_not_admitted_unless_the_spec_accepts_its_code(lab: Lab) -> None:
    class Twice(lab.mlflow.pyfunc.PythonModel):  # type: ignore[name-defined, misc]
        def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
            return model_input * 2

    x = np.ones((2, 4), np.float32)

    def log_model(**options: Any) -> Any:
        return lab.mlflow.pyfunc.log_model(
            python_model=Twice(), signature=infer_signature(x, x), input_example=x, **options
        )

    version = lab.log("pyfunc", log_model)
    refused(lab, "pyfunc", version, 30, "`python: refuse`", "`admission: {python: sandbox}`")


@pytest.mark.slow
def test_a_truncated_onnx_file_is_not_admitted(lab: Lab, tmp_path: Path) -> None:
    folder = saved_onnx(lab, tmp_path / "m", onnx_model())
    body = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").write_bytes(body[: len(body) // 2])
    refused(lab, "truncated", log_folder(lab, "truncated", folder), 30, "model.onnx", "truncated")


@pytest.mark.slow
@pytest.mark.parametrize("location", ["../../../../etc/passwd", pytest.param("/etc/passwd", marks=pytest.mark.slow)])
def test_external_data_outside_the_model_is_not_admitted(lab: Lab, tmp_path: Path, location: str) -> None:
    folder = saved_onnx(lab, tmp_path / "m", onnx_model(weights=location))
    name = f"outside-{'dots' if '..' in location else 'absolute'}"
    refused(lab, name, log_folder(lab, name, folder), 30, "model.onnx", location)


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., int], tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def evil_folder(lab: Lab, folder: Path, marker: Path) -> Path:
    """An MLflow pytorch model whose pickle runs a command."""
    x = np.ones((2, 4), np.float32)
    lab.mlflow.pytorch.save_model(
        torch.nn.Linear(4, 4),
        str(folder),
        signature=infer_signature(x, x),
        input_example=x,
        serialization_format="pickle",
        pip_requirements=[],
    )
    torch.save(Evil(marker), folder / "data" / "model.pth")
    return folder


@pytest.mark.parametrize("policy", ["refuse", pytest.param("sandbox", marks=pytest.mark.slow)])
def test_a_pickle_that_runs_code_is_named_and_never_runs(lab: Lab, tmp_path: Path, policy: str) -> None:
    marker = tmp_path / "it-ran"
    folder = evil_folder(lab, tmp_path / "m", marker)
    name = f"evil-{policy}"
    version = log_folder(lab, name, folder, spec=f"{FAST}\nadmission: {{pickle: {policy}}}")
    refused(lab, name, version, 30, "data/model.pth", "posix.system")
    assert not marker.exists()


@pytest.mark.slow
def test_even_unscanned_it_can_do_nothing_in_the_sandbox(lab: Lab, tmp_path: Path) -> None:
    from shiplift.runtime.confinement.policy import SandboxLimits
    from shiplift.runtime.confinement.workplace import workplace
    from shiplift.runtime.families.graph.export import CONVERT
    from shiplift.runtime.model.tensors import dump_npz

    marker = tmp_path / "it-ran"
    x = {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
    with workplace(CONVERT, tmp_path) as place:
        folder = evil_folder(lab, place.folder / "m", marker)
        example = place.folder / "example.npz"
        example.write_bytes(dump_npz({"x": np.ones((2, 4), np.float32)}))
        order = {
            "folder": str(folder),
            "flavor": "pytorch",
            "signature": {"inputs": [x], "outputs": [x]},
            "example": str(example),
            "out": str(place.sandbox.work),
            "settings": {},
            "tabular": False,
            "seed": 0,
        }
        with pytest.raises(ExportFailed):
            place.sandbox.run(order, SandboxLimits(memory_mb=2048, timeout_s=60))
    assert not marker.exists()


def test_a_spec_with_an_unknown_field_or_an_impossible_budget_is_refused_by_name(lab: Lab) -> None:
    version = lab.log_classifier("bad-spec", spec="slo: {p99_millis: 5, throughput_per_s: -1}")
    refused(lab, "bad-spec", version, 65, "slo.p99_millis", "did you mean 'p99_ms'", "slo.throughput_per_s", "-1")
    with pytest.raises(ShipliftError, match=r"quality.min_score 2.0 can't be reached"):
        lab.order("bad-spec", version, "quality: {min_score: 2}")


@pytest.mark.slow
def test_a_name_that_is_a_path_is_refused_by_the_command(lab: Lab) -> None:
    for name in ("../x/1", "../x"):
        done = shiplift(lab, "release", name)
        assert done.returncode == (64 if name == "../x" else 30)
        assert "is not a version number" in done.stderr if name == "../x" else "can't be a model's name" in done.stderr


# --- a wrong model or wrong data ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nan_outputs_are_refused(lab: Lab, tmp_path: Path) -> None:
    folder = saved_onnx(lab, tmp_path / "m", onnx_model(node="Log"))
    meta = (folder / "input_example.json").read_text()
    (folder / "input_example.json").write_text(meta.replace("1.0", "-1.0"))
    report = refused(lab, "nan", log_folder(lab, "nan", folder), 20, "gives NaN in 'y'")
    assert (report.checks[0].name, report.checks[0].verdict) == ("parity", Outcome.FAIL)


@pytest.mark.slow
def test_data_of_the_wrong_dtype_or_shape_is_refused_by_name(lab: Lab) -> None:
    images, labels = digits()
    model, example = lab.classifier(), images[:4]

    def log_model(**options: Any) -> Any:
        signature = infer_signature(example, model.predict(example))
        return lab.mlflow.sklearn.log_model(model, signature=signature, input_example=example, **options)

    text = {"input": images[:200].astype(str), "label": labels[:200]}
    version = lab.log("text-data", log_model, data=text)
    refused(lab, "text-data", version, 33, "'input' has dtype", "FP32")
    narrow = {"input": images[:200, :10], "label": labels[:200]}
    version = lab.log("narrow-data", log_model, data=narrow)
    refused(lab, "narrow-data", version, 33, "(200, 10)", "(-1, 64)")


@pytest.mark.slow
def test_a_signature_with_the_wrong_dtype_fails_the_export(lab: Lab) -> None:
    x = np.ones((2, 4), np.int64)
    model = torch.nn.Linear(4, 4)

    folder = lab.home / "dtype"
    lab.mlflow.pytorch.save_model(
        torch.jit.script(model),
        str(folder),
        signature=infer_signature(x, x),
        serialization_format="pickle",
        pip_requirements=[],
    )
    (folder / "input_example.json").write_text(json.dumps(x.tolist()))
    with (folder / "MLmodel").open("a") as meta:
        meta.write("saved_input_example_info:\n  artifact_path: input_example.json\n  type: ndarray\n")
    refused(lab, "dtype", log_folder(lab, "dtype", folder), 31, "does not answer a batch of", "dtype")


@pytest.mark.slow
def test_a_refused_version_is_asked_its_row_again_by_the_command_that_the_refusal_names(
    lab: Lab, tmp_path: Path
) -> None:
    folder = saved_onnx(lab, tmp_path / "m", onnx_model(node="RandomNormalLike"))
    report = refused(lab, "sampled", log_folder(lab, "sampled", folder), 31, "not repeatable", "shiplift ask sampled/1")
    command = shlex.split(report.reason[report.reason.index("shiplift ask") :])[:5]
    done = shiplift(lab, *command[1:])
    assert done.returncode == 43, done.stderr
    assert "difference: the original is not repeatable" in done.stdout
    assert done.stdout.startswith("sampled version 1; the original now: mlflow.pyfunc")


# --- the machine is wrong -------------------------------------------------------------------------------------------


def test_a_taken_port_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = Settings(
            home=tmp_path / "home",
            mlflow_port=free(),
            receiver_port=free(),
            scoring_port=free(),
            page_port=free(),
            http_port=free(),
            grpc_port=port,
            metrics_port=free(),
        )
        with pytest.raises(
            PortTaken, match=rf"port {port}, needed by triton \(grpc\), is taken by .* \(pid {os.getpid()}\)"
        ):
            stack.up(settings)
    running = stack.read(tmp_path / "home")
    assert running is None or not any(running.runs(name) for name in running.names)


def free() -> int:
    from shiplift.runtime.host.processes import free_port

    return free_port()


def test_a_full_disk_while_packaging_is_one_clear_message(lab: Lab, tmp_path: Path) -> None:
    script = Path(__file__).with_name("full_disk.py")
    done = subprocess.run(
        ["unshare", "-Urm", sys.executable, str(script), str(tmp_path / "small")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 73, done.stderr
    assert "no space is left in" in done.stdout
    assert "left behind: 0" in done.stdout  # no half-written package


@pytest.mark.parametrize(("fault", "error"), [("missing", MissingTool), ("dying", MeasurementFailed)])
def test_a_load_generator_that_is_missing_or_dies_is_reported(
    lab: Lab, tmp_path: Path, fault: str, error: type[ShipliftError]
) -> None:
    from shiplift.runtime.measure.generator import Demand, LoadTarget, Window
    from shiplift.runtime.measure.perf_analyzer import PerfAnalyzer
    from shiplift.runtime.measure.requests import split
    from shiplift.runtime.records.tensor import Signature, TensorSpec

    real = ServerEnvironment(default_root())
    root = tmp_path / "server"
    shutil.copytree(real.root / "bin", root / "bin", symlinks=True)
    for name in ("lib", "backends", "libraries", "stamp"):
        (root / name).symlink_to(real.root / name)
    program = root / "bin" / "perf_analyzer"
    program.unlink()
    if fault == "dying":
        program.write_text("#!/bin/sh\necho the network is down >&2\nkill -9 $$\n")
        program.chmod(0o755)
    spec = TensorSpec(name="x", datatype="FP32", shape=(-1, 4))
    generator, signature = PerfAnalyzer(ServerEnvironment(root)), Signature(inputs=(spec,), outputs=(spec,))
    requests = generator.write_requests(tmp_path / "r.json", signature, split({"x": np.ones((1, 4), np.float32)}))
    target = LoadTarget(model="any", address=f"127.0.0.1:{lab.running.grpc_port}", requests=requests)
    with pytest.raises(error) as caught:
        generator.measure(target, Demand(concurrency=1), Window(window_ms=100), tmp_path)
    assert "perf_analyzer" in str(caught.value)
    if fault == "dying":
        assert "the network is down" in str(caught.value)


# --- stopped by a person or by a crash -----------------------------------------------------------------------------


def shiplift(lab: Lab, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(SHIPLIFT), "--home", str(lab.home), *words], capture_output=True, text=True, check=False, timeout=180
    )


def staging_servers(lab: Lab) -> list[psutil.Process]:
    """The Triton servers of this home, except production's."""
    running = stack.read(lab.home)
    assert running is not None
    production = psutil.Process(running.processes["triton"].pid)
    production_pids = {process.pid for process in (production, *production.children(recursive=True))}
    servers = []
    for process in psutil.process_iter(["cmdline", "pid"]):
        words = " ".join(process.info["cmdline"] or ())
        if "tritonserver" in words and str(lab.home) in words and process.pid not in production_pids:
            servers.append(process)
    return servers


STAGES = ("admit", "export", "quantize", "tune", "deploy", "load_test")


def gone(process: Process) -> None:
    until(lambda: not alive(process))


def reached(lab: Lab, name: str, version: int, stage: str) -> None:
    until(lambda: any(event.stage == stage for event in lab.events(name, version)), seconds=120)


@pytest.mark.slow
def test_ctrl_c_in_any_stage_leaves_nothing_behind(lab: Lab) -> None:
    slow = FAST.replace("window_ms: 100, attempts", "window_ms: 400, attempts")
    name = "interrupted"
    version = lab.log_classifier(name, spec=slow)
    release = release_name(name, version, "")
    for stage in STAGES:
        reached(lab, name, version, stage)
        worker = lab.releases.worker(release)
        if worker is None:  # it finished before it could be stopped, so later stages were reached
            break
        os.kill(worker.pid, signal.SIGINT)
        until(lambda: not lab.releases.active(release))
        report = lab.releases.result(release)
        assert report is not None
        assert (report.exit_code, report.verdict) == (130, Outcome.INCONCLUSIVE), stage
        gone(worker)
        assert staging_servers(lab) == []
        assert not any((lab.home / "staging").iterdir())
        assert not list(lab.home.glob("shiplift-*"))
        assert (lab.registry.alias(name, CHAMPION), lab.registry.alias(name, CHALLENGER)) == (0, 0)
        lab.releases.accept(request(name, version), _by_hand())  # it resumes where it stopped
    assert lab.wait(name, version).exit_code == 0
    assert lab.registry.alias(name, CHAMPION) == version


def _by_hand() -> Any:
    from tests.integration.conftest import by_hand

    return by_hand()


@pytest.mark.slow
def test_ctrl_c_at_the_command_cancels_the_release(lab: Lab) -> None:
    slow = FAST.replace("window_ms: 100, attempts", "window_ms: 2000, attempts")
    version = lab.log_classifier("at-command", spec=slow)
    release = release_name("at-command", version, "")
    until(lambda: lab.releases.folder(release).is_dir())
    command = subprocess.Popen(
        # background jobs of a shell, and their children, ignore SIGINT
        ["env", "--default-signal=INT", str(SHIPLIFT), "--home", str(lab.home), "release", f"at-command/{version}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    reached(lab, "at-command", version, "load_test")
    assert command.stderr is not None
    assert command.stderr.readline()  # it is following the release now
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=150)
    assert command.returncode == 130
    assert "cancelled" in errors
    assert lab.registry.alias("at-command", CHAMPION) == 0
    done = shiplift(lab, "release", f"at-command/{version}", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["alias"] == CHAMPION


def test_a_release_whose_process_is_killed_resumes_by_itself(lab: Lab) -> None:
    version = lab.log_classifier("crashed", spec=ONE_FORM)
    release = release_name("crashed", version, "")
    reached(lab, "crashed", version, "tune")
    worker = lab.releases.worker(release)
    assert worker is not None
    os.kill(worker.pid, signal.SIGKILL)
    report = lab.wait("crashed", version)
    assert report.exit_code == 0
    assert {stage.name for stage in report.stages if stage.cached} >= {"admit", "export", "quantize", "package"}
    assert staging_servers(lab) == []


@pytest.mark.slow
def test_mlflow_dying_during_a_release_only_delays_it(lab: Lab) -> None:
    version = lab.log_classifier("registry-down")
    reached(lab, "registry-down", version, "export")
    running = stack.read(lab.home)
    assert running is not None
    dead = running.processes["mlflow"]
    for process in [psutil.Process(dead.pid), *psutil.Process(dead.pid).children(recursive=True)]:
        process.kill()
    assert lab.wait("registry-down", version, seconds=300).exit_code == 0
    assert lab.registry.alias("registry-down", CHAMPION) == version


def test_production_is_the_same_after_triton_died(lab: Lab, champion: Released) -> None:
    """Also if 0.1 noted what it serves."""
    model = champion.model
    noted = lab.home / "production" / "served" / f"{model}.json"
    now = noted.read_text()
    served_now = ServedPackage.model_validate_json(now)
    noted.write_text(json.dumps({"package": package_of_0_1(served_now.package), "former": []}))
    images, _ = digits()
    before = lab.ask(model, {"input": images[:3]})
    running = stack.read(lab.home)
    assert running is not None
    os.kill(running.processes["triton"].pid, signal.SIGKILL)

    def served() -> Any:
        again = stack.read(lab.home)
        if not (again and again.processes["triton"] != running.processes["triton"] and again.runs("triton")):
            return None
        try:
            return lab.ask(model, {"input": images[:3]})
        except ShipliftError:
            return None

    assert until(served) == before
    fields = type(served_now.package).model_fields
    later = {
        name: fields[name].default for name in ("questions", "proof", "constant_score", "limits", "guards")
    }  # 0.1 has none of these
    unproved = served_now.package.model_copy(update=later)
    assert list(every_served(lab.home)).count(served_now.model_copy(update={"package": unproved})) == 1
    noted.write_text(now)  # other tests ask for what 0.1 did not have


@pytest.mark.slow
def test_rolling_back_a_model_with_one_version_is_refused(lab: Lab) -> None:
    version = lab.log_classifier("single")
    assert lab.wait("single", version).exit_code == 0
    done = shiplift(lab, "rollback", "single", "--json")
    assert done.returncode == 45
    assert json.loads(done.stdout)["error"] == "NothingToRollBack"
    assert lab.registry.alias("single", CHAMPION) == version


def test_the_store_refuses_altered_bytes(lab: Lab, tmp_path: Path) -> None:
    store = ArtifactStore(lab.site.artifacts_uri)
    artifact = store.put_bytes(b"what was measured")
    Path(artifact.uri).write_bytes(b"what was swapped in")
    with pytest.raises(ShipliftError) as caught:
        store.fetch(artifact, tmp_path / "file")
    assert caught.value.exit_code == 35
    assert not (tmp_path / "file").exists()
    Path(artifact.uri).unlink()
