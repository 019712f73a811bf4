"""`make bench`: what Shiplift promoted against what a team would serve by hand, on one machine, in one run.

Four models are logged in MLflow and released by the embedded stack. Then the same load generator sends the same samples
to production's Triton and to its rivals (`rivals/table.py`), in rounds that alternate the sides. Rivals are first tuned
by trying their settings. Results go to a JSON file after each model, with a plot beside it.
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
from benchmarks.bare import Bare, bare
from benchmarks.ceilings import ceiling
from benchmarks.extras import Missing
from benchmarks.machine import processor
from benchmarks.plot import draw
from benchmarks.protocols import HOST
from benchmarks.ratios import Cell, Facts, Goal, Ratio, Window, percentile, rounded
from benchmarks.rivals.table import RIVALS, SKIPPED, Rival
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
  make bench                                                        everything
  python -m benchmarks.server_comparison --quick --only digits-cnn  a first look at one model
  python -m benchmarks.server_comparison --only encoder --sides litserve-torch-bf16,triton-default
  python -m benchmarks.server_comparison --only boosting --backend OLD_MODEL.py   and the champion with another model.py
"""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long to measure: windows and warm-ups in seconds, and the longest that either may take with slow answers."""

    rounds: int
    concurrencies: tuple[int, ...] = (1, 4, 16, 64)
    warm_s: float = 0.6
    window_s: float = 2.0
    most_s: float = 12.0
    try_s: float = 1.5
    quick: bool = False


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What Shiplift is compared with: rivals by name, and its own champion with other backends."""

    sides: frozenset[str]
    backends: tuple[Path, ...] = ()


SIDES = (*sides.TRITONS, *(rival.name for rival in RIVALS))
_SLOW = frozenset({"triton-analyzer"})  # its search takes minutes, so a quick run has it only by name
QUICK = Effort(rounds=2, warm_s=0.4, window_s=1.2, most_s=5.0, try_s=0.7, quick=True)
FULL = Effort(rounds=5)


class Results(Record):
    """The content of `benchmarks/results/serving.json`."""

    machine: dict[str, Any]
    ratios: list[Ratio]
    goals: list[Goal]
    cells: list[Cell]
    models: dict[str, dict[str, Any]]
    method: dict[str, Any]


# --- measuring ------------------------------------------------------------------------------------------------------


def measure(side: Side, others: list[Side], concurrency: int, round_: int, effort: Effort, work: Path) -> Window:
    """Measures one window of a side, while the others are stopped: some servers poll all the time, even when idle."""
    plan = {
        "host": HOST,
        "port": side.port,
        "requests": str(_requests_file(side, work)),
        "sizes": [len(request) for request in side.requests],
        "concurrency": concurrency,
        "warm_s": effort.warm_s,
        "window_s": effort.window_s,
        "most_s": effort.most_s,
        "least": concurrency,
        "pids": [process.pid for process in side.processes()],
        **side.check,
    }
    with ExitStack() as stopped:
        for other in others:
            stopped.enter_context(other.paused())
        return _window(side, others, plan, round_, work)


def _requests_file(side: Side, work: Path) -> Path:
    file = work / f"{side.name.replace(':', '-')}-{side.port}.requests"
    if not file.is_file():
        file.write_bytes(b"".join(side.requests))
    return file


