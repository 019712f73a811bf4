"""The five ways to serve a model that `make bench` compares: how each starts, takes requests and is tuned.

Each side listens on a loopback port, speaks HTTP/1.1 with keep-alive connections, and gets the same samples, one per
request, in the fastest format it accepts: raw tensors for Flask, FastAPI and Triton (its binary extension), JSON for
MLflow's server, which accepts nothing else.
"""

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from google.protobuf import text_format
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2 as pb

from benchmarks.subjects import Champion, Failed, Subject
from shiplift.runtime.host.processes import free_port, identify, inherited, start_child, stop
from shiplift.runtime.model.onnx_models import signature_of
from shiplift.runtime.records.serving import Process
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.config import datatype_value
from shiplift.runtime.serving.triton.environment import ServerEnvironment
from shiplift.runtime.serving.triton.server import HTTP_THREADS, Features, private_server

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[1]
_RIVALS = Path(__file__).parent / "rivals"
_START_S = 180
_MAX_BATCH = 64  # in the hand-written configuration
Settings = dict[str, Any]
Decode = Callable[[bytes, dict[str, str]], NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How to talk to a side: the path, the encoding of a sample as headers and body, and the decoding of an answer."""

    path: str
    encode: Callable[[NDArray[Any]], tuple[dict[str, str], bytes]]
    decode: Decode
    textual: bool = False  # numbers are text, so answers have no fixed length


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
    model: str = ""  # its name on Triton, which has statistics
    tried: list[dict[str, Any]] = field(default_factory=list)

    def cpu_seconds(self) -> dict[str, float]:
        """The CPU time of its processes so far, by program."""
        seconds: dict[str, float] = {}
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self.process.pid)
            for process in (root, *root.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    program = process.name()
                    seconds[program] = seconds.get(program, 0.0) + times.user + times.system
        return seconds

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


# --- how to talk to them -------------------------------------------------------------------------------------------


def raw_protocol(answers: NDArray[Any]) -> Protocol:
    """Raw tensors, both ways."""
    return Protocol(
        path="/predict",
        encode=lambda sample: ({"Content-Type": "application/octet-stream"}, sample[None].tobytes()),
        decode=lambda body, _: np.frombuffer(body, np.float32).reshape(1, *answers.shape[1:]),
    )


def mlflow_protocol() -> Protocol:
    """`/invocations` with `inputs`, which MLflow's documentation recommends for tensors."""
    return Protocol(
        path="/invocations",
        encode=lambda sample: (
            {"Content-Type": "application/json"}, json.dumps({"inputs": [sample.tolist()]}).encode(),
        ),
        decode=lambda body, _: _from_mlflow(json.loads(body)["predictions"]),
        textual=True,
    )  # fmt: skip


def _from_mlflow(predictions: Any) -> NDArray[Any]:
    values = [next(iter(row.values())) if isinstance(row, dict) else row for row in predictions]
    return np.asarray(values, np.float32).reshape(1, -1)


def triton_protocol(model: str, signature: Any) -> Protocol:
    """KServe v2 with Triton's binary extension, requesting only the first output."""
    first_input, first_output = signature.inputs[0], signature.outputs[0]

    def encode(sample: NDArray[Any]) -> tuple[dict[str, str], bytes]:
        body = sample[None].tobytes()
        head = json.dumps({
            "inputs": [{"name": first_input.name, "shape": [1, *sample.shape], "datatype": first_input.datatype,
                        "parameters": {"binary_data_size": len(body)}}],
            "outputs": [{"name": first_output.name, "parameters": {"binary_data": True}}],
        }).encode()  # fmt: skip
        headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
        return headers, head + body

    def decode(body: bytes, headers: dict[str, str]) -> NDArray[Any]:
        length = int(headers["inference-header-content-length"])
        shape = json.loads(body[:length])["outputs"][0]["shape"]
        return np.frombuffer(body[length:], np.float32).reshape(shape)

    return Protocol(path=f"/v2/models/{model}/infer", encode=encode, decode=decode)


def request_bytes(port: int, path: str, headers: dict[str, str], body: bytes) -> bytes:
    """A complete HTTP/1.1 request."""
    lines = {"Host": f"{HOST}:{port}", **headers, "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def checked_side(
    name: str, subject: Subject, protocol: Protocol, process: Process, port: int, settings: Settings, model: str = ""
) -> Side:  # fmt: skip
    """Turns a running server into a side: sends every sample once and compares the answers with the original model's.

    Raises:
        Failed: an answer has the wrong shape or is not finite.
    """
    pairs = [protocol.encode(sample) for sample in subject.samples]
    answers, lengths, commas = [], set(), set()
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    for headers, body in pairs:
        connection.request("POST", protocol.path, body, headers)
        response = connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise Failed(f"{name} answers {response.status}: {content[:300]!r}")
        answers.append(protocol.decode(content, {key.lower(): value for key, value in response.getheaders()}))
        lengths.add(len(content))
        commas.add(content.count(b","))
    connection.close()
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
        name=name, port=port, process=process, requests=requests, check=check, difference=difference, settings=settings,
        model=model,
    )  # fmt: skip


