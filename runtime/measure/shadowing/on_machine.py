"""A shadow on one machine: production's server copies a share of its requests into a ring, and they are replayed.

No router is in the way of clients, so none waits: what finds no room in the ring is dropped and counted. The challenger
answers on its own server, with the lowest priority, so production has the processor first. Both servers measure their
latency in the same place, between the front end and the core. The server copies only while this process says every few
seconds that it still looks; so nothing has to be cleaned up after a kill.
"""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from shiplift.runtime.base.durations import in_short
from shiplift.runtime.base.errors import PromotionConflict, ServerFailed, ShipliftError
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.capture.ring import FOLDER, CapturedRequest, Ring, RingBroken, RingCounters
from shiplift.runtime.confinement.watch import worker
from shiplift.runtime.events.emit import emit
from shiplift.runtime.events.event import model_event
from shiplift.runtime.events.kinds import EventKind
from shiplift.runtime.host.processes import alive, step_back, thread_steps_back
from shiplift.runtime.measure.shadowing.tally import Tally
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.deployment import Deployment, ServerProcess
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.process import Process
from shiplift.runtime.records.shadowing import Shadowed
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.machine.production_process import production_process
from shiplift.runtime.serving.machine.served import served_version
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.spec.shadowing import Shadow

READER = "shadow"
LEASE_S = 10.0
_LOOK_S = 1.0
_PAUSE_S = 0.02
_AT_ONCE = 64 << 10  # bytes of requests that are replayed before the next look at the clock
_CLIENTS = 4
_TIMEOUT_S = 30.0


class LocalShadow:
    """The shadows of a machine. See `runtime.measure.shadowing.place.ShadowPlace`."""

    def __init__(self, site: Site) -> None:
        self._home = Path(site.home)

    @contextmanager
    def mirroring(self, deployment: Deployment, champion: Package, wanted: Shadow) -> Iterator["LocalMirror"]:
        """Copies requests for as long as the context lasts."""
        if not isinstance(deployment.workload, ServerProcess):
            raise ServerFailed("the staging server has no process on this machine", do="Rerun the release.")
        process = deployment.workload.process
        step_back(process)
        told = f"for {in_short(wanted.for_s)} it gets {wanted.share * 100:g} % of version {champion.version}'s requests"
        package = deployment.package
        emit(self._home, model_event(EventKind.SHADOWING, package.model, package.version, at=time.time(), text=told))
        with ExitStack() as stack:
            client = stack.enter_context(TritonClient(deployment.endpoint.grpc, timeout_s=_TIMEOUT_S))
            pool = stack.enter_context(ThreadPoolExecutor(_CLIENTS, initializer=thread_steps_back))
            slices = frozenset(each.name for each in deployment.package.slices)
            tally = Tally(champion=champion.version, share=wanted.share, for_s=wanted.for_s, slices=slices)
            mirror = LocalMirror(self._home, package, process, client, pool, tally)
            yield stack.enter_context(closing(mirror))


class LocalMirror:
    """The copying, by looks of about a second. See `runtime.measure.shadowing.place.Mirror`."""

    def __init__(
        self,
        home: Path,
        package: Package,
        challenger: Process,
        client: TritonClient,
        pool: ThreadPoolExecutor,
        tally: Tally,
    ) -> None:
        self._home, self._model, self._name = home, package.model, serving_name(package.model)
        self._client, self._pool, self._tally = client, pool, tally
        self._signature = client.signature(self._name)
        self._began = time.monotonic()
        self._production = _Tap(self._name)
        self._challenger = _Tap(self._name)
        self._process = challenger

    def look(self) -> Shadowed:
        """Replays requests for about a second."""
        if (now := served_version(self._home, self._model)) != self._tally.champion:
            raise PromotionConflict(
                f"version {now} serves {self._model} now, not version {self._tally.champion}, which was shadowed",
                do="Rerun the release: it compares and shadows again.",
            )
        until = time.monotonic() + _LOOK_S
        while time.monotonic() < until:
            self._challenger.follow(self._process, 1.0)
            self._production.follow(production_process(self._home), self._tally.share)
            taken = self._production.take()
            self._replay([each for each in taken if each.version == self._tally.champion])
            for each in self._challenger.take():
                if not each.failed:
                    self._tally.took(each.took_us, self._elapsed, challenger=True)
            if not taken:
                time.sleep(_PAUSE_S)
        self._tally.dropped = self._production.lost
        return self._tally.result(self._elapsed)

    def close(self) -> None:
        """Ends the copying."""
        self._production.close()
        self._challenger.close()

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _replay(self, requests: list[CapturedRequest]) -> None:
        answered = [each for each in requests if not each.failed]  # the challenger needs no fault of the champion
        for request, given in zip(answered, self._pool.map(self._asked, answered), strict=True):
            self._tally.took(request.took_us, self._elapsed, challenger=False)
            if given is None:
                self._tally.fails()
            else:
                self._tally.answers(request.outputs, given, request.inputs)

    def _asked(self, request: CapturedRequest) -> Arrays | None:
        """The challenger's answer, with the outputs that the client asked for; None if it gives none."""
        try:
            given = self._client.infer(self._name, self._signature, request.inputs)
        except (ShipliftError, KeyError, ValueError):
            return None
        return {name: array for name, array in given.items() if name in request.outputs and array is not None}


class _Tap:
    """A server's ring, found again when the server has started anew."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ring: Ring | None = None
        self._of: Process | None = None
        self._before, self._lost = RingCounters(), 0

    @property
    def lost(self) -> int:
        """How many requests of the share found no room, or were too large for it."""
        return self._lost + self._since()

    def follow(self, server: Process | None, share: float) -> None:
        """Has a server's requests copied for the next seconds; one that is gone, or has just come, has none yet."""
        if server is None or not alive(server):
            self.close()
            return
        if self._ring is None or self._of != server:
            self.close()
            with suppress(OSError, RingBroken):
                self._open(server)
        if self._ring:
            self._ring.keep_open(LEASE_S)
            self._ring.set_share(share)

    def take(self) -> list[CapturedRequest]:
        """The requests that wait, but not too many at once."""
        if self._ring is None:
            return []
        try:
            found, after = self._ring.records(_AT_ONCE)
        except RingBroken:
            self._ring.empty()
            self._lost += 1
            return []
        self._ring.advance(after)
        return found

    def close(self) -> None:
        """Ends the copying; what waits is dropped."""
        if self._ring:
            self._lost += self._since()
            self._before = RingCounters()
            with suppress(OSError):
                self._ring.set_share(0)
                self._ring.empty()
            self._ring.close()
        self._ring, self._of = None, None

    def _open(self, server: Process) -> None:
        folder = os.open(f"/proc/{worker(server.pid)}/root{FOLDER}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            self._ring = Ring(folder, self._name, reader=READER)
        finally:
            os.close(folder)
        self._of = server
        self._ring.set_share(0)
        self._ring.empty()  # what a shadow before this one left
        self._before = self._ring.counters()

    def _since(self) -> int:
        if self._ring is None:
            return 0
        now, before = self._ring.counters(), self._before
        return max(0, now.dropped + now.too_large - before.dropped - before.too_large)
