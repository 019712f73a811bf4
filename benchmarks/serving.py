"""`make bench`: what a team would do by hand against what Shiplift promoted, on one machine, in one run.

Four models are logged in MLflow and released by the embedded stack; then production's Triton and four rivals are sent
the same samples by the same load generator, in rounds that alternate the sides. Every rival is tuned first, by trying
its settings. Results go to a JSON file after each model, and to a plot beside it.
"""

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks import ratios, sides, subjects
from benchmarks.ceilings import ceiling
from benchmarks.extras import Missing, extras
from benchmarks.machine import processor
from benchmarks.plot import draw
from benchmarks.ratios import Cell, Goal, Ratio, Window, percentile, rounded
from benchmarks.sides import Side
from benchmarks.subjects import Champion, Failed, Subject
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.settings import Settings
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.host.processes import stop
from shiplift.runtime.records.base import Record
from shiplift.runtime.serving.triton.environment import ServerEnvironment
from shiplift.runtime.targets.machine import accelerator_of, this_machine

RESULTS = Path(__file__).parent / "results" / "serving.json"
_LOAD = Path(__file__).with_name("load.py")
_EXAMPLES = """\
examples:
  make bench                                              everything
  python -m benchmarks.serving --quick --only digits-cnn  a first look at one model
  python -m benchmarks.serving --only boosting --backend OLD_MODEL.py   and the champion with another model.py
"""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long is measured: windows and warm-ups in seconds, and the longest either may take for slow answers."""

    rounds: int
    concurrencies: tuple[int, ...] = (1, 4, 16, 64)
    warm_s: float = 0.6
    window_s: float = 2.0
    most_s: float = 12.0
    try_s: float = 1.5
    quick: bool = False


QUICK = Effort(rounds=2, warm_s=0.4, window_s=1.2, most_s=5.0, try_s=0.7, quick=True)
FULL = Effort(rounds=5)


class Results(Record):
    """`benchmarks/results/serving.json`."""

    machine: dict[str, Any]
    ratios: list[Ratio]
    goals: list[Goal]
    cells: list[Cell]
    models: dict[str, dict[str, Any]]
    method: dict[str, Any]


# --- measuring ------------------------------------------------------------------------------------------------------


def measure(side: Side, others: list[Side], concurrency: int, round_: int, effort: Effort, work: Path) -> Window:
    """One window of one side."""
    plan = {
        "host": sides.HOST, "port": side.port, "requests": str(_requests_of(side, work)),
        "sizes": [len(one) for one in side.requests], "concurrency": concurrency, "warm_s": effort.warm_s,
        "window_s": effort.window_s, "most_s": effort.most_s, "least": concurrency, **side.check,
    }  # fmt: skip
    return _window(side, others, plan, round_, work)


def _requests_of(side: Side, work: Path) -> Path:
    file = work / f"{side.name.replace(':', '-')}-{side.port}.requests"
    if not file.is_file():
        file.write_bytes(b"".join(side.requests))
    return file


def _window(side: Side, others: list[Side], plan: dict[str, Any], round_: int, work: Path) -> Window:
    (work / "plan.json").write_text(json.dumps(plan))
    cpu, idle, stats, began = side.cpu_seconds(), _total(others), side.statistics(), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-S", "-E", str(_LOAD), str(work / "plan.json")], capture_output=True, text=True, check=False
    )
    took = time.monotonic() - began
    if done.returncode:
        raise Failed(f"the load generator failed: {done.stderr[-800:]}")
    found = json.loads(done.stdout)
    latencies = [value / 1000 for value in found["latencies_us"]]
    right = found["answers"] - found["errors"]
    if right <= 0 or not latencies:
        raise Failed(f"{side.name} answered nothing right: {found['first_error']}")
    used = {name: (value - cpu.get(name, 0.0)) / took for name, value in side.cpu_seconds().items()}
    return Window(
        side=side.name, concurrency=int(plan["concurrency"]), round=round_,
        throughput_per_s=right / found["seconds"],
        p50_ms=percentile(latencies, 50), p99_ms=percentile(latencies, 99),
        requests=found["answers"], errors=found["errors"],
        first_error=found["first_error"], server_cores={k: rounded(v) for k, v in used.items() if v > 0},
        client_cores=found["client_cpu_s"] / found["seconds"], others_cores=(_total(others) - idle) / took,
        triton=_per_request(stats, side.statistics()),
    )  # fmt: skip


def _total(them: list[Side]) -> float:
    return sum(sum(one.cpu_seconds().values()) for one in them)


def _per_request(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Microseconds a request by part, and the mean batch."""
    if not after:
        return {}
    grown = {name: after[name] - before[name] for name in after}
    requests, executions = max(1.0, grown.pop("requests")), max(1.0, grown.pop("executions"))
    found = {name.removesuffix("_ns"): rounded(value / requests / 1000) for name, value in grown.items()}
    return found | {"mean_batch": rounded(requests / executions)}


