"""The rivals that are separate programs: for each, a line here and a file beside this one.

Each is set up as its own documentation says is fastest, and tried with several settings, of which the best is measured.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.protocols import (
    HOST,
    Protocol,
    base64_protocol,
    embeddings_protocol,
    mlflow_protocol,
    mlserver_protocol,
    raw_protocol,
    triton_protocol,
)
from benchmarks.subjects import Champion, Subject
from shiplift.runtime.model.tensors import datatype
from shiplift.runtime.records.tensor import Signature, TensorSpec

Settings = dict[str, Any]
RivalPrecision = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a command is made from: the Python to run, the model, its settings, and the port to listen on."""

    python: str
    subject: Subject
    champion: Champion
    settings: Settings
    port: int


@dataclass(frozen=True, kw_only=True)
class Rival:
    """A program that serves a model: the settings to try, the command for each, and how to talk to it.

    `requirements` names a file beside this one. With `own_environment` its packages and what they need get a virtual
    environment of their own; otherwise they are added to Shiplift's, without what they need. `unfit` says why a model
    has no such rival.
    """

    name: str
    tries: tuple[Settings, ...]
    quick: int  # how many of the settings a quick run tries
    command: Callable[[Start], list[str]]
    protocol: Callable[[Subject], Protocol]
    requirements: str = "servers.txt"
    own_environment: bool = False
    precision: RivalPrecision = "fp32"
    unfit: Callable[[Subject], str] = lambda _: ""


def _raw(subject: Subject) -> Protocol:
    return raw_protocol(subject.answers)


def _pytriton(subject: Subject) -> Protocol:
    kind = datatype(subject.samples.dtype)
    assert kind is not None
    samples = TensorSpec(name="samples", datatype=kind, shape=(-1, *subject.samples.shape[1:]))
    scores = TensorSpec(name="scores", datatype="FP32", shape=(-1, *subject.answers.shape[1:]))
    return triton_protocol("model", Signature(inputs=(samples,), outputs=(scores,)))


def _program(module: str, *arguments: str) -> Callable[[Start], list[str]]:
    """The command of a file beside this one, which reads port and settings from its environment."""
    return lambda start: [start.python, "-m", f"benchmarks.rivals.{module}", *arguments]


def _flask(start: Start) -> list[str]:
    app, threads = "benchmarks.rivals.flask_app:app", str(start.settings["threads"])
    if start.settings["server"] == "waitress":
        return [
            start.python,
            "-m",
            "waitress",
            f"--host={HOST}",
            f"--port={start.port}",
            f"--threads={threads}",
            app,
        ]
    return [
        start.python,
        "-m",
        "gunicorn",
        "--bind",
        f"{HOST}:{start.port}",
        "--worker-class",
        "gthread",
        "--workers",
        str(start.settings["workers"]),
        "--threads",
        threads,
        "--keep-alive",
        "75",
        "--timeout",
        "0",
        app,
    ]


def _fastapi(start: Start) -> list[str]:
    return [
        start.python,
        "-m",
        "uvicorn",
        "--host",
        HOST,
        "--port",
        str(start.port),
        "--workers",
        str(start.settings["workers"]),
        "--no-access-log",
        "--log-level",
        "warning",
        "--timeout-keep-alive",
        "75",
        "benchmarks.rivals.fastapi_app:app",
    ]


def _mlflow(start: Start) -> list[str]:
    return [
        start.python,
        "-m",
        "mlflow",
        "models",
        "serve",
        "--model-uri",
        str(start.champion.logged),
        "--env-manager",
        "local",
        "--host",
        HOST,
        "--port",
        str(start.port),
        "--workers",
        str(start.settings["workers"]),
        "--timeout",
        "600",
    ]


def _bentoml(start: Start) -> list[str]:
    return [
        start.python,
        "-m",
        "bentoml",
        "serve",
        "benchmarks.rivals.bentoml_app:Model",
        "--host",
        HOST,
        "--port",
        str(start.port),
        "--timeout-keep-alive",
        "75",
    ]


def _without_torch(subject: Subject) -> str:
    return "" if subject.torch else "the model has no torch form"


