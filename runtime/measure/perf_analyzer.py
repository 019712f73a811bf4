"""Runs perf_analyzer and turns its output into load points.

A run is three short windows, either at one concurrency (closed loop: each request follows an answer) or at one rate
(open loop: Poisson arrivals that wait for nothing, so that a queue shows in the latency, not in the rate). This module
decides whether the windows agree, and repeats a run whose windows disagree: perf_analyzer itself prints nothing at all
when it gives up. A point that never becomes stable is kept and marked, and so is one where the client was the
bottleneck.
"""

import contextlib
import csv
import math
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
from shiplift.runtime.host.processor import usable_cores
from shiplift.runtime.measure import perf_analyzer_input
from shiplift.runtime.measure.generator import Demand, LoadTarget, Measurement, Window
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.measurement import WINDOWS, LoadPoint
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.triton.environment import ServerEnvironment

_US = 1000.0
_ANY_STABILITY = "1000000"  # a limit in percent that any three windows meet
_SLACK_S = 30
# The first is printed for a window in which no request ended, by the client's count; the second for one in which none
# succeeded, by the server's.
_NO_REQUESTS, _NO_SUCCESS = "No valid requests recorded", "failed to find the requested model version"
_LONGEST_WINDOW_MS = 30_000  # the measurement fails if a window this long has no answer
_LONGEST_FAILING_MS = 2_000  # and if one this long has no success: by then it is likelier that all requests fail
_CRASHES = 2  # client crashes that are tolerated
_PASS = re.compile(r"Pass \[\d+\] throughput: ([\d.]+) infer/sec(?:\. p\d+ latency: (\d+) usec)?")
_SENT = re.compile(r"Avg send request rate: ([\d.]+) infer/sec")
_LATE = re.compile(r"([\d.]+)% of the requests were delayed")
_OVERHEAD = re.compile(r"Avg client overhead: ([\d.]+)%")
_BUSY_PERCENT = 50  # perf_analyzer's own guidance: above this, the client is the bottleneck
_LATE_PERCENT = 20
_ACHIEVED = 0.95  # the least acceptable share of the requested rate
_SEQUENCES = 64  # in open loop, arrivals are spread over this many


@dataclass(frozen=True, kw_only=True)
class LoadRun:
    """The result of one run of perf_analyzer: its CSV row, its windows, and the client's own use of CPU."""

    row: Mapping[str, str]
    windows: tuple[tuple[float, float], ...]  # inferences per second; latency in ms, at the requested percentile
    sent_per_s: float
    late_percent: float
    overhead_percent: float
    client_cores: float
    seconds: float

    @property
    def spread_percent(self) -> float:
        """The largest deviation of a window's throughput from the mean of all windows."""
        return _spread_percent([rate for rate, _ in self.windows])

    @property
    def latency_spread_percent(self) -> float:
        """The largest deviation of a window's latency from the mean of all windows."""
        return _spread_percent([latency for _, latency in self.windows])

    def stable(self, window: Window) -> bool:
        """Whether the windows agree."""
        spread = max(self.spread_percent, self.latency_spread_percent if window.steady_latency else 0.0)
        return spread <= window.stability_percent

    def saturated(self, demand: Demand, window_ms: int) -> bool:
        """Whether the client was the bottleneck: busy itself, or behind its schedule."""
        if self.overhead_percent > _BUSY_PERCENT or self.client_cores > 0.9 * usable_cores():
            return True
        if not demand.rate_per_s:
            return False
        expected = demand.rate_per_s * window_ms / 1000 * WINDOWS
        # arrivals are random, so fewer may come by chance: up to three standard deviations of a Poisson count
        least = _ACHIEVED - 3 / math.sqrt(max(expected, 1))
        return self.late_percent > _LATE_PERCENT or self.sent_per_s < demand.rate_per_s * least


