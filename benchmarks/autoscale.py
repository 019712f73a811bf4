"""`make bench-autoscale`: Shiplift's scaling rule against others, on simulated replicas with measured service times.

Every policy serves the same arrivals on the same replicas, request by request. What counts is the share of requests
over the SLO and the replica-seconds, starting and draining pods included, relative to a clairvoyant schedule. Each
rival has one setting for all traces, chosen by bisection so that it costs what ours costs; its misses are interpolated
between the two nearest settings. The servers are ours for all of them; `--in-turn` gives the rivals servers that answer
requests in turn, as Triton does by itself. `--trace FILE` (an arrival time in s per line) and `--profile FILE` replay
what was recorded elsewhere. `--validate` compares the simulator with the Shiplift installed in KUBECONFIG's cluster
instead, and adds that to the results.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import processor
from benchmarks.scaling import clairvoyant, policies, traces
from benchmarks.scaling.control import MAXIMUM, Outcome, Policy, serve
from benchmarks.scaling.load_test import load_report
from benchmarks.scaling.profile import DEFAULT, Profile, load
from benchmarks.scaling.traces import Trace
from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.serving.scaling.burst import burst_of
from shiplift.runtime.serving.scaling.capacity import capacity
from shiplift.runtime.serving.scaling.signal import Scaling

RESULTS = Path(__file__).parent / "results" / "autoscale.json"
OURS, SLOW, LATE, CLAIRVOYANT = "shiplift", "shiplift, without the operator", "clairvoyant, unforeseen", "clairvoyant"
_STEPS = 4  # of the bisection
_CLOSE = 0.03  # of our cost: equal enough
LIMIT = (
    "after a sudden step new pods are ready {start:g} s after the operator has seen the queue; until then the excess "
    "is over the SLO; the clairvoyant's own schedule misses {late:g} % if its pods start only when their load begins"
)


@dataclass(frozen=True, kw_only=True)
class Rival:
    """A policy with one setting: the higher, the cheaper. `low` and `high` bound the search."""

    policy: Callable[[float], Policy]
    low: float
    high: float


RIVALS = {
    "KEDA, pending requests": Rival(policy=policies.keda_pending, low=0.2, high=30),
    "HPA, CPU": Rival(policy=policies.hpa_cpu, low=0.4, high=0.98),
    "Knative, concurrency": Rival(policy=policies.knative, low=1, high=16),
}
Outcomes = dict[str, Outcome]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all policies share."""

    profile: Profile
    capacity: Capacity
    traces: list[Trace]
    rivals: Profile | None = None

    def serve(self, policy: Policy, profile: Profile | None = None) -> Outcomes:
        """Serves every trace under a policy, each from the replicas that its first 30 s call for."""
        replica = profile or self.profile
        return {trace.name: serve(trace, replica, policy, start=self._start(trace)) for trace in self.traces}

    def _start(self, trace: Trace) -> int:
        rate = float(np.sum(trace.arrivals < 30)) / 30
        return min(MAXIMUM, max(1, math.ceil(rate / self.capacity.within_slo_per_s)))


def cost(outcomes: Outcomes) -> float:
    """Replica-seconds over all traces."""
    return sum(outcome.replica_s for outcome in outcomes.values())


def missed_percent(outcomes: Iterable[Outcome]) -> float:
    """The share of requests over the SLO, in percent."""
    known = list(outcomes)
    return 100 * sum(outcome.missed for outcome in known) / sum(outcome.requests for outcome in known)


@dataclass(frozen=True, kw_only=True)
class AtEqualCost:
    """A rival at our cost. `settings` are all that were tried, with cost and misses; `outcomes` those of the nearest.

    `relative_cost` is the nearest setting's cost over ours; not near 1 means that no setting costs what ours costs.
    """

    setting: float
    relative_cost: float
    missed_percent: float
    settings: list[dict[str, float]]
    outcomes: Outcomes


