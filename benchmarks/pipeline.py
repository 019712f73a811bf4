"""Where a pipeline's Python runs best: in one Python process with the model, in Triton's Python backend, or in workers.

A photograph of 1280x720 is decoded and scaled by Python, a small CNN looks at it, and Python puts its scores in order:
quickly (`vote`), so that decoding is most of the work, which releases Python's lock; or for long (`vote_long`). The
three services have the same steps, model, engine and answers:

- `one-process`: Flask under gunicorn, one worker; its threads do everything, with as many as serve best.
- `in-bls`: the pipeline's bundle, but the author's functions are called inside the Python backend's own processes.
- `workers`: Shiplift's bundle: the functions run in worker processes, which get large tensors in shared memory.

    python -m benchmarks.pipeline --help
"""

import argparse
import contextlib
import io
import json
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from benchmarks.composing import steps
from benchmarks.machine import until
from benchmarks.planning.live import Lab
from benchmarks.protocols import HOST, Protocol, request_bytes, triton_protocol
from benchmarks.ratios import Window
from benchmarks.server_comparison import Effort, machine, measure, tell, wait_until_idle
from benchmarks.sides import ROOT, Side, answers_of
from shiplift.pipelines.settings import Settings as Configured
from shiplift.runtime.composition.check import check
from shiplift.runtime.composition.checked import CheckedPipeline
from shiplift.runtime.composition.signature import pipeline_signature
from shiplift.runtime.host.processes import free_port, identify, inherited, start_child, stop
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.serving.bundles.repository import write_bundle
from shiplift.runtime.serving.machine.server import private_server
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.command_line import HTTP_THREADS, Features
from shiplift.runtime.serving.triton.environment import default_root, ensure
from shiplift.runtime.spec.pipeline import Written, parse

RESULTS = Path(__file__).parent / "results" / "pipeline.json"
LABELS = 1000
PIPELINE = f"""
name: photographs
admission: {{python: sandbox}}
inputs: {{jpeg: {{datatype: UINT8, shape: [1, -1]}}}}
outputs: {{best: {{datatype: FP32, shape: [1, {steps.BEST}]}}}}
members: {{cnn: {{model: cnn}}}}
instances: 8
workers: 2
steps:
  decode:
    python: steps.py
    function: decode
    inputs: {{jpeg: jpeg}}
    outputs: {{pixels: {{datatype: FP32, shape: [1, 3, {steps.SIDE}, {steps.SIDE}]}}}}
  look: {{member: cnn, inputs: {{pixels: pixels}}, outputs: {{scores: scores}}}}
  vote:
    python: steps.py
    function: VOTE
    inputs: {{scores: scores}}
    outputs: {{best: {{datatype: FP32, shape: [1, {steps.BEST}]}}}}
"""
_INLINE = '''

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "python"))


def run_python(step, inputs, deadline, slots):
    """As the benchmark has it: the author's functions are called here."""
    import importlib
    module = importlib.import_module(step["python"].removesuffix(".py"))
    return getattr(module, step["function"])(**inputs)
'''
_THREADS = (1, 2, 4, 8)  # of the one process, tried in turn
VOTES = ("vote", "vote_long")


# --- what is served ---------------------------------------------------------------------------------------------------


