"""The sides that `make bench` compares: how each is started, and checked before it is measured.

Each listens on a loopback port, speaks HTTP/1.1 with keep-alive connections, and gets the same samples, one per
request. A rival that is a program of its own is in `rivals/table.py`; those that are a Triton are here.
"""

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from benchmarks.extras import extras, own_python
from benchmarks.model_analyzer import Bounds, analyze
from benchmarks.protocols import HOST, Protocol, request_bytes, triton_protocol
from benchmarks.rivals.table import Rival, Settings, Start
from benchmarks.subjects import Champion, Failed, Subject
from shiplift.runtime.host.processes import free_port, identify, inherited, start_child, stop
from shiplift.runtime.measure.perf_analyzer import PerfAnalyzer
from shiplift.runtime.measure.requests import split
from shiplift.runtime.model.onnx_models import signature_of
from shiplift.runtime.records.process import Process
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.machine.server import private_server
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.command_line import HTTP_THREADS, Features
from shiplift.runtime.serving.triton.config import datatype_value
from shiplift.runtime.serving.triton.environment import ServerEnvironment

ROOT = Path(__file__).parents[1]
_START_S = 300  # torch.compile takes minutes on two cores
_STARTING = (404, 503)  # what servers answer before their model is there
_HEARTBEAT_S = 0.2  # workers that go on tell their supervisor so within that
_MAX_BATCH = 64  # in the hand-written configuration
_DEFAULT = Features(cache_mb=0, http_threads=HTTP_THREADS)
_MOST_DIFFERENT: dict[str, float] = {"fp32": 1e-3, "bf16": 5e-2}  # from the original's answers, over the largest
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "BENTOML_DO_NOT_TRACK": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",  # what Ray Serve's guide to performance recommends
}


@dataclass(frozen=True, kw_only=True)
class Side:
    """A running server, ready to be measured. `check` is what the load generator expects of every answer."""

    name: str
    port: int
    process: Process
    requests: tuple[bytes, ...]
    check: dict[str, int]
    difference: float
    settings: Settings
    precision: str = "fp32"
    model: str = ""  # its name on Triton, which has statistics
    tried: list[dict[str, Any]] = field(default_factory=list)

    def cpu_seconds(self) -> dict[str, float]:
        """The CPU time of its processes so far, by program."""
        seconds: dict[str, float] = {}
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                program = process.name()
                seconds[program] = seconds.get(program, 0.0) + times.user + times.system
        return seconds

    def processes(self) -> list[psutil.Process]:
        """Its process and all below it."""
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.Error:
            return []

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops its processes for as long as the context lasts.

        Supervisors are stopped first and go on last, so that none finds its workers silent and kills them.
        """
        stopped = self.processes()
        try:
            _signal(stopped, signal.SIGSTOP)
            yield
        finally:
            _signal(stopped[:0:-1], signal.SIGCONT)
            time.sleep(_HEARTBEAT_S)
            _signal(stopped[:1], signal.SIGCONT)

    def statistics(self) -> dict[str, float]:
        """Triton's counters for the model: requests, executions, and nanoseconds by part; empty for other servers."""
        if not self.model:
            return {}
        versions = json.loads(_get(self.port, f"/v2/models/{self.model}/stats"))["model_stats"]
        stats = [version["inference_stats"] for version in versions]
        parts = ("queue", "compute_input", "compute_infer", "compute_output")
        counters = {f"{part}_ns": float(sum(counts[part].get("ns", 0) for counts in stats)) for part in parts}
        counters["requests"] = float(sum(counts["success"].get("count", 0) for counts in stats))
        counters["executions"] = float(sum(version.get("execution_count", 0) for version in versions))
        return counters


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


# --- checking and starting them -------------------------------------------------------------------------------------


