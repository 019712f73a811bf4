"""What the engines alone reach on this machine: the most any server around them could give.

Two threads with a one-threaded session each, without a server, a socket or a copy: what is left to a served model's
throughput is the server's cost.
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
    """Samples a second of the promoted file and of fp32, singly and in batches; and the operators it spends them on."""
    promoted = next(champion.glob("*/model.onnx"))
    batches = sorted({1, min(max_batch, 16)})
    found = {}
    for name, file in (("promoted", promoted), ("fp32", subject.folder / "model.onnx")):
        for batch in batches:
            found[f"{name}, batches of {batch}"] = rounded(_rate(file, _batch(subject, batch)) * batch)
    return {"samples_per_s": found, "operators_percent": operators(promoted, _batch(subject, batches[-1]))}


def _batch(subject: Subject, size: int) -> Any:
    return np.concatenate([subject.samples] * (size // len(subject.samples) + 1))[:size]


def _session(file: Path, *, profile: str = "") -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def _rate(file: Path, given: Any) -> float:
    """Runs a second, of two sessions side by side."""
    sessions = [_session(file) for _ in range(_THREADS)]
    asked = {sessions[0].get_inputs()[0].name: given}
    counts = [0] * _THREADS
    for session in sessions:
        session.run(None, asked)
    end = time.perf_counter() + _SECONDS

    def work(at: int) -> None:
        while time.perf_counter() < end:
            sessions[at].run(None, asked)
            counts[at] += 1

    started = time.perf_counter()
    _together(work)
    return sum(counts) / (time.perf_counter() - started)


def _together(work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(at,)) for at in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def operators(file: Path, given: Any) -> dict[str, float]:
    """Shares of the run time by operator, the largest six, as ONNX Runtime's own profile says."""
    import json
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        session = _session(file, profile=f"{folder}/ort")
        for _ in range(5):
            session.run(None, {session.get_inputs()[0].name: given})
        events = json.loads(Path(session.end_profiling()).read_text())
    spent: dict[str, float] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            name = event["args"]["op_name"]
            spent[name] = spent.get(name, 0.0) + event["dur"]
    total = sum(spent.values()) or 1.0
    largest = sorted(spent, key=lambda name: -spent[name])[:6]
    return {name: round(100 * spent[name] / total, 1) for name in largest}