def rounds(found: list[Side], effort: Effort, work: Path) -> Iterator[Window]:
    """Every side under every load, in rounds: A B C, then C B A."""
    for round_ in range(effort.rounds):
        for concurrency in effort.concurrencies:
            for side in found[:: -1 if round_ % 2 else 1]:
                others = [one for one in found if one is not side]
                window = measure(side, others, concurrency, round_, effort, work)
                tell(
                    f"  round {round_ + 1}/{effort.rounds}  {concurrency:>2} clients  {side.name:<20}"
                    f"{window.throughput_per_s:>9.0f}/s  p50 {window.p50_ms:>8.2f}  p99 {window.p99_ms:>8.2f} ms"
                    + (f"  {window.errors} ERRORS: {window.first_error}" if window.errors else "")
                )
                yield window


# --- setting up -----------------------------------------------------------------------------------------------------


def tuned_rival(
    rival: sides.WebRival, subject: Subject, champion: Champion, effort: Effort, work: Path, until: ExitStack
) -> Side:
    """The rival with the best of its settings, by throughput at concurrency 16; the others are stopped."""
    best: tuple[float, Side, ExitStack] | None = None
    tried = []
    packages = extras("servers.txt", tell)
    plan = Effort(rounds=1, warm_s=0.5, window_s=effort.try_s, most_s=6)
    for settings in rival.tries[: rival.quick if effort.quick else None]:
        with ExitStack() as mine:
            side = mine.enter_context(sides.web_rival(rival, settings, subject, champion, work, packages))
            settled(side)
            window = measure(side, [], 16, 0, plan, work)
            tried.append({**settings, "throughput_per_s": rounded(window.throughput_per_s),
                          "p99_ms": rounded(window.p99_ms), "errors": window.errors})  # fmt: skip
            tell(f"  {rival.name} {settings}: {window.throughput_per_s:.0f}/s")
            if best is None or window.throughput_per_s > best[0]:
                if best:
                    best[2].close()
                best = (window.throughput_per_s, side, mine.pop_all())
    assert best is not None
    until.push(best[2])
    best[1].tried.extend(tried)
    return best[1]


def settled(side: Side, *, at_most_s: float = 30) -> None:
    """Waits until a server that answers has also finished starting: all of its workers sit still."""
    before, deadline = sum(side.cpu_seconds().values()), time.monotonic() + at_most_s
    while time.monotonic() < deadline:
        time.sleep(0.4)
        now = sum(side.cpu_seconds().values())
        if now - before < 0.04:
            return
        before = now


def bench(
    subject: Subject, champion: Champion, running: stack.Stack, home: Path, effort: Effort, backends: list[Path]
) -> tuple[list[Window], dict[str, Any]]:
    """All windows of one model, and what is to be told of its sides."""
    environment = ServerEnvironment(Path(running.server_environment))
    with ExitStack() as until, tempfile.TemporaryDirectory(prefix="shiplift-serving-") as folder:
        work = Path(folder)
        triton = running.processes["triton"]
        found = [sides.production(subject, champion, triton, running.http_port, f"{stack.HOST}:{running.grpc_port}")]
        found.append(until.enter_context(sides.by_hand(subject, environment, work)))
        served = home / "production" / "models" / champion.name
        found += [
            until.enter_context(sides.champion_with(backend, subject, served, environment, work))
            for backend in backends
        ]
        failed = {}
        for rival in sides.WEB_RIVALS:
            try:
                found.append(tuned_rival(rival, subject, champion, effort, work, until))
            except (Failed, Missing) as error:
                failed[rival.name] = {"failed": str(error)}
                tell(f"  {rival.name} can't be measured: {error}")
        windows = list(rounds(found, effort, work))
        told = {
            "about": subject.about, "champion": champion.report,
            "sides": {one.name: {"settings": one.settings, "tried": one.tried,
                                 "difference_from_original": rounded(one.difference)} for one in found} | failed,
        }  # fmt: skip
    told["ceiling"] = ceiling(subject, served, champion.report["config"]["max_batch"])
    return windows, told


def machine() -> dict[str, Any]:
    """Where this was measured."""
    return {
        "processor": processor(), "cores": os.cpu_count(),
        "accelerator": accelerator_of(this_machine()),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1), "system": platform.platform(),
        "python": platform.python_version(), "load_before": [round(one, 2) for one in os.getloadavg()],
    }  # fmt: skip


def method(effort: Effort) -> dict[str, Any]:
    """How it was measured, for who reads the JSON alone."""
    return asdict(effort) | {
        "client": "benchmarks/load.py: closed loop, one sample a request, kept-alive HTTP/1.1, one process for all",
        "bodies": "raw tensors for flask-torch and fastapi-onnxruntime, KServe v2 with binary tensors for both Tritons,"
        " JSON `inputs` for mlflow-serve (all it speaks)",
        "boosting": "flask-torch is Flask and LightGBM's own predict: the model has no torch form",
        "tuning": "each web server by throughput at concurrency 16 over the settings under `tried`",
        "ratio": "Shiplift over the other, round by round; median, extremes, 95 % interval",
    }


def tell(said: str) -> None:
    """Progress, on the terminal alone."""
    print(said, file=sys.stderr, flush=True)


