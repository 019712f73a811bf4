"""perf_analyzer in, load points out.

Each run is three short time windows at one concurrency. Whether they agree is judged here, and a run whose windows
don't is repeated: perf_analyzer itself prints nothing at all when it gives up. What never settles is kept and marked.
Requests come from the input example, so shapes, dtypes and text are real.
"""

import base64
import contextlib
import csv
import json
import math
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from runtime.errors import MeasurementFailed, MissingTool
from runtime.processes import inherited, start_child
from runtime.progress import measuring
from runtime.records import LoadPoint, Signature
from runtime.tensors import Arrays
from runtime.triton.environment import ServerEnvironment

_US = 1000.0
_WINDOWS = 3
_ANY = "1000000"  # a stability in percent that every three windows reach
_SLACK_S = 30
_PASS = re.compile(r"Pass \[\d+\] throughput: ([\d.]+) infer/sec")


@dataclass(frozen=True, kw_only=True)
class Window:
    """How a concurrency is measured: three windows of `window_ms`, again until they agree, `attempts` times at most.

    Agreeing means that every window's throughput is within `stability_percent` of their mean.
    """

    window_ms: int
    stability_percent: float = 20
    attempts: int = 3
    protocol: Literal["grpc", "http"] = "grpc"


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is measured: a model at an address, with the file of requests to send."""

    model: str
    address: str
    requests: Path


def write_requests(path: Path, signature: Signature, samples: Arrays, *, limit: int = 32) -> Path:
    """The samples as perf_analyzer's input data (one request a sample, sent in turn).

    Format: perf_analyzer's "real input data" JSON; tensors are base64 of their raw bytes, text is text.
    """
    count = min(limit, len(next(iter(samples.values()))))
    data = [
        {spec.name: _entry(samples[spec.name][at], spec.datatype) for spec in signature.inputs} for at in range(count)
    ]
    path.write_text(json.dumps({"data": data}))
    return path


def measure(environment: ServerEnvironment, target: Target, concurrency: int, window: Window, work: Path) -> LoadPoint:
    """The model's throughput (inferences per second) and latency percentiles at one concurrency.

    Raises:
        MissingTool: perf_analyzer is not there.
        MeasurementFailed: it died, hung, or a request failed.
    """
    row, spread = _once(environment, target, concurrency, window, work)
    for _ in range(window.attempts - 1):
        if spread <= window.stability_percent:
            break
        row, spread = _once(environment, target, concurrency, window, work)
    return _point(row, concurrency, spread, stable=spread <= window.stability_percent)


def _once(
    environment: ServerEnvironment, target: Target, concurrency: int, window: Window, work: Path
) -> tuple[Mapping[str, str], float]:
    """One run: its CSV row, and how far a window's throughput was from their mean, in percent."""
    out, log = work / f"{target.model}-{concurrency}.csv", work / f"{target.model}-{concurrency}.log"
    out.unlink(missing_ok=True)
    log.unlink(missing_ok=True)
    command = _command(environment, target, concurrency, window, out)
    with measuring():
        code = _run(environment, command, log, window)
    said = log.read_text(errors="replace") if log.is_file() else ""
    row = _row(out)
    if row is None or code:
        raise MeasurementFailed(
            f"perf_analyzer ended with {code} at concurrency {concurrency}: {_last(said)}",
            do="Run the same command again; if it stays, send a request with `shiplift infer`.",
        )
    windows = [float(found) for found in _PASS.findall(said)]
    mean = sum(windows) / len(windows) if windows else 0.0
    return row, max(abs(one - mean) for one in windows) / mean * 100 if mean else 100.0


def _command(
    environment: ServerEnvironment, target: Target, concurrency: int, window: Window, out: Path
) -> list[str | Path]:
    if not environment.perf_analyzer.is_file():
        raise MissingTool(
            f"perf_analyzer is not at {environment.perf_analyzer}", do="Run `shiplift doctor`; it says how to get it."
        )
    return [
        environment.perf_analyzer, "-m", target.model, "-u", target.address, "-i", window.protocol,
        "--input-data", target.requests, "--concurrency-range", str(concurrency), "-v",
        "--measurement-interval", str(window.window_ms), "--stability-percentage", _ANY,
        "--max-trials", str(_WINDOWS), "--verbose-csv", "-f", out,
    ]  # fmt: skip


def _run(environment: ServerEnvironment, command: list[str | Path], log: Path, window: Window) -> int:
    variables = {**inherited(), "LD_LIBRARY_PATH": environment.library_path, "no_proxy": "*", "NO_PROXY": "*"}
    child = start_child(command, environment=variables, log=log)
    limit = window.window_ms / 1000 * _WINDOWS * 2 + _SLACK_S
    try:
        return child.wait(timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise MeasurementFailed(
            f"perf_analyzer did not finish within {limit:.0f} s", do="Run the same command again."
        ) from error
    finally:
        child.kill()
        child.wait()


def _row(out: Path) -> Mapping[str, str] | None:
    if not out.is_file():
        return None
    rows = list(csv.DictReader(out.read_text().splitlines()))
    return rows[-1] if rows else None


def _point(row: Mapping[str, str], concurrency: int, spread: float, *, stable: bool) -> LoadPoint:
    def ms(*names: str) -> float:
        return sum(float(row.get(name) or 0) for name in names) / _US

    def number(name: str) -> float:
        """A latency that is not there is no latency of 0, which would be within every limit."""
        with contextlib.suppress(ValueError):
            if math.isfinite(found := float(row.get(name, ""))):
                return found
        raise MeasurementFailed(f"perf_analyzer gave no {name!r} at concurrency {concurrency}", do="Run it again.")

    throughput = number("Inferences/Second")
    if throughput <= 0:
        raise MeasurementFailed(f"no request was answered at concurrency {concurrency}", do="See the server's log.")
    return LoadPoint(
        concurrency=concurrency,
        throughput_per_s=throughput,
        p50_ms=number("p50 latency") / _US,
        p90_ms=number("p90 latency") / _US,
        p95_ms=number("p95 latency") / _US,
        p99_ms=number("p99 latency") / _US,
        queue_ms=ms("Server Queue"),
        compute_ms=ms("Server Compute Input", "Server Compute Infer", "Server Compute Output"),
        stable=stable,
        spread_percent=round(spread, 1),
    )


def _entry(sample: Any, datatype: str) -> Any:
    array = np.asarray(sample)
    shape = list(array.shape) or [1]
    if datatype == "BYTES":
        return {"content": [str(item) for item in array.reshape(-1)], "shape": shape}
    return {"content": {"b64": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()}, "shape": shape}


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return " / ".join(lines[-2:])[:400] or "it said nothing"