# --- rivals in Python web servers ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WebRival:
    """A side that is a command: the settings to try, and the command for each."""

    name: str
    tries: tuple[Settings, ...]
    quick: int  # how many of the settings a quick run tries
    command: Callable[[Subject, Champion, Settings, int], list[str]]
    protocol: Callable[[Subject], Protocol]


def _flask(_subject: Subject, _champion: Champion, settings: Settings, port: int) -> list[str]:
    app, threads = "benchmarks.rivals.flask_app:app", str(settings["threads"])
    if settings["server"] == "waitress":
        return [sys.executable, "-m", "waitress", f"--host={HOST}", f"--port={port}", f"--threads={threads}", app]
    return [
        sys.executable, "-m", "gunicorn", "--bind", f"{HOST}:{port}", "--worker-class", "gthread", "--workers",
        str(settings["workers"]), "--threads", threads, "--keep-alive", "75", "--timeout", "0", app,
    ]  # fmt: skip


def _fastapi(_subject: Subject, _champion: Champion, settings: Settings, port: int) -> list[str]:
    return [
        sys.executable, "-m", "uvicorn", "--host", HOST, "--port", str(port), "--workers", str(settings["workers"]),
        "--no-access-log", "--log-level", "warning", "--timeout-keep-alive", "75", "benchmarks.rivals.fastapi_app:app",
    ]  # fmt: skip


def _mlflow(_subject: Subject, champion: Champion, settings: Settings, port: int) -> list[str]:
    return [
        sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", str(champion.logged),
        "--env-manager", "local", "--host", HOST, "--port", str(port), "--workers", str(settings["workers"]),
        "--timeout", "600",
    ]  # fmt: skip


WEB_RIVALS = (
    WebRival(
        name="flask-torch", quick=2, command=_flask, protocol=lambda subject: raw_protocol(subject.answers),
        tries=(
            {"server": "gunicorn", "workers": 2, "threads": 4, "model_threads": 1},
            {"server": "waitress", "workers": 1, "threads": 4, "model_threads": 2},
            {"server": "gunicorn", "workers": 1, "threads": 4, "model_threads": 2},
            {"server": "gunicorn", "workers": 2, "threads": 16, "model_threads": 1},
            {"server": "gunicorn", "workers": 2, "threads": 1, "model_threads": 1},
            {"server": "waitress", "workers": 1, "threads": 16, "model_threads": 1},
        ),
    ),
    WebRival(
        name="fastapi-onnxruntime", quick=2, command=_fastapi, protocol=lambda subject: raw_protocol(subject.answers),
        tries=(
            {"workers": 2, "model_threads": 1},
            {"workers": 1, "model_threads": 2},
            {"workers": 1, "model_threads": 1},
            {"workers": 2, "model_threads": 2},
        ),
    ),
    WebRival(
        name="mlflow-serve", quick=1, command=_mlflow, protocol=lambda _: mlflow_protocol(),
        tries=({"workers": 2, "model_threads": 1}, {"workers": 1, "model_threads": 2}),
    ),
)  # fmt: skip


