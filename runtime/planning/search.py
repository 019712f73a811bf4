"""The search for the cheapest settings of all members that hold the limit together.

As in InferLine, it starts with a feasible provisioning and takes away what the simulation shows to be unnecessary. A
move changes one member, or two at once, so that one can give up what another uses better. The cheapest result that the
simulation confirms is taken, until there is none. An estimate decides which moves are worth a simulation: each option
is simulated alone, and the times that requests spent there are added up along the graph.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from shiplift.runtime.base.errors import NoPlan
from shiplift.runtime.planning.arrivals import Floats
from shiplift.runtime.planning.options import Problem, options_of
from shiplift.runtime.planning.scenario import PYTHON, draw
from shiplift.runtime.planning.settings import MemberSettings
from shiplift.runtime.planning.simulation import SimulationOutcome, simulate

REQUESTS = 5000  # of a simulation
_ALONE = 2000  # of those, to simulate an option alone
_HOPELESS = 1.25  # times the limit: an estimate that is right for the last choice is off by less than this
_MOST_SIMULATIONS = 400
_NEAREST = 10  # this many of the choices with the best estimates are simulated
Choice = tuple[int, ...]
"""An option's number for each of the graph's members."""


@dataclass(frozen=True, kw_only=True)
class Alone:
    """A member's option while all others cost no time: the time spent there by step and request in s, and the p99."""

    settings: MemberSettings
    spent: Mapping[int, Floats]
    p50_ms: float
    p99_ms: float


