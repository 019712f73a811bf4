"""The throughput of the engines without a server, on this machine: an upper limit for any server.

Two threads run a single-threaded session each, without a server, a socket or a copy. The gap to a served model's
throughput is the cost of the server.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ratios import rounded
from benchmarks.subjects import Subject

_SECONDS = 1.0
_THREADS = 2


def ceiling(subject: Subject, champion: Path, max_batch: int) -> dict[str, Any]:
    """Samples per second of the promoted file and of fp32, single and in batches, and its most expensive operators."""
    promoted = next(champion.glob("*/model.onnx"))
    batches = sorted({1, min(max_batch, 16)})
    rates = {}
    for name, file in (("promoted", promoted), ("fp32", subject.folder / "model.onnx")):
        for batch in batches:
            rates[f"{name}, batches of {batch}"] = rounded(_rate(file, _batch(subject, batch)) * batch)
    return {"samples_per_s": rates, "operators_percent": operators(promoted, _batch(subject, batches[-1]))}


def _batch(subject: Subject, size: int) -> Any:
    return np.concatenate([subject.samples] * (size // len(subject.samples) + 1))[:size]


def _session(file: Path, *, profile: str = "") -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def _rate(file: Path, batch: Any) -> float:
    """Runs per second of two sessions side by side."""
    sessions = [_session(file) for _ in range(_THREADS)]
    inputs = {sessions[0].get_inputs()[0].name: batch}
    counts = [0] * _THREADS
    for session in sessions:
        session.run(None, inputs)
    end = time.perf_counter() + _SECONDS

    def work(index: int) -> None:
        while time.perf_counter() < end:
            sessions[index].run(None, inputs)
            counts[index] += 1

    started = time.perf_counter()
    _run_in_threads(work)
    return sum(counts) / (time.perf_counter() - started)


def _run_in_threads(work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(index,)) for index in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def operators(file: Path, batch: Any) -> dict[str, float]:
    """The six operators with the largest shares of the run time, in percent, from ONNX Runtime's profile."""
    import json
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        session = _session(file, profile=f"{folder}/ort")
        for _ in range(5):
            session.run(None, {session.get_inputs()[0].name: batch})
        events = json.loads(Path(session.end_profiling()).read_text())
    spent: dict[str, float] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            name = event["args"]["op_name"]
            spent[name] = spent.get(name, 0.0) + event["dur"]
    total = sum(spent.values()) or 1.0
    largest = sorted(spent, key=lambda name: -spent[name])[:6]
    return {name: round(100 * spent[name] / total, 1) for name in largest}