@contextmanager
def web_rival(
    rival: WebRival, settings: Settings, subject: Subject, champion: Champion, work: Path, extras: Path
) -> Iterator[Side]:
    """Runs a rival with the given settings for as long as the context lasts."""
    port = free_port()
    threads = str(settings["model_threads"])
    variables = {
        **inherited(), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(extras)]), "BENCH_MODEL": str(subject.folder),
        "BENCH_THREADS": threads, "OMP_NUM_THREADS": threads, "MLFLOW_DISABLE_TELEMETRY": "true",
        "NO_PROXY": "*", "no_proxy": "*", "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    command = rival.command(subject, champion, settings, port)
    log = work / f"{rival.name}.log"
    child = start_child(command, environment=variables, log=log, folder=work)
    process = identify(child.pid)
    try:
        _wait_answers(child, port, rival.protocol(subject), subject, log)
        yield checked_side(rival.name, subject, rival.protocol(subject), process, port, settings)
    finally:
        stop(process)


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
            raise Failed(f"{log.stem} answers {response.status}: {content[:500]!r}")
        time.sleep(0.1)
    raise Failed(f"{log.stem} did not start:\n{log.read_text(errors='replace')[-1500:]}")


# --- Triton ---------------------------------------------------------------------------------------------------------


@contextmanager
def by_hand(subject: Subject, environment: ServerEnvironment, work: Path) -> Iterator[Side]:
    """Runs Triton with a hand-written `model.py` and a minimal configuration."""
    import onnx

    signature = signature_of(onnx.load(subject.folder / "model.onnx", load_external_data=False))
    config = pb.ModelConfig(name="by_hand", backend="python", max_batch_size=_MAX_BATCH)
    inputs = ((spec, config.input) for spec in signature.inputs)
    for spec, field_ in (*inputs, (signature.outputs[0], config.output)):
        field_.add(name=spec.name, data_type=datatype_value(spec.datatype), dims=spec.shape[1:])
    config.instance_group.add(count=1, kind=pb.ModelInstanceGroup.KIND_CPU)
    folder = work / "by-hand" / "by_hand"
    (folder / "1").mkdir(parents=True)
    for file in subject.folder.glob("model.onnx*"):
        shutil.copyfile(file, folder / "1" / file.name)
    shutil.copyfile(_RIVALS / "triton_model.py", folder / "1" / "model.py")
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config))
    defaults = Features(cache_mb=0, http_threads=HTTP_THREADS)
    with private_triton("triton-default", subject, folder, environment, work, defaults) as side:
        yield side


@contextmanager
def private_triton(
    name: str, subject: Subject, model: Path, environment: ServerEnvironment, work: Path, features: Features
) -> Iterator[Side]:
    """Runs a bundled server for the model folder `model`."""
    log = work / f"{name}.log"
    with private_server(environment, model.parent, features, log=log) as server:
        with TritonClient(server.grpc) as client:
            client.load(model.name)
        yield _triton(name, subject, server.process, server.ports.http, server.grpc, model.name)


@contextmanager
def champion_with(
    backend: Path, subject: Subject, model: Path, environment: ServerEnvironment, work: Path
) -> Iterator[Side]:
    """Runs the champion's package with another `model.py`, to measure a change of the backend."""
    folder = Path(tempfile.mkdtemp(dir=work)) / model.name
    shutil.copytree(model, folder)
    for file in folder.glob("*/model.py"):
        shutil.copyfile(backend, file)
    with private_triton(f"shiplift:{backend.stem}", subject, folder, environment, work, Features()) as side:
        yield side


def production(subject: Subject, champion: Champion, process: Process, http_port: int, grpc: str) -> Side:
    """Shiplift's champion, as served in production."""
    return _triton("shiplift", subject, process, http_port, grpc, champion.name)


def _triton(name: str, subject: Subject, process: Process, port: int, grpc: str, model: str) -> Side:
    with TritonClient(grpc) as client:
        signature = client.signature(model)
    protocol = triton_protocol(model, signature)
    return checked_side(name, subject, protocol, process, port, {}, model)


def _get(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return body
