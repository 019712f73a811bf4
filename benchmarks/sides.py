"""The five ways to serve a model that `make bench` compares: how each starts, how it is asked, how it is tuned.

Each side runs on a loopback port, speaks HTTP/1.1 with kept-alive connections, and is sent the same samples, one a
request, in the fastest body it understands: raw tensors for Flask, FastAPI and Triton (its binary extension), JSON
for MLflow's server, which knows nothing else.
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
_MAX_BATCH = 64  # of the hand-written configuration
Settings = dict[str, Any]
Decode = Callable[[bytes, dict[str, str]], NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Speech:
    """How a side is asked: the path, the headers and body of a sample's request, and how its answer is read."""

    path: str
    encode: Callable[[NDArray[Any]], tuple[dict[str, str], bytes]]
    decode: Decode
    textual: bool = False  # numbers written as text: the length of an answer says nothing


@dataclass(frozen=True, kw_only=True)
class Side:
    """A running server, ready to be measured. `check` is the load generator's: what every answer looks like."""

    name: str
    port: int
    process: Process
    requests: tuple[bytes, ...]
    check: dict[str, int]
    difference: float
    settings: Settings
    model: str = ""  # Triton's name of it, where statistics can be asked for
    tried: list[dict[str, Any]] = field(default_factory=list)

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time of its processes so far, by program."""
        found: dict[str, float] = {}
        with contextlib.suppress(psutil.Error):
            own = psutil.Process(self.process.pid)
            for one in (own, *own.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = one.cpu_times()
                    program = one.name()
                    found[program] = found.get(program, 0.0) + times.user + times.system
        return found

    def statistics(self) -> dict[str, float]:
        """Triton's own counters of the model: requests, executions, and nanoseconds by part; empty elsewhere."""
        if not self.model:
            return {}
        said = json.loads(_get(self.port, f"/v2/models/{self.model}/stats"))["model_stats"]
        stats = [one["inference_stats"] for one in said]
        parts = ("queue", "compute_input", "compute_infer", "compute_output")
        found = {f"{part}_ns": float(sum(one[part].get("ns", 0) for one in stats)) for part in parts}
        found["requests"] = float(sum(one["success"].get("count", 0) for one in stats))
        found["executions"] = float(sum(one.get("execution_count", 0) for one in said))
        return found


# --- how they are spoken to -----------------------------------------------------------------------------------------


def raw_speech(answers: NDArray[Any]) -> Speech:
    """Tensors as they lie in memory, both ways."""
    return Speech(
        path="/predict",
        encode=lambda sample: ({"Content-Type": "application/octet-stream"}, sample[None].tobytes()),
        decode=lambda body, _: np.frombuffer(body, np.float32).reshape(1, *answers.shape[1:]),
    )


def mlflow_speech() -> Speech:
    """`/invocations` with `inputs`, as MLflow's documentation says for tensors."""
    return Speech(
        path="/invocations",
        encode=lambda sample: (
            {"Content-Type": "application/json"}, json.dumps({"inputs": [sample.tolist()]}).encode(),
        ),
        decode=lambda body, _: _from_mlflow(json.loads(body)["predictions"]),
        textual=True,
    )  # fmt: skip


def _from_mlflow(said: Any) -> NDArray[Any]:
    values = [next(iter(row.values())) if isinstance(row, dict) else row for row in said]
    return np.asarray(values, np.float32).reshape(1, -1)


def triton_speech(model: str, signature: Any) -> Speech:
    """KServe v2 with Triton's binary extension, asking for the first output."""
    given, wanted = signature.inputs[0], signature.outputs[0]

    def encode(sample: NDArray[Any]) -> tuple[dict[str, str], bytes]:
        body = sample[None].tobytes()
        head = json.dumps({
            "inputs": [{"name": given.name, "shape": [1, *sample.shape], "datatype": given.datatype,
                        "parameters": {"binary_data_size": len(body)}}],
            "outputs": [{"name": wanted.name, "parameters": {"binary_data": True}}],
        }).encode()  # fmt: skip
        said = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
        return said, head + body

    def decode(body: bytes, headers: dict[str, str]) -> NDArray[Any]:
        at = int(headers["inference-header-content-length"])
        shape = json.loads(body[:at])["outputs"][0]["shape"]
        return np.frombuffer(body[at:], np.float32).reshape(shape)

    return Speech(path=f"/v2/models/{model}/infer", encode=encode, decode=decode)


def request_bytes(port: int, path: str, headers: dict[str, str], body: bytes) -> bytes:
    """A whole HTTP/1.1 request."""
    said = {"Host": f"{HOST}:{port}", **headers, "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in said.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def introduced(
    name: str, subject: Subject, speech: Speech, process: Process, port: int, settings: Settings, model: str = ""
) -> Side:  # fmt: skip
    """A side from a server that is up: every sample asked once, every answer compared with the original model's.

    Raises:
        Failed: an answer has another shape, or is no number.
    """
    pairs = [speech.encode(sample) for sample in subject.samples]
    answers, lengths, commas = [], set(), set()
    link = http.client.HTTPConnection(HOST, port, timeout=60)
    for headers, body in pairs:
        link.request("POST", speech.path, body, headers)
        said = link.getresponse()
        got = said.read()
        if said.status != 200:
            raise Failed(f"{name} answers {said.status}: {got[:300]!r}")
        answers.append(speech.decode(got, {key.lower(): value for key, value in said.getheaders()}))
        lengths.add(len(got))
        commas.add(got.count(b","))
    link.close()
    found = np.concatenate(answers)
    if found.shape != subject.answers.shape or not np.isfinite(found).all():
        raise Failed(f"{name} answers with {found.shape}, not {subject.answers.shape}")
    check = {"commas": commas.pop()} if speech.textual else {"length": lengths.pop()}
    if commas if speech.textual else lengths:
        raise Failed(f"{name}: answers differ in shape")
    apart = float(np.abs(found - subject.answers).max() / np.abs(subject.answers).max())
    requests = tuple(request_bytes(port, speech.path, headers, body) for headers, body in pairs)
    return Side(
        name=name, port=port, process=process, requests=requests, check=check, difference=apart, settings=settings,
        model=model,
    )  # fmt: skip


