"""Others on a machine whose clock and CPU time a test sets."""

from dataclasses import dataclass, field

import pytest

from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.search.disturbance import Others
from tests.unit.examples import trial


@dataclass
class Machine:
    """Others use `rates[t]` cores in second t, the last rate for ever; a measurement takes a second."""

    rates: list[float | None]
    now: float = 0.0
    measured: list[float] = field(default_factory=list)

    def others_s(self) -> float | None:
        if None in self.rates:
            return None
        rates = [rate or 0.0 for rate in self.rates]
        whole = int(self.now)
        each = [rates[min(second, len(rates) - 1)] for second in range(whole + 1)]
        return sum(each[:whole]) + (self.now - whole) * each[whole]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def measure(self) -> Trial:
        self.measured.append(self.now)
        self.now += 1
        return trial(throughput_per_s=len(self.measured))

    def others(self, cores: int = 2) -> Others:
        return Others(self.others_s, cores, clock=lambda: self.now, sleep=self.sleep)


@pytest.mark.parametrize(
    ("rate", "cores", "told"), [(0.1, 2, 0.0), (0.5, 2, 0.5), (1.0, 64, 0.0), (4.0, 64, 4.0), (None, 2, 0.0)]
)
def test_a_trial_says_how_many_cores_others_used(rate: float | None, cores: int, told: float) -> None:
    machine = Machine([rate])
    assert machine.others(cores).during(machine.measure).disturbed_cores == told


def test_a_disturbed_trial_is_repeated_once_the_others_are_quiet() -> None:
    machine = Machine([1.0, 1.0, 1.0, 0.0])
    measured, seconds = machine.others().undisturbed(machine.measure, budget_s=10)
    assert machine.measured == [0, 3.25]
    assert (measured.throughput_per_s, measured.disturbed_cores, seconds) == (2, 0.0, 3.25)


def test_others_that_stay_are_told_and_hold_nothing_up() -> None:
    machine = Machine([1.0, 0.5])
    measured, seconds = machine.others().undisturbed(machine.measure, budget_s=10)
    assert (measured.throughput_per_s, measured.disturbed_cores, seconds) == (2, 0.5, 6.0)


def test_without_time_to_repeat_it_the_disturbed_trial_counts() -> None:
    machine = Machine([1.0])
    measured, seconds = machine.others().undisturbed(machine.measure, budget_s=0.5)
    assert (measured.disturbed_cores, seconds, machine.measured) == (1.0, 0.0, [0])