@dataclass(frozen=True)
class PerfAnalyzer:
    """The perf_analyzer in a server's environment. See `runtime.measure.generator.LoadGenerator`."""

    environment: ServerEnvironment

    @classmethod
    def of(cls, site: Site) -> "PerfAnalyzer":
        """The site's perf_analyzer."""
        return cls(ServerEnvironment(Path(site.server_environment)))

    def write_requests(self, path: Path, signature: Signature, samples: Iterable[Arrays]) -> Path:
        """Writes requests as perf_analyzer's input data."""
        return perf_analyzer_input.write_requests(path, signature, samples)

    def write_sequences(self, path: Path, signature: Signature, sequences: Iterable[Iterable[Arrays]]) -> Path:
        """Writes sequences as perf_analyzer's input data."""
        return perf_analyzer_input.write_sequences(path, signature, sequences)

    def measure(self, target: LoadTarget, demand: Demand, window: Window, work: Path) -> Measurement:
        """Repeats runs until the windows agree; the point is the last run's."""
        runs: list[LoadRun] = []
        while not runs or (len(runs) < window.attempts and not runs[-1].stable(window)):
            run, window = _run_with_longer_windows(self.environment, target, demand, window, work)
            runs.append(run)
        return Measurement(point=_point(runs[-1], demand, window), runs=tuple(vars(run) for run in runs))


def _spread_percent(values: list[float]) -> float:
    mean = sum(values) / len(values) if values else 0.0
    return max(abs(value - mean) for value in values) / mean * 100 if mean else 100.0


class _Crashed(MeasurementFailed):
    """A signal ended perf_analyzer: its gRPC library sometimes aborts during shutdown on a busy machine."""


class _TooShort(MeasurementFailed):
    """No request started and finished within a window: many clients of a slow model wait longer than that."""

    longest_ms = _LONGEST_WINDOW_MS


class _NoneSucceeded(_TooShort):
    """The same according to the server's statistics, which can also mean that all requests fail."""

    longest_ms = _LONGEST_FAILING_MS


def _run_with_longer_windows(
    environment: ServerEnvironment, target: LoadTarget, demand: Demand, window: Window, work: Path
) -> tuple[LoadRun, Window]:
    """A run with at least one answer, and the window it needed: longer windows are tried up to a limit."""
    while True:
        try:
            return _run_despite_crashes(environment, target, demand, window, work), window
        except _TooShort as error:
            if window.window_ms >= error.longest_ms:
                raise
            window = replace(window, window_ms=min(_LONGEST_WINDOW_MS, 4 * window.window_ms))


def _run_despite_crashes(
    environment: ServerEnvironment, target: LoadTarget, demand: Demand, window: Window, work: Path
) -> LoadRun:
    """A run that the client survived. Crashed runs are repeated, because they say nothing about the server."""
    for _ in range(_CRASHES):
        with contextlib.suppress(_Crashed):
            return _run_once(environment, target, demand, window, work)
    return _run_once(environment, target, demand, window, work)


def _run_once(
    environment: ServerEnvironment, target: LoadTarget, demand: Demand, window: Window, work: Path
) -> LoadRun:
    name = f"{target.model}-{demand.concurrency}-{demand.rate_per_s:.0f}"
    out, log = work / f"{name}.csv", work / f"{name}.log"
    out.unlink(missing_ok=True)
    log.unlink(missing_ok=True)
    command = _command(environment, target, demand, window, out)
    before, started = _children_cpu_s(), time.monotonic()
    with measuring():
        code = _execute(environment, command, log, window)
    seconds = time.monotonic() - started
    output = log.read_text(errors="replace") if log.is_file() else ""
    row = _row(out)
    if row is None or code:
        raise _failure(code, output)(
            f"perf_analyzer ended with {code} at {demand}: {_last_lines(output)}",
            do="Run the same command again; if the error persists, send a request with `shiplift infer`.",
        )
    return LoadRun(
        row=row,
        windows=tuple((float(rate), float(latency or 0) / _US) for rate, latency in _PASS.findall(output)),
        sent_per_s=_sent_per_s(output, target, demand),
        late_percent=_last_number(_LATE, output),
        overhead_percent=_last_number(_OVERHEAD, output),
        client_cores=round((_children_cpu_s() - before) / seconds, 3) if seconds else 0.0,
        seconds=round(seconds, 3),
    )