def at_equal_cost(serve_with: Callable[[float], Outcomes], low: float, high: float, target: float) -> AtEqualCost:
    """Finds the setting whose cost is the target's, and the misses there, between the nearest two settings."""
    tried: dict[float, Outcomes] = {}
    for _ in range(_STEPS):
        setting = math.sqrt(low * high)
        tried[setting] = serve_with(setting)
        low, high = (setting, high) if cost(tried[setting]) > target else (low, setting)
        if abs(cost(tried[setting]) / target - 1) < _CLOSE:
            break
    nearest = min(tried, key=lambda setting: abs(cost(tried[setting]) - target))
    points = sorted((cost(outcomes), missed_percent(outcomes.values())) for outcomes in tried.values())
    return AtEqualCost(
        setting=nearest,
        relative_cost=cost(tried[nearest]) / target,
        missed_percent=float(np.interp(target, [paid for paid, _ in points], [share for _, share in points])),
        settings=[
            {
                "setting": setting,
                "relative_cost": cost(tried[setting]) / target,
                "missed_percent": missed_percent(tried[setting].values()),
            }
            for setting in sorted(tried)
        ],
        outcomes=tried[nearest],
    )


def foreseen(setup: Setup, say: Callable[[str], None]) -> tuple[Outcomes, Outcomes]:
    """The clairvoyant's outcomes, and those of the same schedules if pods are started only when their load begins."""
    best: Outcomes = {}
    late: Outcomes = {}
    for trace in setup.traces:
        schedule = clairvoyant.schedule(trace, setup.profile)
        best[trace.name] = clairvoyant.run(trace, setup.profile, schedule)
        late[trace.name] = clairvoyant.run(trace, setup.profile, schedule, ahead_s=0)
        say(f"clairvoyant: {trace.name}")
    return best, late


def goals(
    families: dict[str, dict[str, dict[str, float]]], rivals: dict[str, AtEqualCost], start_s: float
) -> list[dict[str, Any]]:
    """The goals, overall and per family of traces, and why what is missed is missed."""
    judged = []
    for family, by_policy in families.items():
        ours, late = by_policy[OURS], by_policy[LATE]["missed_percent"]
        limit = LIMIT.format(late=late, start=start_s) if late > 1 else ""
        for goal, measured, most in (
            ("at most 1 % of requests over the SLO", ours["missed_percent"], 1.0),
            ("at most 1.15x the clairvoyant's replica-seconds", ours["relative_cost"], 1.15),
        ):
            met = measured <= most
            judged.append(
                {
                    "goal": goal,
                    "traces": family,
                    "measured": round(measured, 3),
                    "met": met,
                    "limit": "" if met or most > 1 else limit,
                }
            )
    overall = families["all"][OURS]["missed_percent"]
    for name, rival in rivals.items():
        ratio = rival.missed_percent / max(overall, 1e-9)
        dearer = rival.relative_cost - 1 > _CLOSE
        limit = f"no setting is as cheap as ours: the nearest costs {rival.relative_cost:.2f}x" if dearer else ""
        judged.append(
            {
                "goal": f"5x fewer over the SLO than {name}, at equal cost",
                "traces": "all",
                "measured": round(ratio, 2),
                "met": ratio >= 5,
                "limit": limit,
            }
        )
    return judged


def by_family(setup: Setup, outcomes: dict[str, Outcomes]) -> dict[str, dict[str, dict[str, float]]]:
    """Misses and relative cost of each policy, over all traces and by family."""
    groups = {"all": [trace.name for trace in setup.traces]}
    for trace in setup.traces:
        groups.setdefault(trace.family, []).append(trace.name)
    return {
        family: {
            policy: {
                "missed_percent": round(missed_percent(served[name] for name in names), 3),
                "relative_cost": round(
                    sum(served[name].replica_s for name in names)
                    / sum(outcomes[CLAIRVOYANT][name].replica_s for name in names),
                    3,
                ),
            }
            for policy, served in outcomes.items()
        }
        for family, names in groups.items()
    }


def table(families: dict[str, dict[str, dict[str, float]]]) -> Table:
    """Per policy and family: percent over the SLO, and replica-seconds relative to the clairvoyant's."""
    rows = Table("% over the SLO (replica-seconds)", box=None, header_style="bold")
    for family in families:
        rows.add_column(family, justify="right")
    for policy in families["all"]:
        cells = [families[family][policy] for family in families]
        rows.add_row(policy, *(f"{cell['missed_percent']:.2f} ({cell['relative_cost']:.2f}x)" for cell in cells))
    return rows