def checked_side(
    name: str,
    subject: Subject,
    protocol: Protocol,
    process: Process,
    port: int,
    settings: Settings,
    *,
    precision: str,
    model: str = "",
) -> Side:
    """Turns a running server into a side: sends every sample once and compares the answers with the original model's.

    Raises:
        Failed: it does not answer, or an answer has the wrong shape or is not finite.
    """
    pairs = [protocol.encode(sample) for sample in subject.samples]
    answers, lengths, commas = [], set(), set()
    for content, headers in answers_of(name, port, protocol.path, pairs):
        answers.append(protocol.decode(content, headers))
        lengths.add(len(content))
        commas.add(content.count(b","))
    array = np.concatenate(answers)
    if array.shape != subject.answers.shape:
        raise Failed(f"{name} answers with shape {array.shape}, not {subject.answers.shape}")
    if not np.isfinite(array).all():
        raise Failed(f"{name} answers with numbers that are not finite")
    check = {"commas": commas.pop()} if protocol.textual else {"length": lengths.pop()}
    if commas if protocol.textual else lengths:
        raise Failed(f"{name}: answers differ in shape")
    difference = float(np.abs(array - subject.answers).max() / np.abs(subject.answers).max())
    requests = tuple(request_bytes(port, protocol.path, headers, body) for headers, body in pairs)
    return Side(
        name=name,
        port=port,
        process=process,
        requests=requests,
        check=check,
        difference=difference,
        settings=settings,
        precision=precision,
        model=model,
    )


def answers_of(
    name: str, port: int, path: str, requests: list[tuple[dict[str, str], bytes]]
) -> Iterator[tuple[bytes, dict[str, str]]]:
    """The bodies and headers of the answers to requests on one connection."""
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    with contextlib.closing(connection):
        for headers, body in requests:
            try:
                connection.request("POST", path, body, headers)
                response = connection.getresponse()
                content = response.read()
            except (OSError, http.client.HTTPException) as error:
                raise Failed(f"{name} does not answer: {type(error).__name__}: {error}") from error
            if response.status != 200:
                raise Failed(f"{name} answers {response.status}: {content[:300]!r}")
            yield content, {key.lower(): value for key, value in response.getheaders()}


@contextmanager
def rival_side(
    rival: Rival, settings: Settings, subject: Subject, champion: Champion, work: Path, tell: Callable[[str], None]
) -> Iterator[Side]:
    """Runs a rival with the given settings for as long as the context lasts.

    Raises:
        Failed: it does not start, or answers wrongly.
        Missing: its packages can't be installed.
    """
    port = free_port()
    python, packages = _python(rival, tell)
    command = rival.command(Start(python=python, subject=subject, champion=champion, settings=settings, port=port))
    log = work / f"{rival.name}.log"
    variables = _variables(python, packages, subject, settings, port)
    child = start_child(command, environment=variables, log=log, folder=work)
    process = identify(child.pid)
    try:
        protocol = rival.protocol(subject)
        _wait_answers(child, port, protocol, subject, log)
        side = checked_side(rival.name, subject, protocol, process, port, settings, precision=rival.precision)
        _check_close(side)
        yield side
    finally:
        stop(process)


def _python(rival: Rival, tell: Callable[[str], None]) -> tuple[str, list[Path]]:
    """The Python that runs a rival, and the folders that it needs beside its own packages."""
    if rival.own_environment:
        return str(own_python(rival.requirements, tell)), []
    return sys.executable, [extras(rival.requirements, tell)]


def _variables(python: str, packages: list[Path], subject: Subject, settings: Settings, port: int) -> dict[str, str]:
    return {
        **inherited(),
        "PATH": f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join(map(str, [ROOT, *packages])),
        "PYTHONWARNINGS": "ignore",
        "BENCH_MODEL": str(subject.folder),
        "BENCH_PORT": str(port),
        "BENCH_SETTINGS": json.dumps(settings),
        "OMP_NUM_THREADS": str(settings["model_threads"]),
        "NO_PROXY": "*",
        "no_proxy": "*",
        **_QUIET,
    }


def _check_close(side: Side) -> None:
    most = _MOST_DIFFERENT[side.precision]
    if side.difference > most:
        raise Failed(f"{side.name} answers wrongly: scores differ by {side.difference:.3g}, right is at most {most:g}")


def _wait_answers(child: "subprocess.Popen[bytes]", port: int, protocol: Protocol, subject: Subject, log: Path) -> None:
    headers, body = protocol.encode(subject.samples[0])
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and child.poll() is None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(HOST, port, timeout=30)
            connection.request("POST", protocol.path, body, headers)
            response = connection.getresponse()
            content = response.read()
            connection.close()
            if response.status == 200:
                return
            if response.status not in _STARTING:
                raise Failed(f"{log.stem} answers {response.status}: {content[:500]!r}")
        time.sleep(0.1)
    raise Failed(f"{log.stem} did not start:\n{log.read_text(errors='replace')[-1500:]}")


# --- Triton ---------------------------------------------------------------------------------------------------------


@contextmanager
def triton_default(subject: Subject, environment: ServerEnvironment, work: Path) -> Iterator[Side]:
    """Runs Triton's ONNX Runtime backend with the configuration that its documentation starts with."""
    folder = triton_package(subject, work / "default")
    with private_triton("triton-default", subject, folder, environment, work, _DEFAULT) as side:
        yield side


