"""perf_analyzer in, load points out.

Each run is three short time windows at one concurrency (closed loop: a request follows an answer) or at one rate (open
loop: Poisson arrivals that wait for nothing, so that a queue shows in the latency and not in the rate). Whether the
windows agree is judged here, and a run whose windows don't is repeated: perf_analyzer itself prints nothing at all when
it gives up. What never settles is kept and marked, and so is a run in which the client was the limit.
"""

import base64
import contextlib
import csv
import json
import math
import os
import re
import resource
import struct
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shiplift.runtime.base.errors import MeasurementFailed, MissingTool
from shiplift.runtime.base.progress import measuring
from shiplift.runtime.host.processes import inherited, start_child
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.measurement import LoadPoint
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.triton.environment import ServerEnvironment

_US = 1000.0
_WINDOWS = 3
_ANY = "1000000"  # a stability in percent that every three windows reach
_SLACK_S = 30
_NOTHING = "No valid requests recorded"
_LONGEST_MS = 30_000  # a window in which not even one answer comes is a failure
_CRASHES = 2  # that many are forgiven
_PASS = re.compile(r"Pass \[\d+\] throughput: ([\d.]+) infer/sec(?:\. p99 latency: (\d+) usec)?")
_SENT = re.compile(r"Avg send request rate: ([\d.]+) infer/sec")
_LATE = re.compile(r"([\d.]+)% of the requests were delayed")
_OVERHEAD = re.compile(r"Avg client overhead: ([\d.]+)%")
_BUSY_PERCENT = 50  # perf_analyzer's own guide: above this, the client is what is measured
_LATE_PERCENT = 20
_SHORT = 0.95  # of the rate asked for
_SEQUENCES = 64  # that arrivals at a rate are spread over


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
    """What is measured: a model at an address, with the file of requests to send; `sequences`: it remembers."""

    model: str
    address: str
    requests: Path
    sequences: bool = False


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What the client does: keeps `concurrency` requests under way, or sends at `rate_per_s` whatever comes back.

    Of a model that remembers, `concurrency` are sequences under way, each with one request at a time.
    """

    concurrency: int = 0
    rate_per_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.rate_per_s:.0f} requests/s" if self.rate_per_s else f"concurrency {self.concurrency}"

    @property
    def options(self) -> list[str]:
        """perf_analyzer's options. Asynchronous at a rate: a full queue must not hold back the next arrival."""
        if self.rate_per_s:
            return ["--request-rate-range", f"{self.rate_per_s:g}", "--request-distribution", "poisson", "--async"]
        return ["--concurrency-range", str(self.concurrency)]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of perf_analyzer as it was: its CSV row, its windows and what the client itself needed."""

    row: Mapping[str, str]
    windows: tuple[tuple[float, float], ...]  # inferences per second, p99 in ms
    sent_per_s: float
    late_percent: float
    overhead_percent: float
    client_cores: float
    seconds: float

    @property
    def spread_percent(self) -> float:
        """How far a window's throughput was from their mean, at most."""
        rates = [rate for rate, _ in self.windows]
        mean = sum(rates) / len(rates) if rates else 0.0
        return max(abs(one - mean) for one in rates) / mean * 100 if mean else 100.0

    def saturated(self, demand: Demand, window_ms: int) -> bool:
        """Whether the client was the limit: it was busy itself, or fell behind its schedule."""
        if self.overhead_percent > _BUSY_PERCENT or self.client_cores > 0.9 * len(os.sched_getaffinity(0)):
            return True
        if not demand.rate_per_s:
            return False
        expected = demand.rate_per_s * window_ms / 1000 * _WINDOWS
        short = _SHORT - 3 / math.sqrt(max(expected, 1))  # arrivals are random: so many fewer happen by chance
        return self.late_percent > _LATE_PERCENT or self.sent_per_s < demand.rate_per_s * short


