"""Writes what rings hold to files: one file from each ring whenever it holds much, or something for long.

A ring's records stay in it until their file is on the disk, and a file is named by where its records were: a writer
that is killed at any line loses nothing, and the next one writes nothing twice. While a disk is full or broken, capture
stops and says so: records are counted and dropped, and requests go on.
"""

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.text import printable
from shiplift.runtime.capture.folder import CaptureFolder
from shiplift.runtime.capture.ring import CAPACITY, Ring, RingBroken, RingCounters
from shiplift.runtime.capture.rows import table
from shiplift.runtime.capture.tidying import Tidier, what_failed
from shiplift.runtime.records.capturing import CaptureState, Capturing

FLUSH_S = 5.0
_TRY_AGAIN_S = 30.0


@dataclass(kw_only=True)
class _Model:
    """What the writer has of a model: its ring, since when something waits in it, and what was dropped."""

    ring: Ring
    identity: str
    capturing: Capturing
    waits_since: float = 0.0
    fails_until: float = 0.0
    problem: str = ""
    lost: int = 0
    before: RingCounters = field(default_factory=RingCounters)
    total: RingCounters = field(default_factory=RingCounters)


class CaptureWriter:
    """The writer of one server's rings. `root` has a folder for each model; `secret` is the key of hashes.

    `clock` is the wall clock, and `steady` one that never jumps.
    """

    def __init__(
        self,
        root: Path,
        secret: str,
        *,
        capacity: int = CAPACITY,
        flush_s: float = FLUSH_S,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._secret = root, secret
        self._capacity, self._flush_s = capacity, flush_s
        self._clock, self._steady = clock, steady
        self._models: dict[str, _Model] = {}
        self._rings: tuple[int, int] | None = None
        self._tidier = Tidier(root, clock=clock, steady=steady)

    def look(self, rings: Path, wanted: Mapping[str, Capturing]) -> None:
        """Looks once: sets shares, and writes what waits. `wanted` has the captured models by their served name.

        `rings` is the server's folder of rings. A server that has gone, or has none, is no error.
        """
        self._tidier.watch_clock()
        try:
            folder = os.open(rings, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            self._forget()
            return
        try:
            self._open(folder, wanted)
        finally:
            os.close(folder)
        for name in self._models:
            self._write(name)

    @property
    def problems(self) -> dict[str, str]:
        """Why models are not captured at the moment, by served name."""
        return {name: model.problem for name, model in self._models.items() if model.problem}

    def tidy(self) -> dict[str, str]:
        """Keeps every folder to its limits, also those of models that are captured no more; returns what failed."""
        return self._tidier.tidy()

    def close(self) -> None:
        """Writes what waits, and closes the rings; their shares stay."""
        for name, model in self._models.items():
            model.waits_since = -self._flush_s
            self._write(name)
        self._forget()

    def _folder_of(self, name: str) -> CaptureFolder:
        return CaptureFolder(self._root / name, self._clock)

    def _forget(self) -> None:
        for model in self._models.values():
            model.ring.close()
        self._models, self._rings = {}, None

    def _open(self, folder: int, wanted: Mapping[str, Capturing]) -> None:
        entry = os.fstat(folder)
        if self._rings != (entry.st_dev, entry.st_ino):  # another server
            self._forget()
            self._rings = entry.st_dev, entry.st_ino
        for name, capturing in wanted.items():
            if name not in self._models:
                with suppress(OSError, RingBroken):
                    self._models[name] = self._opened(folder, name, capturing)
            if model := self._models.get(name):
                model.ring.set_share(capturing.share)
                if model.capturing != capturing:
                    model.capturing = capturing
                    with suppress(ShipliftError, OSError):
                        self._folder_of(name).keep_settings(capturing)
        for name, model in self._models.items():
            if name not in wanted:
                model.ring.set_share(0)

    def _opened(self, folder: int, name: str, capturing: Capturing) -> _Model:
        self._folder_of(name).keep_settings(capturing)
        ring, state = Ring(folder, name, self._capacity), self._folder_of(name).state()
        before = (
            ring.counters() if ring.tail else RingCounters()
        )  # of a server that another writer read before this one
        total = RingCounters(captured=state.captured, dropped=state.dropped, too_large=state.too_large)
        return _Model(ring=ring, identity=ring.identity, capturing=capturing, before=before, total=total)

    def _write(self, name: str) -> None:
        model, folder = self._models[name], self._folder_of(name)
        now = self._steady()
        try:
            self._drain(model, folder, now)
        except (ShipliftError, OSError) as error:
            model.problem = printable(f"capture has stopped: {what_failed(error)}", limit=300)
            model.fails_until = now + _TRY_AGAIN_S
        self._count(model)
        with suppress(OSError):
            folder.note(self._state(model))

    def _drain(self, model: _Model, folder: CaptureFolder, now: float) -> None:
        ring = model.ring
        waiting = ring.head - ring.tail
        if not waiting:
            model.waits_since = 0.0
            return
        if now < model.fails_until:
            self._lose(model)
            return
        model.waits_since = model.waits_since or now
        if waiting < ring.capacity // 4 and now - model.waits_since < self._flush_s:
            return
        tail = ring.tail
        try:
            records, after = ring.records(ring.capacity)
        except RingBroken as error:
            self._lose(model)
            model.problem = printable(f"what the server captured can't be read: {error}", limit=300)
            return
        rows = table(records, model.capturing, self._secret, first=tail)
        if rows is not None:
            after = folder.add(rows, self._name(model, tail), after, self._secret)
        ring.advance(after)
        model.waits_since, model.problem = 0.0, ""

    @staticmethod
    def _name(model: _Model, tail: int) -> str:
        """The name of the file with the records from `tail` on, in hex: the same whoever writes it."""
        return hashlib.sha256(f"{model.identity} {tail}".encode()).hexdigest()[:16]

    @staticmethod
    def _lose(model: _Model) -> None:
        before = model.ring.tail
        records = 0
        with suppress(RingBroken):
            records = len(model.ring.records(model.ring.capacity)[0])
        if model.ring.empty() or model.ring.tail != before:
            model.lost += max(records, 1)

    @staticmethod
    def _count(model: _Model) -> None:
        now, before, total = model.ring.counters(), model.before, model.total
        model.total = RingCounters(
            captured=total.captured + max(0, now.captured - before.captured) - model.lost,
            dropped=total.dropped + max(0, now.dropped - before.dropped) + model.lost,
            too_large=total.too_large + max(0, now.too_large - before.too_large),
        )
        model.before, model.lost = now, 0

    def _state(self, model: _Model) -> CaptureState:
        total = model.total
        return CaptureState(
            at=self._clock(),
            captured=max(0, total.captured),
            dropped=total.dropped,
            too_large=total.too_large,
            problem=model.problem,
        )
