"""perf_analyzer in, load points out.

One run per concurrency, in short time windows until three in a row agree; requests come from the input example, so
shapes, dtypes and text are real. A measurement that doesn't settle is kept and marked, not hidden.
"""

import base64
import csv
import json
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
_UNSTABLE = 2  # perf_analyzer's exit code when windows do not agree
_SLACK_S = 30


@dataclass(frozen=True, kw_only=True)
class Window:
    """How a concurrency is measured: windows of `window_ms` until three agree within `stability_percent`."""

    window_ms: int
    stability_percent: float = 20
    max_windows: int = 8
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
    data = [{spec.name: _entry(samples[spec.name][at], spec.datatype) for spec in signature.inputs} for at in range(count)]
    path.write_text(json.dumps({"data": data}))
    return path


def measure(environment: ServerEnvironment, target: Target, concurrency: int, window: Window, work: Path) -> LoadPoint:
    """The model's throughput (inferences per second) and latency percentiles at one concurrency.

    Raises:
        MissingTool: perf_analyzer is not there.
        MeasurementFailed: it died, hung, or a request failed.
    """
    out = work / f"{target.model}-{concurrency}.csv"
    out.unlink(missing_ok=True)
    log = work / f"{target.model}-{concurrency}.log"
    log.unlink(missing_ok=True)
    with measuring():
        code = _run(environment, _command(environment, target, concurrency, window, out), log, window)
    said = log.read_text(errors="replace") if log.is_file() else ""
    row = _row(out)
    if code == _UNSTABLE and row is None:
        row = _from_text(said, concurrency)
    if row is None or code not in (0, _UNSTABLE):
        raise MeasurementFailed(
            f"perf_analyzer ended with {code} at concurrency {concurrency}: {_last(said)}",
            do="Run the same command again; if it stays, send a request with `shiplift infer`.",
        )
    return _point(row, concurrency, stable=code == 0)


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
        "--measurement-interval", str(window.window_ms), "--stability-percentage", str(window.stability_percent),
        "--max-trials", str(window.max_windows), "--verbose-csv", "-f", out,
    ]  # fmt: skip


def _run(environment: ServerEnvironment, command: list[str | Path], log: Path, window: Window) -> int:
    variables = {**inherited(), "LD_LIBRARY_PATH": environment.library_path, "no_proxy": "*", "NO_PROXY": "*"}
    child = start_child(command, environment=variables, log=log)
    limit = window.window_ms / 1000 * window.max_windows * 2 + _SLACK_S
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


def _from_text(said: str, concurrency: int) -> Mapping[str, str] | None:
    """An unsettled run writes no CSV, but it prints its windows: the last one, as a CSV row."""
    found: dict[str, str] = {"Concurrency": str(concurrency)}
    names = {"Throughput:": "Inferences/Second", "Avg latency:": "Avg latency"}
    names |= {f"p{p} latency:": f"p{p} latency" for p in (50, 90, 95, 99)}
    for line in said.splitlines():
        for start, name in names.items():
            if line.strip().startswith(start):
                found[name] = line.split(":", 1)[1].split()[0]
    return found if "Inferences/Second" in found and "p99 latency" in found else None


def _point(row: Mapping[str, str], concurrency: int, *, stable: bool) -> LoadPoint:
    def ms(*names: str) -> float:
        return sum(float(row.get(name) or 0) for name in names) / _US

    throughput = float(row["Inferences/Second"])
    if throughput <= 0:
        raise MeasurementFailed(f"no request was answered at concurrency {concurrency}", do="See the server's log.")
    return LoadPoint(
        concurrency=concurrency,
        throughput_per_s=throughput,
        p50_ms=ms("p50 latency"),
        p90_ms=ms("p90 latency"),
        p95_ms=ms("p95 latency"),
        p99_ms=ms("p99 latency"),
        queue_ms=ms("Server Queue"),
        compute_ms=ms("Server Compute Input", "Server Compute Infer", "Server Compute Output"),
        stable=stable,
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


