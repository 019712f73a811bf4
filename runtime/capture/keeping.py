"""Keeps what pods captured, on a disk: the same files, limits and deletions as on one machine.

The pods' servers may have been taken over by their models, so nothing of a part is believed: only the package's own
settings say which columns are hashed or left out, and a record that makes no sense is refused.
"""

import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from shiplift.runtime.base.errors import DataInvalid, NotFound, ShipliftError, StorageFull
from shiplift.runtime.base.text import printable
from shiplift.runtime.capture.folder import CaptureFolder
from shiplift.runtime.capture.parts import Part
from shiplift.runtime.capture.ring import RingBroken, requests_in
from shiplift.runtime.capture.rows import table
from shiplift.runtime.capture.tidying import Tidier, what_failed
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.capturing import Capturing

_FIRST = 32  # bits of a request's number within its ring


class KeptPackage(Record):
    """A package whose requests are kept: its model's served name, and what its spec says."""

    served: str
    capturing: Capturing


class Keeper:
    """Keeps rows below `root`, with a folder for each model by served name; `secret` is the key of hashes.

    `package` finds one by its digest; None if nothing of it is kept. All models together may have `limit_bytes` (0:
    what the disk holds): Kubernetes ends a pod whose empty folder has more, and its rows with it.
    """

    def __init__(
        self,
        root: Path,
        secret: str,
        package: Callable[[str], KeptPackage | None],
        *,
        limit_bytes: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._root, self._secret, self._package, self._clock = root, secret, package, clock
        self._limit_bytes = limit_bytes
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._counted: dict[str, int] = {}  # the last part of each ring whose requests were counted
        self._tidier = Tidier(root, clock=clock)

    def folder(self, served: str) -> CaptureFolder:
        """The folder of a model's rows."""
        return CaptureFolder(self._root / served, self._clock)

    def put(self, part: Part, records: bytes) -> int:
        """Keeps a part; returns up to where the ring's records are kept. A part that is put twice is kept once.

        Raises:
            NotFound: nothing of this package is kept.
            DataInvalid: the records make no sense.
            StorageFull: no space is left.
        """
        known = self._package(part.package)
        if known is None or known.served != part.model:
            raise NotFound(f"nothing of package {part.package[:12]} is kept", do="See `capture` in its spec.")
        folder = self.folder(part.model)
        with self._locks[part.model]:
            try:
                self._require_room(len(records))
                rows = table(requests_in(records), known.capturing, self._secret, first=_number(part))
                if folder.settings() is None:
                    folder.keep_settings(known.capturing)
                end = part.after
                if rows is not None:
                    end = folder.add(rows, _name(part), part.after, self._secret)
            except RingBroken as error:
                self._note(folder, part, problem=f"what a server captured can't be read: {error}")
                raise DataInvalid(
                    f"what {part.model} captured can't be read: {error}", do="Look at its pods."
                ) from error
            except (ShipliftError, OSError) as error:
                self._note(folder, None, problem=f"capture has stopped: {what_failed(error)}")
                raise
            self._note(folder, part)
        return end

    def settle(self, served: Mapping[str, Capturing]) -> None:
        """Notes the settings of the packages that serve, which hold for all rows of their models."""
        for name, capturing in served.items():
            if self.folder(name).settings() != capturing:
                with self._locks[name]:
                    self.folder(name).keep_settings(capturing)

    def tidy(self) -> dict[str, str]:
        """Keeps every folder to its limits, also those of models that are captured no more; returns what failed."""
        self._tidier.watch_clock()
        return self._tidier.tidy()

    def _require_room(self, more: int) -> None:
        used = sum(file.stat().st_size for file in self._root.glob("*/*.parquet")) if self._limit_bytes else 0
        if self._limit_bytes and used + more > self._limit_bytes:
            raise StorageFull(
                f"captured rows of all models have {used / 1e6:,.0f} MB of the {self._limit_bytes / 1e6:,.0f} MB",
                do="Raise `capture.size_gb` in the values, or lower `capture.limit` in specs.",
            )

    def _note(self, folder: CaptureFolder, part: Part | None, *, problem: str = "") -> None:
        """Counts a part's requests, once, and notes what is wrong."""
        state = folder.state()
        counts = {"captured": state.captured, "dropped": state.dropped, "too_large": state.too_large}
        if part and self._counted.get(part.identity) != part.tail:
            self._counted[part.identity] = part.tail
            counts = {name: count + getattr(part, name) for name, count in counts.items()}
        note = {**counts, "at": self._clock(), "problem": printable(problem, limit=300)}
        folder.note(state.model_copy(update=note))


def _number(part: Part) -> int:
    """The number of a part's first request, which no other pod gives to one of its own."""
    drawn = int.from_bytes(hashlib.sha256(part.identity.encode()).digest()[:3])
    return (drawn << _FIRST) + part.tail


def _name(part: Part) -> str:
    """The name of the part's file, in hex: the same however often it is sent."""
    return hashlib.sha256(f"{part.identity} {part.tail}".encode()).hexdigest()[:16]