@contextmanager
def triton_analyzer(subject: Subject, environment: ServerEnvironment, work: Path) -> Iterator[Side]:
    """Runs the same with the batch size and instances that Model Analyzer's quick mode finds best.

    Raises:
        Failed: Model Analyzer can't be installed or found nothing.
    """
    bounds = Bounds(instances=4, max_batch=_MAX_BATCH, concurrency=64, window_ms=500)
    folder = triton_package(subject, work / "analyzed")
    signature = _signature(subject)
    samples = split({signature.inputs[0].name: subject.samples})
    requests = PerfAnalyzer(environment).write_requests(work / "analyzer-requests.json", signature, samples)
    with private_server(environment, folder.parent, _DEFAULT, log=work / "analyzer.log") as server:
        outcome = analyze(server, environment, folder.name, bounds, work / "analyzer", "quick", requests)
    if outcome.why:
        raise Failed(outcome.why)
    settings = {"max_batch": outcome.max_batch, "instances": outcome.instances}
    tuned = triton_package(subject, work / "tuned", **settings)
    with private_triton("triton-analyzer", subject, tuned, environment, work, _DEFAULT) as side:
        yield replace(side, settings=settings | {"search_s": round(outcome.seconds, 1)})


TRITONS = {"triton-default": triton_default, "triton-analyzer": triton_analyzer}


def triton_package(subject: Subject, repository: Path, *, max_batch: int = _MAX_BATCH, instances: int = 0) -> Path:
    """Writes a package of the exported fp32 model with dynamic batching and Triton's defaults; returns its folder.

    That is what Triton's guide to performance starts with. Without `instances`, Triton decides on them.
    """
    signature = _signature(subject)
    config = pb.ModelConfig(name="model", backend="onnxruntime", max_batch_size=max_batch)
    if instances:
        config.instance_group.add(count=instances, kind=pb.ModelInstanceGroup.KIND_CPU)
    config.default_model_filename = "model.onnx"
    config.dynamic_batching.SetInParent()
    inputs = ((spec, config.input) for spec in signature.inputs)
    for spec, field_ in (*inputs, (signature.outputs[0], config.output)):
        field_.add(name=spec.name, data_type=datatype_value(spec.datatype), dims=spec.shape[1:])
    folder = repository / "model"
    (folder / "1").mkdir(parents=True)
    for file in subject.folder.glob("model.onnx*"):
        shutil.copyfile(file, folder / "1" / file.name)
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config))
    return folder


def _signature(subject: Subject) -> Signature:
    import onnx

    return signature_of(onnx.load(subject.folder / "model.onnx", load_external_data=False))


@contextmanager
def private_triton(
    name: str,
    subject: Subject,
    model: Path,
    environment: ServerEnvironment,
    work: Path,
    features: Features,
    precision: str = "fp32",
) -> Iterator[Side]:
    """Runs a bundled server for the model folder `model`."""
    log = work / f"{name}.log"
    with private_server(environment, model.parent, features, log=log) as server:
        with TritonClient(server.grpc, repository_key=server.key) as client:
            client.load(model.name)
        yield _triton(name, subject, server.process, server.ports.http, server.grpc, model.name, precision)


@contextmanager
def champion_with(
    backend: Path, subject: Subject, model: Path, environment: ServerEnvironment, work: Path, precision: str
) -> Iterator[Side]:
    """Runs the champion's package with another `model.py`, to measure a change of the backend."""
    folder = Path(tempfile.mkdtemp(dir=work)) / model.name
    shutil.copytree(model, folder)
    for file in folder.glob("*/model.py"):
        shutil.copyfile(backend, file)
    name = f"shiplift:{backend.stem}"
    with private_triton(name, subject, folder, environment, work, Features(), precision) as side:
        yield side


def production(subject: Subject, champion: Champion, process: Process, http_port: int, grpc: str) -> Side:
    """Shiplift's champion, as served in production."""
    return _triton("shiplift", subject, process, http_port, grpc, champion.name, champion.report["precision"])


def _triton(name: str, subject: Subject, process: Process, port: int, grpc: str, model: str, precision: str) -> Side:
    with TritonClient(grpc) as client:
        signature = client.signature(model)
    protocol = triton_protocol(model, signature)
    return checked_side(name, subject, protocol, process, port, {}, precision=precision, model=model)


def _get(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return body