def _window(side: Side, others: list[Side], plan: dict[str, Any], round_: int, work: Path) -> Window:
    (work / "plan.json").write_text(json.dumps(plan))
    cpu, idle, stats, started = side.cpu_seconds(), _total(others), side.statistics(), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-S", "-E", str(_LOAD), str(work / "plan.json")], capture_output=True, text=True, check=False
    )
    elapsed = time.monotonic() - started
    if done.returncode:
        raise Failed(f"the load generator failed: {done.stderr[-800:]}")
    counted = json.loads(done.stdout)
    latencies = [value / 1000 for value in counted["latencies_us"]]
    correct = counted["answers"] - counted["errors"]
    if correct <= 0 or not latencies:
        raise Failed(f"{side.name} gave no correct answer: {counted['first_error']}")
    used = {name: (value - cpu.get(name, 0.0)) / elapsed for name, value in side.cpu_seconds().items()}
    return Window(
        side=side.name,
        concurrency=int(plan["concurrency"]),
        round=round_,
        throughput_per_s=correct / counted["seconds"],
        p50_ms=percentile(latencies, 50),
        p99_ms=percentile(latencies, 99),
        requests=counted["answers"],
        errors=counted["errors"],
        first_error=counted["first_error"],
        server_cores={k: rounded(v) for k, v in used.items() if v > 0},
        server_cpu_ms=counted["server_cpu_s"] * 1000 / counted["answers"],
        client_cores=counted["client_cpu_s"] / counted["seconds"],
        others_cores=(_total(others) - idle) / elapsed,
        triton=_per_request(stats, side.statistics()),
    )


def _total(sides: list[Side]) -> float:
    return sum(sum(side.cpu_seconds().values()) for side in sides)