def write_requests(path: Path, signature: Signature, samples: Arrays, *, limit: int = 32) -> Path:
    """The samples as perf_analyzer's input data (one request a sample, sent in turn).

    Format: perf_analyzer's "real input data" JSON; tensors are base64 of their raw bytes, text is text.
    """
    count = min(limit, len(next(iter(samples.values()))))
    return write_each(path, signature, ({name: array[at] for name, array in samples.items()} for at in range(count)))


def write_each(path: Path, signature: Signature, requests: Iterable[Arrays]) -> Path:
    """Like `write_requests`, of single samples by input name, whose shapes may differ."""
    data = [_request(signature, one) for one in requests]
    path.write_text(json.dumps({"data": data}))
    return path


def write_sequences(path: Path, signature: Signature, sequences: Iterable[Iterable[Arrays]]) -> Path:
    """Like `write_each`, of sequences: perf_analyzer sends each one's requests in order under an id of its own."""
    data = [[_request(signature, one) for one in sequence] for sequence in sequences]
    path.write_text(json.dumps({"data": data}))
    return path


def measure(environment: ServerEnvironment, target: Target, concurrency: int, window: Window, work: Path) -> LoadPoint:
    """The model's throughput (inferences per second) and latency percentiles at one concurrency.

    Raises:
        MissingTool: perf_analyzer is not there.
        MeasurementFailed: it died, hung, or a request failed.
    """
    return measured(environment, target, Demand(concurrency=concurrency), window, work)[0]


def measured(
    environment: ServerEnvironment, target: Target, demand: Demand, window: Window, work: Path
) -> tuple[LoadPoint, tuple[Run, ...]]:
    """Like `measure`, in a closed or an open loop, with every run it took; the point is that of the last one."""
    runs: list[Run] = []
    while not runs or (len(runs) < window.attempts and runs[-1].spread_percent > window.stability_percent):
        run, window = _patient(environment, target, demand, window, work)
        runs.append(run)
    return _point(runs[-1], demand, window), tuple(runs)


class _Crashed(MeasurementFailed):
    """A signal ended perf_analyzer: its gRPC library aborts now and then while it shuts down on a busy machine."""


class _TooShort(MeasurementFailed):
    """No request began and ended within a window: many clients of a slow model wait for longer than that."""


def _patient(
    environment: ServerEnvironment, target: Target, demand: Demand, window: Window, work: Path
) -> tuple[Run, Window]:
    """A run in which something was answered, and the window that this took: longer ones are tried up to a limit."""
    while True:
        try:
            return _survived(environment, target, demand, window, work), window
        except _TooShort:
            if window.window_ms >= _LONGEST_MS:
                raise
            window = replace(window, window_ms=min(_LONGEST_MS, 4 * window.window_ms))


def _survived(environment: ServerEnvironment, target: Target, demand: Demand, window: Window, work: Path) -> Run:
    """A run that was not ended by a crash of the client, which says nothing of the server."""
    for _ in range(_CRASHES):
        with contextlib.suppress(_Crashed):
            return _once(environment, target, demand, window, work)
    return _once(environment, target, demand, window, work)


def _once(environment: ServerEnvironment, target: Target, demand: Demand, window: Window, work: Path) -> Run:
    name = f"{target.model}-{demand.concurrency}-{demand.rate_per_s:.0f}"
    out, log = work / f"{name}.csv", work / f"{name}.log"
    out.unlink(missing_ok=True)
    log.unlink(missing_ok=True)
    command = _command(environment, target, demand, window, out)
    before, started = _children_cpu_s(), time.monotonic()
    with measuring():
        code = _run(environment, command, log, window)
    seconds = time.monotonic() - started
    said = log.read_text(errors="replace") if log.is_file() else ""
    row = _row(out)
    if row is None or code:
        raise _failure(code, said)(
            f"perf_analyzer ended with {code} at {demand}: {_last(said)}",
            do="Run the same command again; if it stays, send a request with `shiplift infer`.",
        )
    return Run(
        row=row,
        windows=tuple((float(rate), float(p99 or 0) / _US) for rate, p99 in _PASS.findall(said)),
        sent_per_s=_said(_SENT, said),
        late_percent=_said(_LATE, said),
        overhead_percent=_said(_OVERHEAD, said),
        client_cores=round((_children_cpu_s() - before) / seconds, 3) if seconds else 0.0,
        seconds=round(seconds, 3),
    )