class SettingsSearch:
    """The options of all members, and a limit in ms that can be tightened.

    Raises:
        NoPlan: a member has no option that keeps up with the arrivals.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.limit_ms = problem, problem.limit_ms
        self.members = problem.graph.used
        self.scenario = draw(
            problem.spec, problem.graph, problem.profiles, problem.arrivals, count=REQUESTS, seed=problem.seed
        )
        self.simulations = 0
        self._known: dict[Choice, SimulationOutcome] = {}
        self._estimates: dict[Choice, float] = {}
        self._few = self.scenario.first(min(_ALONE, self.scenario.count))
        steps, nothing = range(len(problem.graph.steps)), np.zeros(self._few.count)
        self._base = dict.fromkeys(steps, nothing) | self._spent({}, problem.graph.steps_of(PYTHON))
        self.options = [self._useful(member) for member in self.members]

    # --- what is known about choices ---------------------------------------------------------------------------------

    def settings(self, choice: Choice) -> dict[str, MemberSettings]:
        """The settings of each member."""
        return {member: alone.settings for member, alone in self._chosen(choice)}

    def cost(self, choice: Choice) -> tuple[float, float]:
        """Cores, then memory in MB."""
        costs = [alone.settings.cost for _, alone in self._chosen(choice)]
        return round(sum(cores for cores, _ in costs), 6), round(sum(memory for _, memory in costs), 3)

    def holds(self, choice: Choice) -> bool:
        """Whether the simulation holds the limit."""
        return self._simulated(choice).percentile_ms(99) <= self.limit_ms

    def tighten(self, factor: float) -> None:
        """Lowers the limit."""
        self.limit_ms *= factor

    def estimated_ms(self, choice: Choice) -> float:
        """The estimated p99, if each request spends as long at each member as if that member were alone."""
        if choice not in self._estimates:
            spent = dict(self._base)
            for _, alone in self._chosen(choice):
                spent |= alone.spent
            self._estimates[choice] = float(np.percentile(self._along(spent), 99)) * 1000
        return self._estimates[choice]

    def _chosen(self, choice: Choice) -> Iterator[tuple[str, Alone]]:
        for member, options, at in zip(self.members, self.options, choice, strict=True):
            yield member, options[at]

    def _along(self, spent: Mapping[int, Floats]) -> Floats:
        """The latencies that follow from the times spent in each step."""
        done: list[Floats] = []
        for step, needs in enumerate(self.problem.graph.needs):
            before = [done[need] for need in needs]
            done.append(spent[step] + np.maximum.reduce(before) if before else spent[step])
        return np.asarray(np.maximum.reduce(done))

    def _simulated(self, choice: Choice, *, whole: bool = False) -> SimulationOutcome:
        """Simulates a choice; `whole`: all requests, even if too many are late."""
        known = self._known.get(choice)
        if known is None or (whole and known.given_up):
            self.simulations += 1
            known = self._known[choice] = simulate(
                self.problem.graph,
                self.scenario,
                self.problem.profiles,
                self.settings(choice),
                limit_ms=np.inf if whole else self.limit_ms,
            )
        return known

    # --- options -----------------------------------------------------------------------------------------------------

    def _useful(self, member: str) -> list[Alone]:
        """A member's options, cheapest first, without those that another option beats in cost and latency."""
        useful: list[Alone] = []
        for settings in options_of(self.problem, member, self.scenario):
            alone = self._alone(member, settings)
            if not any(_beats(other, alone) for other in useful):
                useful.append(alone)
        within = [alone for alone in useful if alone.p99_ms <= _HOPELESS * self.limit_ms]  # of a few requests
        return within or [min(useful, key=lambda alone: alone.p99_ms)]

    def _alone(self, member: str, settings: MemberSettings) -> Alone:
        spent = self._spent({member: settings}, self.problem.graph.steps_of(member))
        p50, p99 = np.percentile(self._along(self._base | spent), [50, 99])
        return Alone(settings=settings, spent=spent, p50_ms=float(p50) * 1000, p99_ms=float(p99) * 1000)

    def _spent(self, settings: Mapping[str, MemberSettings], steps: list[int]) -> dict[int, Floats]:
        """The time that each request spends in some steps, if other members take no time."""
        outcome = simulate(self.problem.graph, self._few, self.problem.profiles, settings)
        return {step: outcome.done[step] - outcome.began[step] for step in steps}

    # --- the search --------------------------------------------------------------------------------------------------

    def cheapest(self) -> Choice:
        """The cheapest choice found that holds the limit.

        Raises:
            NoPlan: none was found; the message says which came nearest, and why.
        """
        choice = self._fastest()
        while (better := self._cheaper(choice)) is not None:
            choice = better
        return choice

    def _cheaper(self, choice: Choice) -> Choice | None:
        """The cheapest choice that holds the limit and differs in one member, else in two; None if none is cheaper."""
        # By how much the estimate of this choice is off: that of its neighbours is off by about as much.
        cost, off = self.cost(choice), self._simulated(choice).percentile_ms(99) / self.estimated_ms(choice)
        for changed in (1, 2):
            cheaper = [other for other in self._neighbours(choice, changed) if self.cost(other) < cost]
            hopeful = [other for other in cheaper if off * self.estimated_ms(other) <= _HOPELESS * self.limit_ms]
            for other in sorted(hopeful, key=lambda other: (self.cost(other), self.estimated_ms(other), other)):
                if self.simulations >= _MOST_SIMULATIONS:
                    return None
                if self.holds(other):
                    return other
        return None

    def _neighbours(self, choice: Choice, changed: int) -> Iterator[Choice]:
        """The choices that differ in `changed` members."""
        for members in combinations(range(len(choice)), changed):
            others = [[at for at in range(len(self.options[member])) if at != choice[member]] for member in members]
            for numbers in product(*others):
                other = list(choice)
                for member, number in zip(members, numbers, strict=True):
                    other[member] = number
                yield tuple(other)

    def _fastest(self) -> Choice:
        """A choice that holds the limit, whatever it costs.

        Raises:
            NoPlan: there is none.
        """
        choice = tuple(map(_fastest_of, self.options))
        while not self.holds(choice):
            best = self._simulated(choice, whole=True).percentile_ms(99)
            others = sorted((self.estimated_ms(other), other) for other in self._neighbours(choice, 1))
            tried = [(self._simulated(other, whole=True).percentile_ms(99), other) for _, other in others[:_NEAREST]]
            nearest, other = min(tried, default=(best, choice))
            if nearest >= best:
                raise self._impossible(choice, best)
            choice = other
        return choice

    def _impossible(self, choice: Choice, best_ms: float) -> NoPlan:
        """The error if no choice holds the limit: it says where the nearest one spends its time."""
        slowest, alone = max(self._chosen(choice), key=lambda chosen: chosen[1].p99_ms)
        within = best_ms + self.problem.profiles.request_ms
        return NoPlan(
            f"no settings hold {self.problem.what}: the best p99 found is {within:.4g} ms. {slowest!r} takes longest: "
            f"alone it has a p99 of {alone.p99_ms:.4g} ms, and an execution of one row takes "
            f"{1000 * alone.settings.seconds[1]:.4g} ms",
            do=f"Plan with --p99-ms {np.ceil(within):.0f} or more, lower the rate, or measure faster configurations of "
            f"{slowest!r}: more threads, a lower precision, another engine.",
        )


def _fastest_of(options: list[Alone]) -> int:
    return min(range(len(options)), key=lambda at: (options[at].p99_ms, options[at].p50_ms))


def _beats(one: Alone, other: Alone) -> bool:
    """Whether an option that costs no more is also no slower."""
    return (
        one.settings.cores <= other.settings.cores
        and one.settings.memory_mb <= other.settings.memory_mb
        and one.p99_ms <= other.p99_ms
        and one.p50_ms <= other.p50_ms
    )