def measure(setup: Setup, say: Callable[[str], None]) -> dict[str, Any]:
    """Serves all traces under all policies."""
    scaling = Scaling(capacity=setup.capacity, maximum=MAXIMUM)
    burst = burst_of(setup.capacity, MAXIMUM)
    outcomes = {
        OURS: setup.serve(policies.shiplift(scaling, burst=burst)),
        SLOW: setup.serve(policies.shiplift(scaling)),
    }
    say(f"{OURS}: {missed_percent(outcomes[OURS].values()):.2f} % over the SLO")
    rivals: dict[str, AtEqualCost] = {}
    for name, rival in RIVALS.items():
        say(f"{name}: looking for the setting that costs what ours costs")
        rivals[name] = at_equal_cost(
            lambda setting, rival=rival: setup.serve(rival.policy(setting), setup.rivals),  # type: ignore[misc]
            rival.low,
            rival.high,
            cost(outcomes[OURS]),
        )
        outcomes[name] = rivals[name].outcomes
        say(f"{name}: {rivals[name].missed_percent:.2f} % over the SLO at {rivals[name].relative_cost:.3f}x our cost")
    outcomes[CLAIRVOYANT], outcomes[LATE] = foreseen(setup, say)
    families = by_family(setup, outcomes)
    return {
        "profile": setup.profile.model_dump(mode="json"),
        "capacity": setup.capacity.model_dump(),
        "scaling": scaling.model_dump(mode="json"),
        "burst": burst.model_dump(mode="json"),
        "families": families,
        "goals": goals(families, rivals, setup.profile.start_s),
        "rivals": {
            name: {key: value for key, value in asdict(rival).items() if key != "outcomes"}
            for name, rival in rivals.items()
        },
        "traces": {
            trace.name: {
                "family": trace.family,
                "requests": len(trace.arrivals),
                "fluid_replica_s": round(clairvoyant.fluid_s(trace, setup.profile), 1),
                **{policy: asdict(served[trace.name]) for policy, served in outcomes.items()},
            }
            for trace in setup.traces
        },
    }


def main() -> None:
    """Measures, prints the tables and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", type=Path, default=DEFAULT, help="a replica's measured service times, as JSON")
    parser.add_argument("--trace", type=Path, action="append", help="arrival times in s, a line each; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated arrivals; the rule was tuned on 7")
    parser.add_argument("--family", action="append", help="only this family of traces; may be repeated")
    parser.add_argument("--in-turn", action="store_true", help="the rivals' servers answer requests in turn")
    parser.add_argument("--validate", action="store_true", help="compare the simulator with a cluster instead")
    parser.add_argument("--namespace", default="shiplift", help="namespace of the Shiplift to compare with")
    parser.add_argument("--quick", action="store_true", help="every fourth trace")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    started, console = time.monotonic(), Console()
    before: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    if arguments.validate:
        from benchmarks.scaling.live import validate  # it needs clients of Kubernetes and Triton

        validation = validate(arguments.namespace)
        console.print_json(data=validation)
        arguments.out.write_text(json.dumps(before | {"validation": validation}, indent=1) + "\n")
        return
    profile = load(arguments.profile)
    replayed = [traces.from_file(path) for path in arguments.trace or ()] or traces.catalogue(arguments.seed)
    chosen = [trace for trace in replayed if trace.family in (arguments.family or [trace.family])]
    setup = Setup(
        profile=profile,
        capacity=capacity(load_report(profile)),
        traces=chosen[:: 4 if arguments.quick else 1],
        rivals=profile.model_copy(update={"late_after_ms": 0.0}) if arguments.in_turn else None,
    )
    results = measure(setup, lambda text: console.print(f"{time.monotonic() - started:5.0f} s  {text}", style="dim"))
    console.print(table(results["families"]))
    for goal in results["goals"]:
        console.print(f"{'met   ' if goal['met'] else 'missed'} {goal['traces']}: {goal['goal']}: {goal['measured']}")
    machine = {"processor": processor(), "seconds": round(time.monotonic() - started)}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    kept = {name: before[name] for name in ("validation",) if name in before}
    results = {"machine": machine, "seed": arguments.seed, "quick": arguments.quick} | results | kept
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