@contextlib.contextmanager
def released(
    names: list[str], home: Path, *, quick: bool
) -> Iterator[tuple[stack.Stack, dict[str, tuple[Subject, Champion] | str]]]:
    """A stack that has promoted every model, or why not; of the stack only production's Triton goes on."""
    running = stack.up(Settings(home=home, free_ports=True), tell)
    try:
        made: dict[str, tuple[Subject, Champion] | str] = {}
        for name in names:
            tell(f"{name}: training, logging, releasing")
            try:
                made[name] = found = subjects.release(home, running, name, home / "bench" / name, quick=quick)
                tell(f"  promoted: {json.dumps(found[1].report)}")
            except Failed as error:
                made[name] = str(error)
                tell(f"  {error}")
        for part in ("dispatcher", "receiver", "mlflow"):
            stop(running.processes[part])
        yield running, made
    finally:
        stack.down(home)


def write(file: Path, found: Results) -> None:
    """The JSON, and the plot beside it once there is something to draw."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(found.model_dump_json(indent=1) + "\n")
    if found.cells:
        draw(found.cells, file.with_suffix(".svg"))


def table(found: list[Ratio]) -> str:
    """The ratios as a person reads them."""
    lines = [f"{'model':<12}{'against':<24}{'clients':>8}{'throughput':>12}{'p99':>8}   (Shiplift over the other)"]
    lines += [
        f"{one.model:<12}{one.against:<24}{one.concurrency:>8}{one.throughput:>11.2f}x{one.p99:>8.2f}" for one in found
    ]
    return "\n".join(lines)


def measured(
    made: tuple[Subject, Champion] | str, running: stack.Stack, home: Path, effort: Effort, backends: list[Path]
) -> tuple[list[Window], dict[str, Any]]:
    """A model's windows and story; no windows and the reason where it can't be measured."""
    if isinstance(made, str):
        return [], {"failed": made}
    try:
        return bench(*made, running, home, effort, backends)
    except (Failed, ShipliftError) as error:
        tell(f"  {error}")
        return [], {"failed": str(error)}


def added(results: Results, name: str, windows: list[Window], told: dict[str, Any]) -> Results:
    """The results with one more model."""
    found = [*results.ratios, *ratios.ratios(name, windows)]
    cells = [*results.cells, *ratios.cells(name, windows)]
    models = results.models | {name: told}
    ceilings = {key: one.get("ceiling", {}) for key, one in models.items()}
    return results.model_copy(
        update={"ratios": found, "cells": cells, "models": models, "goals": ratios.goals(found, cells, ceilings)}
    )


def run(names: list[str], effort: Effort, to: Path, home: Path, backends: list[Path]) -> Results:
    """Everything; results are written after each model."""
    results = Results(machine=machine(), ratios=[], goals=[], cells=[], models={}, method=method(effort))
    with released(names, home, quick=effort.quick) as (running, made):
        for name in names:
            tell(f"{name}: measuring")
            results = added(results, name, *measured(made[name], running, home, effort, backends))
            write(to, results)
    return results


def incomplete(results: Results) -> list[str]:
    """What a reader must know before believing the ratios: sides and models left out, requests that failed."""
    models = [f"{name}: {told['failed']}" for name, told in results.models.items() if "failed" in told]
    left_out = [
        f"{name}, {side}: {said['failed']}"
        for name, told in results.models.items()
        for side, said in told.get("sides", {}).items()
        if "failed" in said
    ]
    errors = [
        f"{cell.model}, {cell.side}, {cell.concurrency} clients: {cell.errors} requests failed ({cell.first_error})"
        for cell in results.cells
        if cell.errors
    ]
    return models + left_out + errors


def main() -> None:
    """Measures, writes the JSON and the plot, prints the ratios and the goals."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short windows, two rounds, few settings tried")
    parser.add_argument("--only", choices=subjects.NAMES, action="append", help="this model (may be repeated)")
    parser.add_argument("--rounds", type=int, help="how often every side is measured (5; quick: 2)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes; the plot goes beside it")
    parser.add_argument("--json", action="store_true", help="print the results as JSON, too")
    parser.add_argument("--backend", type=Path, action="append", default=[],
                        help="also measure the champion with this model.py (may be repeated)")  # fmt: skip
    given = parser.parse_args()
    effort = QUICK if given.quick else FULL
    if given.rounds:
        effort = Effort(**asdict(effort) | {"rounds": given.rounds})
    names = [name for name in subjects.NAMES if name in (given.only or subjects.NAMES)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shiplift-bench-") as folder:
        results = run(names, effort, given.out, Path(folder) / "home", given.backend)
    tell(table(results.ratios))
    for goal in results.goals:
        tell(f"{'met   ' if goal.met else 'MISSED'} {goal.model} against {goal.against}: {goal.goal}"
             f" ({goal.measured:.2f})" + (f"\n       {goal.limit}" if goal.limit else ""))  # fmt: skip
    tell(f"{given.out} and its plot, after {(time.monotonic() - began) / 60:.1f} minutes")
    if given.json:
        print(results.model_dump_json())
    if problems := incomplete(results):
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    main()