RIVALS = (
    Rival(
        name="flask-torch",
        quick=2,
        command=_flask,
        protocol=_raw,
        tries=(
            {"server": "gunicorn", "workers": 2, "threads": 4, "model_threads": 1},
            {"server": "waitress", "workers": 1, "threads": 4, "model_threads": 2},
            {"server": "gunicorn", "workers": 1, "threads": 4, "model_threads": 2},
            {"server": "gunicorn", "workers": 2, "threads": 16, "model_threads": 1},
            {"server": "gunicorn", "workers": 2, "threads": 1, "model_threads": 1},
            {"server": "waitress", "workers": 1, "threads": 16, "model_threads": 1},
        ),
    ),
    Rival(
        name="fastapi-onnxruntime",
        quick=2,
        command=_fastapi,
        protocol=_raw,
        tries=(
            {"workers": 2, "model_threads": 1},
            {"workers": 1, "model_threads": 2},
            {"workers": 1, "model_threads": 1},
            {"workers": 2, "model_threads": 2},
        ),
    ),
    Rival(
        name="mlflow-serve",
        quick=1,
        command=_mlflow,
        protocol=lambda _: mlflow_protocol(),
        tries=({"workers": 2, "model_threads": 1}, {"workers": 1, "model_threads": 2}),
    ),
    Rival(
        name="litserve-onnxruntime",
        quick=1,
        command=_program("litserve_app"),
        protocol=_raw,
        requirements="litserve.txt",
        tries=(
            {"engine": "onnxruntime", "batch": 16, "wait_ms": 1, "workers": 1, "api_servers": 1, "model_threads": 2},
            {"engine": "onnxruntime", "batch": 16, "wait_ms": 1, "workers": 2, "api_servers": 1, "model_threads": 1},
            {"engine": "onnxruntime", "batch": 8, "wait_ms": 5, "workers": 1, "api_servers": 1, "model_threads": 2},
            {"engine": "onnxruntime", "batch": 16, "wait_ms": 1, "workers": 1, "api_servers": 2, "model_threads": 1},
        ),
    ),
    Rival(
        name="litserve-torch-bf16",
        quick=1,
        command=_program("litserve_app"),
        protocol=_raw,
        requirements="litserve.txt",
        precision="bf16",
        unfit=_without_torch,
        tries=(
            {
                "engine": "torch-bf16",
                "compile": False,
                "batch": 16,
                "wait_ms": 1,
                "workers": 1,
                "api_servers": 1,
                "model_threads": 2,
            },
            {
                "engine": "torch-bf16",
                "compile": True,
                "batch": 16,
                "wait_ms": 1,
                "workers": 1,
                "api_servers": 1,
                "model_threads": 2,
            },
            {
                "engine": "torch-bf16",
                "compile": True,
                "batch": 8,
                "wait_ms": 5,
                "workers": 1,
                "api_servers": 1,
                "model_threads": 2,
            },
            {
                "engine": "torch-bf16",
                "compile": True,
                "batch": 8,
                "wait_ms": 1,
                "workers": 2,
                "api_servers": 1,
                "model_threads": 1,
            },
        ),
    ),
    Rival(
        name="bentoml",
        quick=1,
        command=_bentoml,
        protocol=lambda subject: base64_protocol(subject.answers),
        requirements="bentoml.txt",
        own_environment=True,
        tries=(
            {"workers": 2, "batch": 16, "latency_ms": 1000, "model_threads": 1},
            {"workers": 1, "batch": 16, "latency_ms": 1000, "model_threads": 2},
            {"workers": 1, "batch": 64, "latency_ms": 10000, "model_threads": 2},
        ),
    ),
    Rival(
        name="ray-serve",
        quick=1,
        command=_program("ray_app"),
        protocol=_raw,
        requirements="ray.txt",
        own_environment=True,
        tries=(
            {"replicas": 1, "cpus": 1, "batch": 16, "wait_ms": 1, "model_threads": 2},
            {"replicas": 2, "cpus": 1, "batch": 8, "wait_ms": 1, "model_threads": 1},
            {"replicas": 1, "cpus": 1, "batch": 16, "wait_ms": 10, "model_threads": 2},
        ),
    ),
    Rival(
        name="mlserver",
        quick=1,
        command=_program("mlserver_app"),
        protocol=lambda subject: mlserver_protocol(subject.answers),
        requirements="mlserver.txt",
        own_environment=True,
        tries=(
            {"parallel_workers": 0, "batch": 16, "wait_ms": 1, "model_threads": 2},
            {"parallel_workers": 2, "batch": 16, "wait_ms": 1, "model_threads": 1},
            {"parallel_workers": 0, "batch": 16, "wait_ms": 10, "model_threads": 2},
        ),
    ),
    Rival(
        name="pytriton",
        quick=1,
        command=_program("pytriton_app"),
        protocol=_pytriton,
        requirements="pytriton.txt",
        own_environment=True,
        tries=(
            {"instances": 1, "batch": 16, "delay_us": 0, "model_threads": 2},
            {"instances": 2, "batch": 16, "delay_us": 0, "model_threads": 1},
            {"instances": 1, "batch": 16, "delay_us": 1000, "model_threads": 2},
        ),
    ),
)
# The same for a sentence encoder that takes text (`make bench-text`).
EMBEDDERS = (
    Rival(
        name="infinity-emb",
        quick=1,
        command=_program("infinity_app"),
        protocol=lambda _: embeddings_protocol(),
        requirements="infinity.txt",
        own_environment=True,
        tries=(
            {"engine": "optimum", "dtype": "float32", "compile": False, "batch": 16, "model_threads": 2},
            {"engine": "optimum", "dtype": "float32", "compile": False, "batch": 8, "model_threads": 2},
            {"engine": "torch", "dtype": "float32", "compile": False, "batch": 16, "model_threads": 2},
            {"engine": "torch", "dtype": "float32", "compile": True, "batch": 16, "model_threads": 2},
        ),
    ),
    Rival(
        name="infinity-emb-bf16",
        quick=1,
        command=_program("infinity_app"),
        protocol=lambda _: embeddings_protocol(),
        requirements="infinity.txt",
        own_environment=True,
        precision="bf16",
        tries=(
            {"engine": "torch", "dtype": "bfloat16", "compile": False, "batch": 16, "model_threads": 2},
            {"engine": "torch", "dtype": "bfloat16", "compile": False, "batch": 8, "model_threads": 2},
            {"engine": "torch", "dtype": "bfloat16", "compile": True, "batch": 16, "model_threads": 2},
        ),
    ),
)
# Rivals that were tried and can't be had, with the reason.
SKIPPED: dict[str, str] = {
    "pytriton": "its Triton runs Python in a stub with a 3.11 of its own, which fails in this 3.11's `multiprocessing` "
    "(`_thread.RLock` has no `_recursion_count`) before it loads a model",
}
