"""`make bench-planner`: plans of pipelines against trying everything, against the worst case, and against a server.

Each DAG is planned, and every combination of the same options with fewer cores is simulated, cheapest first: the first
that holds the limit is the optimum. An option that breaks the limit although all other members take no time is left
out of them. `--live` plans pipelines of real models instead, and measures them on the bundled Triton (a quarter of an
hour, and nothing else should run); the figures of earlier runs of either part stay in the results.
"""

import argparse
import heapq
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import processor
from benchmarks.planning.dags import DAGS, Dag
from shiplift.runtime.planning.options import Problem, options_of
from shiplift.runtime.planning.plan import Plan, plan
from shiplift.runtime.planning.search import SettingsSearch
from shiplift.runtime.planning.settings import MemberSettings
from shiplift.runtime.planning.simulation import simulate

RESULTS = Path(__file__).parent / "results" / "planner.json"
_MOST_TRIED = {"full": 50_000, "quick": 300}
Options = list[tuple[MemberSettings, ...]]


def possible(search: SettingsSearch) -> Options:
    """Every option of each member that meets the limit by itself, cheapest first."""
    return [
        tuple(
            option for option in options_of(search.problem, member, search.scenario) if _holds(search, {member: option})
        )
        for member in search.members
    ]


def _holds(search: SettingsSearch, settings: dict[str, MemberSettings]) -> bool:
    """Whether these settings hold the limit; members without any answer at once."""
    problem = search.problem
    outcome = simulate(problem.graph, search.scenario, problem.profiles, settings, limit_ms=search.limit_ms)
    return outcome.percentile_ms(99) <= search.limit_ms


def by_cores(options: Options) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Every combination of options as their numbers, with its cores, ascending."""

    def cores(choice: tuple[int, ...]) -> float:
        return sum(each[at].cores for each, at in zip(options, choice, strict=True))

    first = tuple(0 for _ in options)
    heap, seen = [(cores(first), first)], {first}
    while heap:
        cost, choice = heapq.heappop(heap)
        yield cost, choice
        for member, each in enumerate(options):
            following = (*choice[:member], choice[member] + 1, *choice[member + 1 :])
            if following[member] < len(each) and following not in seen:
                seen.add(following)
                heapq.heappush(heap, (cores(following), following))


def optimum(search: SettingsSearch, ours: float, most: int) -> tuple[float | None, int]:
    """The fewest cores of any combination that holds the limit, and how many were tried; None: `most` were not enough.

    `ours` is a cost that is known to do.
    """
    tried, options = 0, possible(search)
    for cost, choice in by_cores(options) if all(options) else ():
        if cost >= ours:
            break
        if tried == most:
            return None, tried
        tried += 1
        settings = {member: each[at] for member, each, at in zip(search.members, options, choice, strict=True)}
        if _holds(search, settings):
            return cost, tried
    return ours, tried


def measure(dag: Dag, seed: int, most: int) -> dict[str, Any]:
    """Plans a DAG, and looks for something cheaper."""
    problem = dag.problem(seed)
    started = time.process_time()
    made = plan(problem)
    seconds = time.process_time() - started
    best, tried = _optimum_of(problem, most) if dag.tried else (None, 0)
    best = best + made.workers if best else None  # the search is for the members' cores
    return {
        "plan": json.loads(made.model_dump_json()),
        "cpu_s": round(seconds, 2),
        "cores": made.cores,
        "optimal_cores": best,
        "tried": tried,
        "over_optimum": round(made.cores / best, 3) if best else None,
        "worst_case_ratio": round(made.worst_case_cores / made.cores, 2),
    }


def _optimum_of(problem: Problem, most: int) -> tuple[float | None, int]:
    """The optimum under the limit that the plan was found with: one that other requests needed may be tighter."""
    search = SettingsSearch(problem)
    return optimum(search, search.cost(search.cheapest())[0], most)


def goals(dags: dict[str, dict[str, Any]], live: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Each goal, and whether it is met; `measured` is None where it was not measured."""
    judged = []
    for name, row in dags.items():
        judged += [
            _goal(name, "within 5 % of the optimum's cores", row["over_optimum"], most=1.05),
            _goal(name, "at least 2x cheaper than the worst case for every member", row["worst_case_ratio"], least=2),
            _goal(name, "planned in under 60 s of one core", row["cpu_s"], most=60),
        ]
    for name, row in (live or {}).get("pipelines", {}).items():
        off = row["p99_off_percent"]
        judged.append(_goal(f"live {name}", "measured p99 within 15 % of the predicted, in percent", off, most=15))
    return judged


def _goal(
    name: str, goal: str, measured: float | None, *, least: float = -math.inf, most: float = math.inf
) -> dict[str, Any]:
    met = None if measured is None else least <= measured <= most
    return {"dag": name, "goal": goal, "measured": measured, "met": met}


def table(dags: dict[str, dict[str, Any]]) -> Table:
    """A row for each DAG."""
    rows = Table(
        "DAG", "p99 (limit), ms", "cores", "optimum", "tried", "worst case", "CPU s", box=None, header_style="bold"
    )
    for name, row in dags.items():
        made = Plan.model_validate(row["plan"])
        best = f"{row['optimal_cores']:g}" if row["optimal_cores"] else "-"
        rows.add_row(
            name,
            f"{made.p99_ms:.1f} ({made.limit_p99_ms:g})",
            f"{row['cores']:g}",
            best,
            str(row["tried"]),
            f"{row['worst_case_ratio']}x",
            f"{row['cpu_s']:g}",
        )
    return rows


def live_table(pipelines: dict[str, dict[str, Any]]) -> Table:
    """A row for each pipeline that was measured."""
    rows = Table("pipeline", "runs as", "p50, ms", "predicted", "p99, ms", "predicted", box=None, header_style="bold")
    for name, row in pipelines.items():
        times = [row[f"{whence}_{which}_ms"] for which in ("p50", "p99") for whence in ("measured", "predicted")]
        rows.add_row(name, row["way"], *(f"{time:.1f}" for time in times))
    return rows


def main() -> None:
    """Plans, compares, prints the table and the goals, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="try at most 300 combinations of each DAG")
    parser.add_argument("--live", action="store_true", help="measure pipelines of real models instead")
    parser.add_argument("--only", default="", help="one DAG")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    console = Console()
    before: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    dags: dict[str, dict[str, Any]] = before.get("dags", {})
    live: dict[str, Any] | None = before.get("live")
    if arguments.live:
        from benchmarks.planning.live import measure_live

        live = measure_live(quick=arguments.quick, tell=console.print)
        console.print(live_table(live["pipelines"]))
    for name, dag in DAGS.items() if not arguments.live else ():
        if arguments.only in ("", name):
            dags[name] = measure(dag, arguments.seed, _MOST_TRIED["quick" if arguments.quick else "full"])
            console.print(table({name: dags[name]}))
    judged = goals(dags, live)
    for goal in judged:
        word = {True: "met     ", False: "missed  ", None: "unknown "}[goal["met"]]
        console.print(f"{word}{goal['dag']}: {goal['goal']}: {goal['measured']}")
    machine = {"processor": processor()}
    results = {"machine": machine, "seed": arguments.seed, "dags": dags, "live": live, "goals": judged}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
