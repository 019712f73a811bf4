"""perf_analyzer in, load points out.

Each run is three short time windows at one concurrency (closed loop: a request follows an answer) or at one rate (open
loop: Poisson arrivals that wait for nothing, so that a queue shows in the latency and not in the rate). Whether the
windows agree is judged here, and a run whose windows don't is repeated: perf_analyzer itself prints nothing at all when
it gives up. What never settles is kept and marked, and so is a run in which the client was the limit.
"""

import contextlib
import csv
import math
import os
import re
import resource
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shiplift.runtime.base.errors import MeasurementFailed, MissingTool
from shiplift.runtime.base.progress import measuring
from shiplift.runtime.host.processes import inherited, start_child
from shiplift.runtime.measure import perf_analyzer_input
from shiplift.runtime.measure.generator import Demand, LoadTarget, Measurement, Window
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.measurement import LoadPoint
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.triton.environment import ServerEnvironment

_US = 1000.0
_WINDOWS = 3
_ANY = "1000000"  # a stability in percent that every three windows reach
_SLACK_S = 30
_NOTHING = "No valid requests recorded"
_LONGEST_MS = 30_000  # a window in which not even one answer comes is a failure
_CRASHES = 2  # that many are forgiven
_PASS = re.compile(r"Pass \[\d+\] throughput: ([\d.]+) infer/sec(?:\. p\d+ latency: (\d+) usec)?")
_SENT = re.compile(r"Avg send request rate: ([\d.]+) infer/sec")
_LATE = re.compile(r"([\d.]+)% of the requests were delayed")
_OVERHEAD = re.compile(r"Avg client overhead: ([\d.]+)%")
_BUSY_PERCENT = 50  # perf_analyzer's own guide: above this, the client is what is measured
_LATE_PERCENT = 20
_SHORT = 0.95  # of the rate asked for
_SEQUENCES = 64  # that arrivals at a rate are spread over


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of perf_analyzer as it was: its CSV row, its windows and what the client itself needed."""

    row: Mapping[str, str]
    windows: tuple[tuple[float, float], ...]  # inferences per second, latency (the percentile asked for) in ms
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


@dataclass(frozen=True)
class PerfAnalyzer:
    """perf_analyzer of a server's environment. See `runtime.measure.generator.LoadGenerator`."""

    environment: ServerEnvironment

    @classmethod
    def of(cls, site: Site) -> "PerfAnalyzer":
        """The one of a site."""
        return cls(ServerEnvironment(Path(site.server_environment)))

    def write_requests(self, path: Path, signature: Signature, samples: Iterable[Arrays]) -> Path:
        """Requests as its input data."""
        return perf_analyzer_input.write_requests(path, signature, samples)

    def write_sequences(self, path: Path, signature: Signature, sequences: Iterable[Iterable[Arrays]]) -> Path:
        """Sequences as its input data."""
        return perf_analyzer_input.write_sequences(path, signature, sequences)

    def measure(self, target: LoadTarget, demand: Demand, window: Window, work: Path) -> Measurement:
        """Runs it until the windows agree; the point is that of the last run."""
        runs: list[Run] = []
        while not runs or (len(runs) < window.attempts and runs[-1].spread_percent > window.stability_percent):
            run, window = _patient(self.environment, target, demand, window, work)
            runs.append(run)
        return Measurement(point=_point(runs[-1], demand, window), runs=tuple(vars(run) for run in runs))


class _Crashed(MeasurementFailed):
    """A signal ended perf_analyzer: its gRPC library aborts now and then while it shuts down on a busy machine."""


class _TooShort(MeasurementFailed):
    """No request began and ended within a window: many clients of a slow model wait for longer than that."""


def _patient(
    environment: ServerEnvironment, target: LoadTarget, demand: Demand, window: Window, work: Path
) -> tuple[Run, Window]:
    """A run in which something was answered, and the window that this took: longer ones are tried up to a limit."""
    while True:
        try:
            return _survived(environment, target, demand, window, work), window
        except _TooShort:
            if window.window_ms >= _LONGEST_MS:
                raise
            window = replace(window, window_ms=min(_LONGEST_MS, 4 * window.window_ms))


def _survived(environment: ServerEnvironment, target: LoadTarget, demand: Demand, window: Window, work: Path) -> Run:
    """A run that was not ended by a crash of the client, which says nothing of the server."""
    for _ in range(_CRASHES):
        with contextlib.suppress(_Crashed):
            return _once(environment, target, demand, window, work)
    return _once(environment, target, demand, window, work)


def _once(environment: ServerEnvironment, target: LoadTarget, demand: Demand, window: Window, work: Path) -> Run:
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
        windows=tuple((float(rate), float(latency or 0) / _US) for rate, latency in _PASS.findall(said)),
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
    environment: ServerEnvironment, target: LoadTarget, demand: Demand, window: Window, out: Path
) -> list[str | Path]:
    if not environment.perf_analyzer.is_file():
        raise MissingTool(
            f"perf_analyzer is not at {environment.perf_analyzer}", do="Run `shiplift doctor`; it says how to get it."
        )
    return [
        environment.perf_analyzer, "-m", target.model, "-u", target.address, "-i", window.protocol,
        "--input-data", target.requests, *options(target, demand), "-v", "--percentile", str(window.percentile),
        "--measurement-interval", str(window.window_ms), "--stability-percentage", _ANY,
        "--max-trials", str(_WINDOWS), "--verbose-csv", "-f", out,
    ]  # fmt: skip


def options(target: LoadTarget, demand: Demand) -> list[str]:
    """A demand as options. Asynchronous at a rate: a full queue must not hold back the next arrival.

    There, requests of many sequences take turns, none before the one ahead of it in its sequence is answered.
    """
    if not demand.rate_per_s:
        return ["--concurrency-range", str(demand.concurrency)]
    serial = ["--num-of-sequences", str(_SEQUENCES), "--serial-sequences"] if target.sequences else []
    rate = ["--request-rate-range", f"{demand.rate_per_s:g}", "--request-distribution", "poisson", "--async"]
    return [*rate, *serial]


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


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return " / ".join(lines[-2:])[:400] or "it said nothing"
