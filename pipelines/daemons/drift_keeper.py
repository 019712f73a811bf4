"""Compares what production captures with the validation data from time to time, and tells others what drifted.

It runs in a thread of the process that captures. What it found is on disk after each comparison, so it can be killed at
any line: a drift that nobody was told of is told after the restart, and one that was told is told once.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shiplift.pipelines.engines.local import drifting, incidents, site_file
from shiplift.pipelines.engines.local.drift_measuring import measured
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.events.emit import emit
from shiplift.runtime.events.event import model_event
from shiplift.runtime.events.kinds import EventKind
from shiplift.runtime.records.drift import DriftReport, DriftState
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.machine import baking

LOOK_S = 5.0
_BAKING_S = 60.0  # an alarm of a bake waits no longer for a comparison

Measure = Callable[[Path, Package], DriftReport]


class DriftKeeper:
    """The keeper of a home. `clock` is in seconds since the epoch."""

    def __init__(self, home: Path, *, measure: Measure = measured, clock: Callable[[], float] = time.time) -> None:
        self._home, self._measure, self._clock = home, measure, clock
        self._said: dict[str, str] = {}

    def run(self) -> None:
        """Compares until the process ends."""
        while True:
            try:
                self.look()
            except (ShipliftError, OSError) as error:
                print(f"drift: {error}", flush=True)
            time.sleep(LOOK_S)

    def look(self) -> None:
        """Compares every package that is due, and tells what nobody was told of."""
        every = list(drifting.every_state(self._home))
        drifting.forget_others(self._home, [package.model for package, _ in every])
        for package, state in every:
            known = state
            if state is None or self._due(package, state):
                report, empty = self._measure(self._home, package), DriftState(package="", report=_nothing(package))
                known = (state or empty).after(drifting.identity(package), report)
                drifting.keep(self._home, package.model, known)
                self._say(package.model, report.problem)
            if known and known.since and not known.told:
                self._tell(package, known)

    def _due(self, package: Package, state: DriftState) -> bool:
        assert package.drifting is not None  # noqa: S101 - `every_state` has no others
        pause = package.drifting.every_s
        bake = baking.under_way(self._home, package.model)
        if bake and any(alarm.kind == "drift" for alarm in bake.alarms):
            pause = min(pause, _BAKING_S)
        return abs(self._clock() - state.report.at) >= pause  # also after the clock was set back

    def _tell(self, package: Package, state: DriftState) -> None:
        hook = package.drifting.hook if package.drifting else ""
        text, at = state.report.sentence, self._clock()
        key = f"{state.package} {state.since}"
        incidents.note(self._home, serving_name(package.model), text)
        if hook and not self._known(hook):
            missing = f"`drift.hook` names {hook!r}, and {site_file.FILE} has no such target with `hook: true`"
            incidents.note(self._home, serving_name(package.model), missing)
        emit(
            self._home,
            model_event(EventKind.DRIFTED, package.model, package.version, at=at, text=text, key=key, hook=hook),
        )
        drifting.keep(self._home, package.model, state.model_copy(update={"told": True}))

    def _known(self, hook: str) -> bool:
        with suppress(ShipliftError, OSError):
            return any(target.name == hook and target.hook for target in site_file.read(self._home).events.targets)
        return False

    def _say(self, model: str, problem: str) -> None:
        """Notes once why a model can't be compared."""
        if problem and self._said.get(model) != problem:
            incidents.note(self._home, serving_name(model), f"its drift is not known: {problem}")
        self._said[model] = problem


def _nothing(package: Package) -> DriftReport:
    return DriftReport(model=package.model, version=package.version, at=0.0)