def _failure(code: int, said: str) -> type[MeasurementFailed]:
    if code < 0:
        return _Crashed
    return _TooShort if _NOTHING in said else MeasurementFailed


def _children_cpu_s() -> float:
    """CPU time of the children that have ended; perf_analyzer is the only one that ends while this waits for it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _said(pattern: "re.Pattern[str]", log: str) -> float:
    found = pattern.findall(log)
    return float(found[-1]) if found else 0.0


def _command(
    environment: ServerEnvironment, target: Target, demand: Demand, window: Window, out: Path
) -> list[str | Path]:
    if not environment.perf_analyzer.is_file():
        raise MissingTool(
            f"perf_analyzer is not at {environment.perf_analyzer}", do="Run `shiplift doctor`; it says how to get it."
        )
    return [
        environment.perf_analyzer, "-m", target.model, "-u", target.address, "-i", window.protocol,
        "--input-data", target.requests, *options(target, demand), "-v", "--percentile", "99",
        "--measurement-interval", str(window.window_ms), "--stability-percentage", _ANY,
        "--max-trials", str(_WINDOWS), "--verbose-csv", "-f", out,
    ]  # fmt: skip


def options(target: Target, demand: Demand) -> list[str]:
    """At a rate, requests of many sequences take turns, none before the one ahead of it in its sequence is answered."""
    serial = ["--num-of-sequences", str(_SEQUENCES), "--serial-sequences"] if target.sequences else []
    return [*demand.options, *(serial if demand.rate_per_s else [])]


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


def _point(run: Run, demand: Demand, window: Window) -> LoadPoint:
    def ms(*names: str) -> float:
        return sum(float(run.row.get(name) or 0) for name in names) / _US

    def number(name: str) -> float:
        """A latency that is not there is no latency of 0, which would be within every limit."""
        with contextlib.suppress(ValueError):
            if math.isfinite(found := float(run.row.get(name, ""))):
                return found
        raise MeasurementFailed(f"perf_analyzer gave no {name!r} at {demand}", do="Run it again.")

    throughput = number("Inferences/Second")
    if throughput <= 0:
        raise MeasurementFailed(f"no request was answered at {demand}", do="See the server's log.")
    return LoadPoint(
        concurrency=demand.concurrency,
        throughput_per_s=throughput,
        p50_ms=number("p50 latency") / _US,
        p90_ms=number("p90 latency") / _US,
        p95_ms=number("p95 latency") / _US,
        p99_ms=number("p99 latency") / _US,
        queue_ms=ms("Server Queue"),
        compute_ms=ms("Server Compute Input", "Server Compute Infer", "Server Compute Output"),
        stable=run.spread_percent <= window.stability_percent,
        spread_percent=round(run.spread_percent, 1),
        rate_per_s=demand.rate_per_s,
        sent_per_s=run.sent_per_s,
        client_cores=run.client_cores,
        client_saturated=run.saturated(demand, window.window_ms),
    )


def _request(signature: Signature, sample: Arrays) -> dict[str, Any]:
    return {spec.name: _entry(sample[spec.name], spec.datatype) for spec in signature.inputs}


def _entry(sample: Any, datatype: str) -> Any:
    array = np.asarray(sample)
    shape = list(array.shape) or [1]
    if datatype == "BYTES" and any(isinstance(item, bytes) for item in array.reshape(-1)):
        items = [item if isinstance(item, bytes) else str(item).encode() for item in array.reshape(-1)]
        raw = b"".join(struct.pack("<I", len(item)) + item for item in items)  # Triton's own form of bytes
        return {"content": {"b64": base64.b64encode(raw).decode()}, "shape": shape}
    if datatype == "BYTES":
        return {"content": [str(item) for item in array.reshape(-1)], "shape": shape}
    return {"content": {"b64": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()}, "shape": shape}


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return " / ".join(lines[-2:])[:400] or "it said nothing"