def _failure(code: int, output: str) -> type[MeasurementFailed]:
    if code < 0:
        return _Crashed
    if _NO_REQUESTS in output:
        return _TooShort
    return _NoneSucceeded if _NO_SUCCESS in output else MeasurementFailed


def _children_cpu_s() -> float:
    """CPU time of finished child processes; only perf_analyzer finishes while this process waits for it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _sent_per_s(output: str, target: LoadTarget, demand: Demand) -> float:
    """The samples sent per second; perf_analyzer prints this only if more than 1 % of the requests were late."""
    return _last_number(_SENT, output) * target.batch or demand.rate_per_s


def _last_number(pattern: "re.Pattern[str]", output: str) -> float:
    matches = pattern.findall(output)
    return float(matches[-1]) if matches else 0.0


def _command(
    environment: ServerEnvironment, target: LoadTarget, demand: Demand, window: Window, out: Path
) -> list[str | Path]:
    if not environment.perf_analyzer.is_file():
        raise MissingTool(
            f"perf_analyzer is not at {environment.perf_analyzer}",
            do="Run `shiplift doctor`; it says how to install it.",
        )
    return [
        environment.perf_analyzer,
        "-m",
        target.model,
        "-u",
        target.address,
        "-i",
        window.protocol,
        "--input-data",
        target.requests,
        "-b",
        str(target.batch),
        *options(target, demand),
        "-v",
        "--percentile",
        str(window.percentile),
        "--measurement-interval",
        str(window.window_ms),
        "--stability-percentage",
        _ANY_STABILITY,
        "--max-trials",
        str(WINDOWS),
        "--verbose-csv",
        "-f",
        out,
    ]


def options(target: LoadTarget, demand: Demand) -> list[str]:
    """Turns a demand into command-line options.

    Open loop is asynchronous, so that a full queue does not delay the next arrival. Many sequences take turns there,
    and none sends a request before its previous one is answered.
    """
    if not demand.rate_per_s:
        return ["--concurrency-range", str(demand.concurrency)]
    serial = ["--num-of-sequences", str(_SEQUENCES), "--serial-sequences"] if target.sequences else []
    requests_per_s = demand.rate_per_s / target.batch
    rate = ["--request-rate-range", f"{requests_per_s:g}", "--request-distribution", "poisson", "--async"]
    return [*rate, *serial]


def _execute(environment: ServerEnvironment, command: list[str | Path], log: Path, window: Window) -> int:
    variables = {**inherited(), "LD_LIBRARY_PATH": environment.library_path, "no_proxy": "*", "NO_PROXY": "*"}
    child = start_child(command, environment=variables, log=log)
    limit = window.window_ms / 1000 * WINDOWS * 2 + _SLACK_S
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


def _point(run: LoadRun, demand: Demand, window: Window) -> LoadPoint:
    def ms(*names: str) -> float:
        return sum(float(run.row.get(name) or 0) for name in names) / _US

    def number(name: str) -> float:
        """Fails if a latency is missing: as 0 it would be within every limit."""
        with contextlib.suppress(ValueError):
            if math.isfinite(value := float(run.row.get(name, ""))):
                return value
        raise MeasurementFailed(f"perf_analyzer reported no {name!r} at {demand}", do="Run the same command again.")

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
        stable=run.stable(window),
        spread_percent=round(run.spread_percent, 1),
        rate_per_s=demand.rate_per_s,
        sent_per_s=run.sent_per_s,
        client_cores=run.client_cores,
        client_saturated=run.saturated(demand, window.window_ms),
    )


def _last_lines(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " / ".join(lines[-2:])[:400] or "it printed nothing"
