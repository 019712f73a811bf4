"""Watches the versions that bake on this machine, and rolls back those whose alarms are raised.

It runs in a thread of the watchdog. What it knows of a bake is on disk after each look, so it can be killed at any
line: an alarm that was raised is followed after the restart. The traffic goes back first, without the registry, which
may be down; aliases, tags and the event follow as soon as it answers.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx

from shiplift.pipelines.daemons.prober import Prober
from shiplift.pipelines.engines.local import drifting, incidents, site_file, stack
from shiplift.runtime.base.errors import NotFound, NothingToRollBack, ShipliftError
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.plain_http import NO_AUTHORITIES
from shiplift.runtime.events.emit import emit
from shiplift.runtime.events.event import model_event
from shiplift.runtime.events.kinds import EventKind
from shiplift.runtime.gates.alarms import LOOK_S
from shiplift.runtime.gates.baking import Watch
from shiplift.runtime.guest.pod.heartbeat import answer
from shiplift.runtime.records.baking import BakeReading, Baking
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.alarm_readings import reading_of, values_of
from shiplift.runtime.serving.machine import baking as noted
from shiplift.runtime.serving.machine.served import served_version
from shiplift.runtime.serving.production import production
from shiplift.runtime.serving.rolling_back import roll_back
from shiplift.runtime.spec.serving_settings import Rollout
from shiplift.runtime.store.registry.rest import PATIENT_S, RestRegistry
from shiplift.runtime.store.registry.terms import BAKE_TAG

_AGAIN_S = 10.0  # after a failure


class BakeWatch:
    """The watch over all bakes of a home."""

    def __init__(self, home: Path, prober: Prober, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._home, self._prober, self._clock = home, prober, clock
        self._watches: dict[tuple[str, str, float], Watch] = {}
        self._later: dict[str, float] = {}
        self._client = httpx.Client(trust_env=False, verify=NO_AUTHORITIES)

    def run(self, alive: Callable[[], bool]) -> None:
        """Watches as long as `alive` says so."""
        while alive():
            began = self._clock()
            self.look()
            time.sleep(max(0.1, LOOK_S - (self._clock() - began)))

    def look(self) -> None:
        """Looks once at every bake that is not over, or that nobody was told of yet."""
        running = stack.read(self._home)
        if running is None or not running.runs("triton"):
            return
        for known in list(noted.everything(self._home)):
            if known.told or self._clock() < self._later.get(known.model, 0.0):
                continue
            try:
                self._look_at(known, running)
            except (ShipliftError, OSError) as error:
                self._later[known.model] = self._clock() + _AGAIN_S
                incidents.note(self._home, serving_name(known.model), f"its bake: {error}")

    def _look_at(self, known: Baking, running: stack.Stack) -> None:
        if known.state == "baking":
            known = self._watched(known, running)
        if known.state == "alarmed":
            known = self._rolled_back(known, stack.site(self._home, running))
        if not known.active:
            self._tell(known, running)

    def _watched(self, known: Baking, running: stack.Stack) -> Baking:
        """The bake after a reading; it ends if another version serves by now."""
        if not noted.bakes(self._home, known):
            return self._note(known, lambda now: _ended(now, served_version(self._home, known.model)))
        reading, key = self._read(known, running), (known.model, known.package, known.requested_at)
        watch = self._watches.setdefault(key, Watch())
        after = self._note(known, lambda now: watch.after(now, reading))
        if after.state == "alarmed":
            incidents.note(self._home, serving_name(known.model), f"an alarm while it bakes: {after.reason}")
        if after.state != "baking":
            self._watches.pop(key, None)
        return after

    def _read(self, known: Baking, running: stack.Stack) -> BakeReading:
        page = answer(f"http://{stack.HOST}:{running.metrics_port}/metrics")
        name = serving_name(known.model)
        reading = reading_of(page, name, known.version, self._clock())
        values = values_of(site_file.read(self._home).prometheus, known.alarms, self._client)
        wrong, drift = self._prober.wrong(name, known.package), drifting.found_in_bake(self._home, known.model)
        return reading.model_copy(update={"wrong": wrong, "values": values, "drift": drift})

    def _rolled_back(self, known: Baking, site: Site) -> Baking:
        if known.former:
            self._give_back(known, site)
        try:
            roll_back(site, known.model, known, known.verdict)
        except NothingToRollBack:
            return self._note(known, lambda now: _ended(now, served_version(self._home, known.model)))
        said = f"version {known.previous} serves again instead of version {known.version}, which was rolled back while"
        incidents.note(self._home, serving_name(known.model), f"{said} baking: {known.reason}")
        return self._note(known, lambda now: now.model_copy(update={"state": "rolled back"}))

    def _give_back(self, known: Baking, site: Site) -> None:
        """Gives all traffic back to the version before, without asking the registry."""
        place, former = production(site), known.former
        with place.lock(known.model):
            if former and noted.bakes(self._home, known):
                at_once = Rollout(replicas=former.replicas, canary_percent=())
                place.move(former.package, at_once, former.capacity, former.others)

    def _tell(self, known: Baking, running: stack.Stack) -> None:
        """Tags the version, and tells others how its bake ended."""
        registry = RestRegistry(running.registry_uri, timeout_s=PATIENT_S)
        with suppress(NotFound):  # the version was deleted
            registry.tag(known.model, known.version, **{BAKE_TAG: known.sentence})
        kinds = {"rolled back": EventKind.ROLLED_BACK, "passed": EventKind.BAKED}
        if kind := kinds.get(known.state):
            about = known.previous if kind is EventKind.ROLLED_BACK else known.version
            text = f"instead of version {known.version}, {known.sentence}" if about != known.version else known.sentence
            key = f"bake {known.version} {known.requested_at}"
            emit(self._home, model_event(kind, known.model, about, at=time.time(), text=text, key=key))
        self._note(known, lambda now: now.model_copy(update={"told": True}))

    def _note(self, known: Baking, after: Callable[[Baking], Baking]) -> Baking:
        """Changes the note of a bake; one that another bake has replaced is over, and was told."""
        replaced = _ended(known, served_version(self._home, known.model)).model_copy(update={"told": True})
        return noted.change(self._home, known, after) or replaced


def run(home: Path, prober: Prober) -> None:
    """Watches until the process ends, which it does with its parent."""
    parent = os.getppid()
    BakeWatch(home, prober).run(lambda: os.getppid() == parent)


def _ended(known: Baking, serves: int) -> Baking:
    if not known.active:
        return known
    why = f"version {serves} serves instead" if serves != known.version else "it serves from another package"
    return known.model_copy(update={"state": "ended", "reason": why if serves else "nothing serves any more"})