def network() -> onnx.ModelProto:
    """A CNN of random weights: five convolutions, 1.0e8 multiplications for an image."""
    rng, sizes = np.random.default_rng(0), (3, 24, 48, 96, 128, 192)
    weights, nodes, last = [], [], "pixels"
    for at, (before, after) in enumerate(pairwise(sizes)):
        kernel = rng.normal(size=(after, before, 3, 3), scale=(2 / (9 * before)) ** 0.5)
        weights.append(numpy_helper.from_array(kernel.astype(np.float32), f"w{at}"))
        nodes.append(helper.make_node("Conv", [last, f"w{at}"], [f"c{at}"], strides=[2, 2], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{at}"], [f"r{at}"]))
        last = f"r{at}"
    weights.append(numpy_helper.from_array(rng.normal(size=(sizes[-1], LABELS)).astype(np.float32), "head"))
    nodes += [
        helper.make_node("GlobalAveragePool", [last], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "head"], ["scores"]),
    ]
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["n", 3, steps.SIDE, steps.SIDE])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", LABELS])
    graph = helper.make_graph(nodes, "cnn", [pixels], [scores], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def photographs(count: int) -> list[Any]:
    """JPEG files as arrays of bytes: smooth shapes with some noise."""
    files = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        coarse = Image.fromarray(rng.integers(0, 256, (18, 32, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((1280, 720), Image.Resampling.BICUBIC), dtype=np.int16)
        file = io.BytesIO()
        Image.fromarray(np.clip(smooth + rng.normal(0, 4, smooth.shape), 0, 255).astype(np.uint8)).save(file, "JPEG")
        files.append(np.frombuffer(file.getvalue(), np.uint8))
    return files


def _raw() -> Protocol:
    return Protocol(
        path="/predict",
        encode=lambda jpeg: ({"Content-Type": "image/jpeg"}, jpeg.tobytes()),
        decode=lambda body, _: np.frombuffer(body, np.float32).reshape(1, -1),
    )


def side(name: str, protocol: Protocol, process: Any, port: int, files: list[Any], right: list[Any]) -> Side:
    """A running service whose answers are right, ready to be measured."""
    pairs, lengths = [protocol.encode(file) for file in files], set()
    for (content, headers), expected in zip(answers_of(name, port, protocol.path, pairs), right, strict=True):
        np.testing.assert_allclose(protocol.decode(content, headers), expected, rtol=1e-3, atol=1e-3)
        lengths.add(len(content))
    requests = tuple(request_bytes(port, protocol.path, headers, body) for headers, body in pairs)
    (length,) = lengths
    return Side(
        name=name, port=port, process=process, requests=requests, check={"length": length}, difference=0, settings={}
    )


# --- the three services -----------------------------------------------------------------------------------------------


@contextmanager
def one_process(model: Path, vote: str, threads: int, files: list[Any], right: list[Any], work: Path) -> Iterator[Side]:
    """Everything in one Python process."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "--bind",
        f"{HOST}:{port}",
        "--worker-class",
        "gthread",
        "--workers",
        "1",
        "--threads",
        str(threads),
        "--keep-alive",
        "75",
        "--timeout",
        "0",
        "benchmarks.composing.one_process:app",
    ]
    environment = {**inherited(), "PYTHONPATH": str(ROOT), "BENCH_MODEL": str(model), "BENCH_VOTE": vote}
    child = start_child(command, environment=environment, log=work / "log", folder=ROOT)
    process = identify(child.pid)
    try:
        until(lambda: _listens(port), "the service in one process")
        yield side("one-process", _raw(), process, port, files, right)
    finally:
        stop(process)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


@contextmanager
def bundle(lab: Lab, name: str, vote: str, package: Package, files: list[Any], right: list[Any]) -> Iterator[Side]:
    """The pipeline's bundle on a private server; `in-bls` has the author's functions in the backend's own processes."""
    written: Written = parse(PIPELINE.replace("VOTE", vote))
    source = Path(steps.__file__).read_bytes()
    checked: CheckedPipeline = check(written, {"cnn": package}, {"steps.py": source})
    if checked.problems:
        raise SystemExit("\n".join(map(str, checked.problems)))
    repository = lab.folder / name
    models = write_bundle(repository, written.spec, checked, {"steps.py": source}, lab.store)
    if name == "in-bls":
        folder = repository / written.spec.name / "1"
        (folder / "python").mkdir()
        (folder / "python" / "steps.py").write_bytes(source)
        (folder / "model.py").write_text((folder / "model.py").read_text() + _INLINE)
        models = {served: about for served, about in models.items() if "-python--" not in served}
    features = Features(cache_mb=0, http_threads=HTTP_THREADS)
    with (
        private_server(lab.environment, repository, features, log=lab.folder / f"{name}.log") as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
    ):
        for served in models:
            client.load(served)
        protocol = triton_protocol(written.spec.name, pipeline_signature(written.spec))
        yield side(name, protocol, server.process, server.ports.http, files, right)


# --- measuring --------------------------------------------------------------------------------------------------------


def run(vote: str, effort: Effort, concurrency: int) -> dict[str, Any]:
    """Measures the three in turn; returns what is written."""
    files = photographs(16)
    with tempfile.TemporaryDirectory(prefix="shiplift-pipeline-") as folder, ExitStack() as services:
        environment = ensure(Configured().server_environment or default_root())
        lab = Lab(folder=Path(folder), environment=environment, window_ms=1000)
        model = Path(folder) / "cnn.onnx"
        onnx.save(network(), model)
        right = _answers_by_hand(model, files)
        package = lab.package("cnn", network(), ServingConfig(max_batch=8, queue_delay_us=0, instances=2, threads=1))
        threads = _best_threads(model, vote, files, right, effort, concurrency, lab.folder)
        sides = [
            services.enter_context(one_process(model, vote, threads, files, right, lab.folder)),
            *(services.enter_context(bundle(lab, name, vote, package, files, right)) for name in ("in-bls", "workers")),
        ]
        windows = [
            measure(each, [other for other in sides if other is not each], concurrency, round_, effort, lab.folder)
            for round_ in range(effort.rounds)
            for each in sides[:: -1 if round_ % 2 else 1]
        ]
    return {
        "threads_of_one_process": threads,
        "sides": {each.name: described(each.name, windows) for each in sides},
        "ratios": {
            name: {
                "throughput": _ratio(windows, name, "throughput_per_s"),
                "p99": _ratio(windows, name, "p99_ms"),
            }
            for name in ("one-process", "in-bls")
        },
    }


def _answers_by_hand(model: Path, files: list[Any]) -> list[Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return [steps.vote(session.run(None, steps.decode(file[None]))[0])["best"] for file in files]


def _best_threads(
    model: Path, vote: str, files: list[Any], right: list[Any], effort: Effort, concurrency: int, work: Path
) -> int:
    rates = {}
    for threads in _THREADS:
        with one_process(model, vote, threads, files, right, work) as service:
            wait_until_idle(service)
            rates[threads] = measure(service, [], concurrency, 0, effort, work).throughput_per_s
        tell(f"{vote}: one process, {threads} threads: {rates[threads]:.0f}/s")
    return max(rates, key=rates.__getitem__)


def described(name: str, windows: list[Window]) -> dict[str, Any]:
    """A side's medians and extremes."""
    own = [window for window in windows if window.side == name]
    values = {
        key: [getattr(window, key) for window in own]
        for key in ("throughput_per_s", "p50_ms", "p99_ms", "server_cpu_ms")
    }
    return {
        key: {"median": round(median(each), 2), "low": round(min(each), 2), "high": round(max(each), 2)}
        for key, each in values.items()
    } | {"requests": sum(window.requests for window in own), "errors": sum(window.errors for window in own)}


def _ratio(windows: list[Window], name: str, key: str) -> float:
    """Workers over another side, round by round: the median."""
    by = {(window.side, window.round): getattr(window, key) for window in windows}
    return float(round(median(by["workers", at] / value for (other, at), value in by.items() if other == name), 2))


def main() -> None:
    """Measures, writes the JSON, and prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds of short windows")
    parser.add_argument("--clients", type=int, default=16, help="requests at once (16)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--json", action="store_true", help="also print it")
    arguments = parser.parse_args()
    effort = Effort(rounds=2, warm_s=0.5, window_s=1.5)
    if not arguments.quick:
        effort = Effort(rounds=7, warm_s=1, window_s=4, most_s=20)
    cases = {vote: run(vote, effort, arguments.clients) for vote in VOTES}
    spec = parse(PIPELINE).spec
    results = {
        "machine": machine(),
        "clients": arguments.clients,
        "workers": spec.workers,
        "instances": spec.instances,
        **cases,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    for vote, case in cases.items():
        _show(vote, case)
    if arguments.json:
        print(json.dumps(results))
    if any(each["errors"] for case in cases.values() for each in case["sides"].values()):
        raise SystemExit(1)


def _show(vote: str, case: dict[str, Any]) -> None:
    for name, each in case["sides"].items():
        tell(
            f"{vote:<10} {name:<12} {each['throughput_per_s']['median']:>7.1f}/s  p99 {each['p99_ms']['median']:>7.1f}"
            f" ms  {each['server_cpu_ms']['median']:.1f} CPU ms an answer, {each['errors']} errors"
        )
    for name, ratio in case["ratios"].items():
        tell(f"{vote:<10} workers against {name}: throughput {ratio['throughput']:.2f}x, p99 {ratio['p99']:.2f}")


if __name__ == "__main__":
    main()
