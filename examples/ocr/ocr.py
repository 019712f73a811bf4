"""OCR: releases PP-OCRv4's three models and the pipeline that reads a page with them, and measures it beside Flask.

    python examples/ocr/ocr.py

It starts the stack if none runs, installs rapidocr's wheel (its weights are the models) into its working folder, and
prints how both read pages that are rendered here, and how fast, with sixteen clients each.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import mlflow
import numpy as np
import onnxruntime
import yaml
from mlflow.models import ModelSignature
from mlflow.types import Schema, TensorSpec
from pages import files, page
from rapidfuzz.distance import Levenshtein
from reading import crop, decode, turn
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed
from tritonclient import grpc
from weights import characters, graph, installed

import shiplift

HERE = Path(__file__).resolve().parent
SHIPLIFT = str(Path(sys.executable).with_name("shiplift"))
LABELLED, ASKED = range(1000, 1032), range(24)  # seeds of pages: validation data, and those that are measured
Client = Callable[[], Callable[[bytes], str]]  # makes a connection: a JPEG in, its text out
CLIENTS, ROUNDS, EACH = 16, 3, 3  # EACH: requests of each client in a round


@dataclass(frozen=True, kw_only=True)
class Logged:
    """A model with data on which its precisions are scored: the labels are its own answers in fp32."""

    name: str
    metric: str
    inputs: Any
    labels: Callable[[list[Any]], Any]


def tensors(sessions: dict[str, Any]) -> tuple[Any, Any, Any]:
    """What the three models are asked for the labelled pages: pages, heads of lines, and lines of equal width."""
    pages, heads, lines = [], [], []
    for seed in LABELLED:
        decoded = decode(files([page(seed)[0]]))
        heat = sessions["ocr-detect"].run(["heat"], {"image": decoded["page"]})[0]
        cut = crop(decoded["image"], decoded["page"], heat)
        upright = np.tile(np.array([1, 0], dtype=np.float32), (len(cut["heads"]), 1))
        pages.append(decoded["page"])
        heads.append(cut["heads"])
        lines.append(turn(cut["short"], cut["long"], cut["widths"], upright)["upright_short"])
    turned = np.concatenate(heads)
    turned[::2] = turned[::2, ::-1, ::-1]
    return np.concatenate(pages[:8]), turned[:256], np.concatenate(lines)[:128]


def release_models(wheels: Path) -> None:
    """Logs and registers the three models, and follows their releases to the end."""
    graphs = {name: graph(wheels, name) for name in ("ocr-detect", "ocr-direction", "ocr-recognise")}
    sessions = {name: onnxruntime.InferenceSession(model.SerializeToString()) for name, model in graphs.items()}
    pages, heads, lines = tensors(sessions)
    for logged in (
        Logged(name="ocr-detect", metric="mae", inputs=pages, labels=lambda answers: answers[0]),
        Logged(name="ocr-direction", metric="accuracy", inputs=heads, labels=lambda answers: answers[0].argmax(axis=1)),
        Logged(name="ocr-recognise", metric="wer", inputs=lines, labels=lambda answers: answers[0]),
    ):
        release(logged, graphs[logged.name], sessions[logged.name])


def release(logged: Logged, model: Any, session: Any) -> None:
    """Logs and registers a model, and follows its release to the end."""
    answers = session.run(None, {"image": logged.inputs})
    spec = yaml.safe_load((HERE / "shiplift.yaml").read_text())
    spec["data"] = {"metric": logged.metric, "min_samples": len(logged.inputs)}
    with mlflow.start_run(), TemporaryDirectory() as folder:
        np.savez_compressed(Path(folder) / "validation.npz", image=logged.inputs, label=logged.labels(answers))
        (Path(folder) / "shiplift.yaml").write_text(yaml.safe_dump(spec))
        for file in ("validation.npz", "shiplift.yaml"):
            mlflow.log_artifact(str(Path(folder) / file), "shiplift")
        version = mlflow.onnx.log_model(
            model,
            name="model",
            signature=signature(session),
            registered_model_name=logged.name,
            input_example={"image": logged.inputs[:2]},
        ).registered_model_version
    subprocess.run([SHIPLIFT, "release", f"{logged.name}/{version}"], check=True)


def signature(session: Any) -> ModelSignature:
    """The graph's own inputs and outputs, sizes that it leaves open included."""
    dtypes = {"tensor(uint8)": np.uint8, "tensor(int64)": np.int64, "tensor(float)": np.float32}

    def described(tensor: Any) -> TensorSpec:
        sizes = [size if isinstance(size, int) else -1 for size in tensor.shape]
        return TensorSpec(np.dtype(dtypes[tensor.type]), sizes, tensor.name)

    inputs, outputs = (
        Schema([described(each) for each in tensors]) for tensors in (session.get_inputs(), session.get_outputs())
    )
    return ModelSignature(inputs, outputs)