def _per_request(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Microseconds per request by part, and the mean batch size."""
    if not after:
        return {}
    increase = {name: after[name] - before[name] for name in after}
    requests, executions = max(1.0, increase.pop("requests")), max(1.0, increase.pop("executions"))
    parts = {name.removesuffix("_ns"): rounded(value / requests / 1000) for name, value in increase.items()}
    return parts | {"mean_batch": rounded(requests / executions)}


def rounds(compared: list[Side], effort: Effort, work: Path, failed: dict[str, str]) -> Iterator[Window]:
    """Measures every side under every load, in rounds: A B C, then C B A.

    A rival that breaks down is left out from then on; `failed` gets the reason, by its name.

    Raises:
        Failed: Shiplift's own server breaks down.
    """
    for round_ in range(effort.rounds):
        for concurrency in effort.concurrencies:
            for side in compared[:: -1 if round_ % 2 else 1]:
                if side.name in failed:
                    continue
                others = [other for other in compared if other is not side]
                try:
                    window = measure(side, others, concurrency, round_, effort, work)
                except Failed as error:
                    if side.name == ratios.OURS:
                        raise
                    failed[side.name] = f"with {concurrency} clients: {error}"
                    tell(f"  {side.name} {failed[side.name]}")
                    continue
                tell(
                    f"  round {round_ + 1}/{effort.rounds}  {concurrency:>2} clients  {side.name:<20}"
                    f"{window.throughput_per_s:>9.0f}/s  p50 {window.p50_ms:>8.2f}  p99 {window.p99_ms:>8.2f} ms"
                    f"  {window.server_cpu_ms:>8.3f} CPU ms"
                    + (f"  {window.errors} ERRORS: {window.first_error}" if window.errors else "")
                )
                yield window


# --- setting up -----------------------------------------------------------------------------------------------------


def tuned_rival(
    rival: Rival,
    subject: Subject,
    champion: Champion,
    effort: Effort,
    work: Path,
    servers: ExitStack,
    running: list[Side],
) -> Side:
    """Starts the rival with its best settings, by throughput at concurrency 16, beside the sides that are running.

    Settings with which it does not work are recorded and left out.

    Raises:
        Failed: it works with none of them.
    """
    best: tuple[float, Side, ExitStack] | None = None
    trials = []
    plan = Effort(rounds=1, warm_s=0.5, window_s=effort.try_s, most_s=6)
    for settings in rival.tries[: rival.quick if effort.quick else None]:
        with ExitStack() as server:
            try:
                side = server.enter_context(sides.rival_side(rival, settings, subject, champion, work, tell))
                wait_until_idle(side)
                window = measure(side, running + ([best[1]] if best else []), 16, 0, plan, work)
            except Failed as error:
                trials.append({**settings, "failed": str(error)})
                tell(f"  {rival.name} {settings}: {error}")
                continue
            trials.append(
                {
                    **settings,
                    "throughput_per_s": rounded(window.throughput_per_s),
                    "p99_ms": rounded(window.p99_ms),
                    "errors": window.errors,
                }
            )
            tell(f"  {rival.name} {settings}: {window.throughput_per_s:.0f}/s")
            if best is None or window.throughput_per_s > best[0]:
                if best:
                    best[2].close()
                best = (window.throughput_per_s, side, server.pop_all())
    if best is None:
        raise Failed("; ".join(dict.fromkeys(trial["failed"] for trial in trials)))
    servers.push(best[2])
    best[1].tried.extend(trials)
    return best[1]


def wait_until_idle(side: Side, *, at_most_s: float = 30) -> None:
    """Waits until a server that already answers has finished starting: all of its workers are idle."""
    before, deadline = sum(side.cpu_seconds().values()), time.monotonic() + at_most_s
    while time.monotonic() < deadline:
        time.sleep(0.4)
        now = sum(side.cpu_seconds().values())
        if now - before < 0.04:
            return
        before = now


def started(
    subject: Subject,
    champion: Champion,
    served: Path,
    environment: ServerEnvironment,
    effort: Effort,
    choice: Choice,
    work: Path,
    servers: ExitStack,
) -> tuple[list[Side], dict[str, dict[str, str]]]:
    """Starts what Shiplift is compared with; returns the sides, and why others are left out, by name."""
    compared: list[Side] = []
    left_out: dict[str, dict[str, str]] = {}
    for backend in choice.backends:
        champion_with = sides.champion_with(backend, subject, served, environment, work, champion.report["precision"])
        compared.append(servers.enter_context(champion_with))
    rivals = {rival.name: rival for rival in RIVALS}
    for name in (name for name in SIDES if name in choice.sides):
        rival = rivals.get(name)
        if reason := SKIPPED.get(name) or (rival.unfit(subject) if rival else ""):
            left_out[name] = {"skipped": reason}
            continue
        try:
            if rival:
                compared.append(tuned_rival(rival, subject, champion, effort, work, servers, compared))
            else:
                compared.append(servers.enter_context(sides.TRITONS[name](subject, environment, work)))
        except (Failed, Missing, ShipliftError) as error:
            left_out[name] = {"failed": str(error)}
            tell(f"  {name} can't be measured: {error}")
    return compared, left_out


def bench(
    subject: Subject, champion: Champion, running: stack.Stack, home: Path, effort: Effort, choice: Choice
) -> tuple[list[Window], dict[str, Any]]:
    """Measures one model; returns its windows, and the details of its sides."""
    environment = ServerEnvironment(Path(running.server_environment))
    served = home / "production" / "models" / champion.name
    with ExitStack() as servers, tempfile.TemporaryDirectory(prefix="shiplift-serving-") as folder:
        work, triton = Path(folder), running.processes["triton"]
        ours = sides.production(subject, champion, triton, running.http_port, f"{stack.HOST}:{running.grpc_port}")
        others, left_out = started(subject, champion, served, environment, effort, choice, work, servers)
        compared = [ours, *others]
        failed: dict[str, str] = {}
        windows = list(rounds(compared, effort, work, failed))
    alone = bare(served, subject.samples, window_s=effort.try_s, windows=effort.rounds)
    tell(f"  {alone.engine} alone: {alone.best:.0f}/s")
    limits = ceiling(subject, served, champion.report["config"]["max_batch"])
    details = {
        "about": subject.about,
        "champion": champion.report,
        "ceiling": limits,
        "bare": alone.model_dump(mode="json"),
        "sides": {side.name: described(side, failed.get(side.name, "")) for side in compared} | left_out,
        "facts": facts(compared, windows, alone, limits["samples_per_s"]).model_dump(mode="json"),
    }
    return windows, details


def described(side: Side, failed: str) -> dict[str, Any]:
    """A side's settings, those it was tried with, and how right its answers are."""
    details = {
        "settings": side.settings,
        "precision": side.precision,
        "tried": side.tried,
        "difference_from_original": rounded(side.difference),
    }
    return details | ({"failed": failed} if failed else {})


def facts(compared: list[Side], windows: list[Window], alone: Bare, ceilings: dict[str, float]) -> Facts:
    """What the goals need to know about a model."""
    return Facts(
        precisions={side.name: side.precision for side in compared if side.name in SIDES},
        ceilings=ceilings,
        bare_per_s=rounded(alone.best),
        growth=ratios.growth(windows),
    )


def machine() -> dict[str, Any]:
    """The machine on which this was measured."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "accelerator": accelerator_of(this_machine()),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
    }


def method(effort: Effort) -> dict[str, Any]:
    """How it was measured, for those who read only the JSON."""
    return asdict(effort) | {
        "client": "benchmarks/load.py: closed loop, one sample per request, HTTP/1.1 keep-alive, one process for all",
        "bodies": "raw tensors where the server takes them, KServe v2 with binary tensors for every Triton, base64 in"
        " JSON for bentoml and mlserver, JSON `inputs` for mlflow-serve (the only formats they accept)",
        "rivals": "fp32 but litserve-torch-bf16; each answer is compared with the original model's once, before",
        "triton": "triton-default: the C backend, dynamic batching, nothing tuned; triton-analyzer: the same with what"
        " Model Analyzer's quick mode finds",
        "others": "every other side is stopped (SIGSTOP) while one is measured: LitServe polls, 0.3 cores when idle",
        "server_cpu_ms": "CPU time of the server's processes in the window over the answers in it",
        "bare": "the promoted file and engine in this process after the rounds, as many requests in flight as the"
        " package has instances, in the best batch size of 1 to 16",
        "boosting": "flask-torch is Flask and LightGBM's own predict: the model has no torch form",
        "tuning": "each rival by throughput at concurrency 16 over the settings under `tried`",
        "ratio": "Shiplift over the other, round by round; median, extremes, 95 % interval",
    }


def tell(message: str) -> None:
    """Prints progress to stderr."""
    print(message, file=sys.stderr, flush=True)


@contextlib.contextmanager
def released(
    names: list[str], home: Path, *, quick: bool
) -> Iterator[tuple[stack.Stack, dict[str, tuple[Subject, Champion] | str]]]:
    """Runs a stack and releases every model; afterwards only production's Triton keeps running.

    Yields the stack and, by model, what was promoted or why it was not.
    """
    running = stack.up(Settings(home=home, free_ports=True), tell)
    try:
        outcomes: dict[str, tuple[Subject, Champion] | str] = {}
        for name in names:
            tell(f"{name}: training, logging, releasing")
            try:
                subject, champion = subjects.release(home, running, name, home / "bench" / name, quick=quick)
                outcomes[name] = subject, champion
                tell(f"  promoted: {json.dumps(champion.report)}")
            except Failed as error:
                outcomes[name] = str(error)
                tell(f"  {error}")
        for part in ("dispatcher", "receiver", "mlflow"):
            stop(running.processes[part])
        yield running, outcomes
    finally:
        stack.down(home)


def write(file: Path, results: Results) -> None:
    """Writes the JSON, and the plot beside it once there is something to draw."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(results.model_dump_json(indent=1) + "\n")
    if results.cells:
        draw(results.cells, file.with_suffix(".svg"))


def table(ratios: list[Ratio]) -> str:
    """The ratios as text."""
    lines = [f"{'model':<12}{'against':<24}{'clients':>8}{'throughput':>12}{'p99':>8}   (Shiplift over the other)"]
    lines += [
        f"{ratio.model:<12}{ratio.against:<24}{ratio.concurrency:>8}{ratio.throughput:>11.2f}x{ratio.p99:>8.2f}"
        for ratio in ratios
    ]
    return "\n".join(lines)


def measured(
    outcome: tuple[Subject, Champion] | str, running: stack.Stack, home: Path, effort: Effort, choice: Choice
) -> tuple[list[Window], dict[str, Any]]:
    """The windows and details of a released model; if it can't be measured, no windows and the reason."""
    if isinstance(outcome, str):
        return [], {"failed": outcome}
    try:
        return bench(*outcome, running, home, effort, choice)
    except (Failed, ShipliftError) as error:
        tell(f"  {error}")
        return [], {"failed": str(error)}


def added(results: Results, name: str, windows: list[Window], details: dict[str, Any]) -> Results:
    """The results with another model."""
    all_ratios = [*results.ratios, *ratios.ratios(name, windows)]
    cells = [*results.cells, *ratios.cells(name, windows)]
    models = results.models | {name: details}
    known = {model: Facts.model_validate(of["facts"]) for model, of in models.items() if "facts" in of}
    goals = ratios.goals(all_ratios, cells, known)
    return results.model_copy(update={"ratios": all_ratios, "cells": cells, "models": models, "goals": goals})


def run(names: list[str], effort: Effort, file: Path, home: Path, choice: Choice) -> Results:
    """Measures all models; results are written after each."""
    results = Results(machine=machine(), ratios=[], goals=[], cells=[], models={}, method=method(effort))
    with released(names, home, quick=effort.quick) as (running, outcomes):
        for name in names:
            tell(f"{name}: measuring")
            results = added(results, name, *measured(outcomes[name], running, home, effort, choice))
            write(file, results)
    return results


def incomplete(results: Results) -> list[str]:
    """What a reader must know before trusting the ratios: sides and models left out, requests that failed."""
    models = [f"{name}: {details['failed']}" for name, details in results.models.items() if "failed" in details]
    left_out = [
        f"{name}, {side}: {outcome['failed']}"
        for name, details in results.models.items()
        for side, outcome in details.get("sides", {}).items()
        if "failed" in outcome
    ]
    errors = [
        f"{cell.model}, {cell.side}, {cell.concurrency} clients: {cell.errors} requests failed ({cell.first_error})"
        for cell in results.cells
        if cell.errors
    ]
    return models + left_out + errors


def chosen_sides(text: str) -> frozenset[str]:
    """The sides in a list with commas.

    Raises:
        argparse.ArgumentTypeError: one of them does not exist.
    """
    names = frozenset(text.split(","))
    if unknown := sorted(names - set(SIDES)):
        raise argparse.ArgumentTypeError(f"there is no side {', '.join(unknown)}; the sides are {', '.join(SIDES)}")
    return names


def main() -> None:
    """Measures, writes the JSON and the plot, prints the ratios and the goals."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short windows, two rounds, few settings tried")
    parser.add_argument("--only", choices=subjects.NAMES, action="append", help="this model (may be repeated)")
    parser.add_argument("--sides", type=chosen_sides, help=f"only these, by comma: {', '.join(SIDES)}")
    parser.add_argument("--rounds", type=int, help="how often to measure every side (5; quick: 2)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes; the plot goes beside it")
    parser.add_argument("--json", action="store_true", help="also print the results as JSON")
    parser.add_argument(
        "--backend",
        type=Path,
        action="append",
        default=[],
        help="also measure the champion with this model.py (may be repeated)",
    )
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else FULL
    if arguments.rounds:
        effort = Effort(**asdict(effort) | {"rounds": arguments.rounds})
    default = frozenset(SIDES) - (_SLOW if arguments.quick else frozenset())
    choice = Choice(sides=arguments.sides or default, backends=tuple(arguments.backend))
    names = [name for name in subjects.NAMES if name in (arguments.only or subjects.NAMES)]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shiplift-bench-") as folder:
        results = run(names, effort, arguments.out, Path(folder) / "home", choice)
    tell(table(results.ratios))
    for goal in results.goals:
        tell(
            f"{'met   ' if goal.met else 'MISSED'} {goal.model} against {goal.against}: {goal.goal}"
            f" ({goal.measured:.2f})" + (f"\n       {goal.limit}" if goal.limit else "")
        )
    tell(f"{arguments.out} and its plot, after {(time.monotonic() - started) / 60:.1f} minutes")
    if arguments.json:
        print(results.model_dump_json())
    if problems := incomplete(results):
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    main()