# --- rivals that run in a web server of Python ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WebRival:
    """A side that is a command: which settings are worth trying, and the command of one."""

    name: str
    tries: tuple[Settings, ...]
    quick: int  # how many of the tries a quick run takes
    command: Callable[[Subject, Champion, Settings, int], list[str]]
    speech: Callable[[Subject], Speech]


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
        name="flask-torch", quick=2, command=_flask, speech=lambda subject: raw_speech(subject.answers),
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
        name="fastapi-onnxruntime", quick=2, command=_fastapi, speech=lambda subject: raw_speech(subject.answers),
        tries=(
            {"workers": 2, "model_threads": 1},
            {"workers": 1, "model_threads": 2},
            {"workers": 1, "model_threads": 1},
            {"workers": 2, "model_threads": 2},
        ),
    ),
    WebRival(
        name="mlflow-serve", quick=1, command=_mlflow, speech=lambda _: mlflow_speech(),
        tries=({"workers": 2, "model_threads": 1}, {"workers": 1, "model_threads": 2}),
    ),
)  # fmt: skip


@contextmanager
def web_rival(
    rival: WebRival, settings: Settings, subject: Subject, champion: Champion, work: Path, extras: Path
) -> Iterator[Side]:
    """One of them with one setting, for as long as the context lasts."""
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
        _wait_answers(child, port, rival.speech(subject), subject, log)
        yield introduced(rival.name, subject, rival.speech(subject), process, port, settings)
    finally:
        stop(process)


def _wait_answers(child: "subprocess.Popen[bytes]", port: int, speech: Speech, subject: Subject, log: Path) -> None:
    headers, body = speech.encode(subject.samples[0])
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and child.poll() is None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            link = http.client.HTTPConnection(HOST, port, timeout=30)
            link.request("POST", speech.path, body, headers)
            said = link.getresponse()
            got = said.read()
            link.close()
            if said.status == 200:
                return
            raise Failed(f"{log.stem} answers {said.status}: {got[:500]!r}")
        time.sleep(0.1)
    raise Failed(f"{log.stem} did not come up:\n{log.read_text(errors='replace')[-1500:]}")


# --- Triton ---------------------------------------------------------------------------------------------------------


@contextmanager
def by_hand(subject: Subject, environment: ServerEnvironment, work: Path) -> Iterator[Side]:
    """Triton with a hand-written `model.py` and a configuration that says no more than it must."""
    import onnx

    signature = signature_of(onnx.load(subject.folder / "model.onnx", load_external_data=False))
    config = pb.ModelConfig(name="by_hand", backend="python", max_batch_size=_MAX_BATCH)
    for spec, to in (*((one, config.input) for one in signature.inputs), (signature.outputs[0], config.output)):
        to.add(name=spec.name, data_type=datatype_value(spec.datatype), dims=spec.shape[1:])
    config.instance_group.add(count=1, kind=pb.ModelInstanceGroup.KIND_CPU)
    folder = work / "by-hand" / "by_hand"
    (folder / "1").mkdir(parents=True)
    for file in subject.folder.glob("model.onnx*"):
        shutil.copyfile(file, folder / "1" / file.name)
    shutil.copyfile(_RIVALS / "triton_model.py", folder / "1" / "model.py")
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config))
    as_it_comes = Features(cache_mb=0, http_threads=HTTP_THREADS)
    with private_triton("triton-default", subject, folder, environment, work, as_it_comes) as side:
        yield side


@contextmanager
def private_triton(
    name: str, subject: Subject, model: Path, environment: ServerEnvironment, work: Path, features: Features
) -> Iterator[Side]:
    """A bundled server of its own for the model folder `model`."""
    log = work / f"{name}.log"
    with private_server(environment, model.parent, features, log=log) as server:
        with TritonClient(server.grpc) as client:
            client.load(model.name)
        yield _triton(name, subject, server.process, server.ports.http, server.grpc, model.name)


@contextmanager
def champion_with(
    backend: Path, subject: Subject, model: Path, environment: ServerEnvironment, work: Path
) -> Iterator[Side]:
    """The champion's package with another `model.py`: what a change of the backend is worth."""
    folder = Path(tempfile.mkdtemp(dir=work)) / model.name
    shutil.copytree(model, folder)
    for file in folder.glob("*/model.py"):
        shutil.copyfile(backend, file)
    with private_triton(f"shiplift:{backend.stem}", subject, folder, environment, work, Features()) as side:
        yield side


def production(subject: Subject, champion: Champion, process: Process, http_port: int, grpc: str) -> Side:
    """Shiplift's champion, where it was promoted to."""
    return _triton("shiplift", subject, process, http_port, grpc, champion.name)


def _triton(name: str, subject: Subject, process: Process, port: int, grpc: str, model: str) -> Side:
    with TritonClient(grpc) as client:
        signature = client.signature(model)
    speech = triton_speech(model, signature)
    return introduced(name, subject, speech, process, port, {}, model)


def _get(port: int, path: str) -> bytes:
    link = http.client.HTTPConnection(HOST, port, timeout=30)
    link.request("GET", path)
    body = link.getresponse().read()
    link.close()
    return body