def release_pipeline(wheels: Path) -> None:
    """Registers the pipeline with pages whose text is known, and follows its release to the end."""
    pages = [page(seed) for seed in LABELLED]
    with TemporaryDirectory() as folder:
        place = Path(folder)
        spec = yaml.safe_load((HERE / "shiplift.yaml").read_text())
        spec |= {"data": {"metric": "cer", "min_samples": len(pages)}, "quality": {"min_score": 0.02}}
        (place / "shiplift.yaml").write_text(yaml.safe_dump(spec))
        (place / "pipeline.yaml").write_bytes((HERE / "pipeline.yaml").read_bytes())
        steps = (HERE / "reading.py").read_text()
        (place / "reading.py").write_text(f"{steps}\n\nCHARACTERS[:] = {characters(wheels)!r}\n")
        jpegs = files([jpeg for jpeg, _ in pages])
        np.savez(place / "requests.npz", jpeg=jpegs[:8])
        np.savez(place / "labelled.npz", jpeg=jpegs, label=np.array([text.encode() for _, text in pages]))
        words = ["pipeline", "release", str(place / "pipeline.yaml"), "--example", str(place / "requests.npz")]
        subprocess.run([SHIPLIFT, *words, "--validation", str(place / "labelled.npz")], check=True)


# --- measuring ------------------------------------------------------------------------------------------------------


def asking_shiplift() -> Callable[[bytes], str]:
    """A client of the pipeline in production."""
    served = shiplift.discover("ocr")
    client, name = grpc.InferenceServerClient(served.grpc), served.name

    def ask(jpeg: bytes) -> str:
        tensor = grpc.InferInput("jpeg", [1, len(jpeg)], "UINT8")
        tensor.set_data_from_numpy(files([jpeg]))
        return str(client.infer(name, [tensor]).as_numpy("text")[0, 0].decode())

    return ask


def asking_flask(url: str) -> Callable[[bytes], str]:
    """A client of Flask."""
    client = httpx.Client(timeout=300, trust_env=False)
    return lambda jpeg: client.post(url, content=jpeg).raise_for_status().text


@contextmanager
def flask(wheels: Path, log: Path) -> Iterator[str]:
    """Flask with rapidocr, while the context lasts: its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "gunicorn", "rival:app", "--bind", f"127.0.0.1:{port}", "--timeout", "300"]
    paths = os.pathsep.join([str(HERE), str(wheels)])
    with log.open("w") as output:
        server = subprocess.Popen(
            [*command, "--workers", str(os.cpu_count())],
            env=os.environ | {"PYTHONPATH": paths},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield f"http://127.0.0.1:{port}/read"
        finally:
            server.terminate()
            server.wait(30)


def until_it_answers(client: Client, seconds: float = 60) -> None:
    """Waits for a server that is starting."""
    for attempt in Retrying(
        stop=stop_after_delay(seconds),
        wait=wait_fixed(0.2),
        retry=retry_if_exception_type(httpx.TransportError),
        reraise=True,
    ):
        with attempt:
            client()(page(0)[0])


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one server did with sixteen clients: pages per second, and each request's seconds."""

    rate: float
    seconds: list[float]


def measured(client: Client, jpegs: list[bytes]) -> Round:
    """One round of all clients, each with a connection of its own."""

    def ask(number: int) -> list[float]:
        send, seconds = client(), []
        for at in range(EACH):
            began = time.monotonic()
            send(jpegs[(number * EACH + at) % len(jpegs)])
            seconds.append(time.monotonic() - began)
        return seconds

    began = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as pool:
        seconds = [each for part in pool.map(ask, range(CLIENTS)) for each in part]
    return Round(rate=len(seconds) / (time.monotonic() - began), seconds=seconds)


def error_rate(texts: list[str], expected: list[str]) -> float:
    """Edits per character."""
    edits = sum(Levenshtein.distance(text, right) for text, right in zip(texts, expected, strict=True))
    return edits / sum(len(right) for right in expected)


def compare(clients: dict[str, Client]) -> None:
    """Prints how both read the same pages, and how fast, in turn."""
    pages = [page(seed) for seed in ASKED]
    jpegs, right = [jpeg for jpeg, _ in pages], [text for _, text in pages]
    texts = {name: [client()(jpeg) for jpeg in jpegs] for name, client in clients.items()}
    rounds: dict[str, list[Round]] = {name: [] for name in clients}
    for _ in range(ROUNDS):
        for name, client in clients.items():
            rounds[name].append(measured(client, jpegs))
    for name in clients:
        rate = median(each.rate for each in rounds[name])
        slow = float(np.percentile([second for each in rounds[name] for second in each.seconds], 99))
        print(
            f"{name}: character error rate {error_rate(texts[name], right):.4f}, {rate:.2f} pages/s, p99 {slow:.2f} s"
        )
    theirs = error_rate(texts["shiplift"], texts["flask"])
    equal = sum(one == other for one, other in zip(texts["shiplift"], texts["flask"], strict=True))
    print(f"{equal} of {len(pages)} pages have the same text; {theirs:.4f} of its characters differ")


def main() -> None:
    """Releases and measures."""
    subprocess.run([SHIPLIFT, "up"], check=True)
    mlflow.set_tracking_uri(shiplift.tracking_uri())
    wheels = installed(Path("ocr-wheels").resolve())
    release_models(wheels)
    release_pipeline(wheels)
    print(f"measuring both in turn, {CLIENTS} clients")
    with TemporaryDirectory() as folder, flask(wheels, Path(folder) / "flask.log") as url:
        clients: dict[str, Client] = {"shiplift": asking_shiplift, "flask": partial(asking_flask, url)}
        until_it_answers(clients["flask"])
        compare(clients)


if __name__ == "__main__":
    main()
