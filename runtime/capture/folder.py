"""A model's captured rows on disk: Parquet files, and changes of them that happen as a whole or not at all.

A file is written under another name, and gets its own once it is whole; no file is changed afterwards. A change (one
more file, several joined into one, rows deleted) prepares new files, then writes a journal, and then renames and
removes what the journal says. Whoever comes after a kill finishes what a journal says, and removes what has none. A
file's name says from when to when it has rows and how many, so nothing has to be opened to know that.
"""

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from shiplift.runtime.base.storage import room_for, write_atomically
from shiplift.runtime.capture.rows import INPUT, hashed, hashed_text, joined, names
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.capturing import Captured, CaptureState, Capturing

_NAME = re.compile(r"(\d+)-(\d+)-(\d+)-([0-9a-f]+)\.parquet")
_NEW, _JOURNAL, _LOCK, _STATE, _DELETED, _SETTINGS = (
    ".new",
    "journal.json",
    "lock",
    "state.json",
    "deleted.json",
    "settings.json",
)
_END = b"shiplift.end"
_STATE_BYTES = 4096
_SMALL, _JOINED_BYTES = 32, 64 << 20
_KEPT_DELETIONS_S = 3600.0  # a deletion also holds for rows that were captured before it, and are written later
_SLACK_S = 3600.0  # so that a file is written anew once an hour at most
_MICRO = 1_000_000


@dataclass(frozen=True, kw_only=True)
class File:
    """A file of rows: from when to when, in microseconds since the epoch, and how many."""

    path: Path
    since: int
    until: int
    rows: int

    @classmethod
    def named(cls, name: str, folder: Path = Path()) -> Self | None:
        """The file of a name; None if no file of rows has such a name."""
        if not (match := _NAME.fullmatch(name)):
            return None
        since, until, rows = map(int, match.groups()[:3])
        return cls(path=folder / name, since=since, until=until, rows=rows)

    @property
    def size(self) -> int:
        """Its bytes; 0 if it was removed meanwhile."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0


class _Deletion(Record):
    """Values, as hashes, whose rows were deleted: no row of them that was captured by `until` is written later."""

    column: str
    hashes: tuple[str, ...]
    until: float


_DELETIONS = TypeAdapter(list[_Deletion])


class CaptureFolder:
    """The files of a model. Those who change them hold its lock, which the kernel releases if they die."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = path, clock

    # --- reading ---

    def files(self) -> list[File]:
        """The whole files, the oldest rows first."""
        found: list[File] = []
        with suppress(FileNotFoundError):
            found += filter(None, (File.named(entry.name, self.path) for entry in self.path.iterdir()))
        return sorted(found, key=lambda file: (file.since, file.until, file.path.name))

    def read(self, *, since: float = 0.0, until: float = float("inf")) -> pa.Table | None:
        """The rows captured from `since` to before `until`, in seconds since the epoch; None if there are none."""
        with self.locked():
            within = [file for file in self.files() if file.until >= since * _MICRO and file.since < until * _MICRO]
            parts = [_within(_read(file.path), since, until) for file in within]
        return joined(part for part in parts if part.num_rows)

    def link_into(self, folder: Path, *, since: float = 0.0, most: int | None = None) -> list[str]:
        """Links the `most` newest files (None: all) into a folder, but for those that end before `since`.

        Their names there stay while the originals are joined with others or deleted.
        """
        with self.locked():
            files = self.files()[-most:] if most else self.files()
            return [_linked(file.path, folder) for file in files if file.until >= since * _MICRO]

    def state(self) -> CaptureState:
        """What the writer last noted."""
        try:
            return CaptureState.model_validate_json((self.path / _STATE).read_bytes().strip(b"\0 \n"))
        except (OSError, ValueError):
            return CaptureState()

    def summary(self, model: str, capturing: Capturing | None) -> Captured:
        """What is kept, and what the writer says."""
        files, state = self.files(), self.state()
        return Captured(
            model=model,
            on=capturing is not None,
            share=capturing.share if capturing else 0.0,
            rows=sum(file.rows for file in files),
            files=len(files),
            size_bytes=sum(file.size for file in files),
            limit_bytes=capturing.limit_bytes if capturing else 0,
            since=min((file.since for file in files), default=0) / _MICRO if files else None,
            until=max((file.until for file in files), default=0) / _MICRO if files else None,
            dropped=state.dropped,
            too_large=state.too_large,
            problem=state.problem,
        )

    # --- writing ---

    def note(self, state: CaptureState) -> None:
        """Notes the writer's state in place: a full disk, which it may have to tell of, does not keep it from that."""
        self._make()
        body = state.model_dump_json().encode()
        file = os.open(self.path / _STATE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, body[:_STATE_BYTES].ljust(_STATE_BYTES), 0)
        finally:
            os.close(file)

    def add(self, table: pa.Table, name: str, end: int, secret: str) -> int:
        """Adds rows as a file, which remembers the `end` of what it was made from; returns the end.

        If there is a file of that `name`, in hex, nothing is added, and its end is returned: a writer that was killed
        wrote it, and did not say so any more.

        Raises:
            StorageFull: no space is left.
        """
        with self.locked():
            for file in self.files():
                if file.path.name.endswith(f"-{name}.parquet"):
                    return int((pq.read_schema(file.path).metadata or {}).get(_END, end))
            kept = self._without_deleted(table, secret)
            if kept.num_rows:
                self._change([(kept.replace_schema_metadata({_END: str(end)}), name)], [])
        return end

    def keep_settings(self, capturing: Capturing) -> None:
        """Keeps the settings, which hold for the rows also when their model is captured no more."""
        if self.settings() != capturing:
            self._make()
            write_atomically(self.path / _SETTINGS, capturing.model_dump_json(), mode=0o600)

    def settings(self) -> Capturing | None:
        """The settings that the rows were captured with; None if none were."""
        try:
            return Capturing.model_validate_json((self.path / _SETTINGS).read_bytes())
        except (OSError, ValueError):
            return None

    def tidy(self, *, age: bool = True) -> None:
        """Deletes rows that are too old, then the oldest files beyond the limit; joins small files.

        `age`: by the clock too.

        Raises:
            StorageFull: no space is left to join files.
        """
        if (capturing := self.settings()) is None:
            return
        with self.locked():
            if age:
                self._forget_old(capturing.retention_s)
            self._limit(capturing.limit_bytes)
            self._join()

    def delete(self, column: str, value: str, secret: str) -> int:
        """Deletes the rows whose input `column` has a value, from all files at once; returns how many.

        `column` is the spec's `key`. Rows that were captured before and are not written yet are left out when they are.

        Raises:
            StorageFull: no space is left; no row was deleted.
        """
        with self.locked():
            known = [each for each in self._deletions() if each.until > self._clock() - _KEPT_DELETIONS_S]
            hashes = tuple(sorted(hashed_text(value, secret)))
            known.append(_Deletion(column=column, hashes=hashes, until=self._clock()))
            write_atomically(self.path / _DELETED, _DELETIONS.dump_json(known), mode=0o600)
            old: list[Path] = []
            gone = 0

            def rewritten() -> Iterator[tuple[pa.Table, str]]:
                """One file after another, so that no more than one is in memory."""
                nonlocal gone
                for file in self.files():
                    before = _read(file.path)
                    after = _without(before, column, frozenset(hashes), secret, until=float("inf"))
                    if after.num_rows < before.num_rows:
                        gone += before.num_rows - after.num_rows
                        old.append(file.path)
                        if after.num_rows:
                            yield after, os.urandom(8).hex()

            self._change(rewritten(), old)
            return gone

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock, and finishes what a killed holder began."""
        self._make()
        handle = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._finish()
            yield
        finally:
            os.close(handle)

    def _make(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _change(self, new: Iterable[tuple[pa.Table, str]], old: Sequence[Path]) -> None:
        """Replaces the old files by the new tables, all at once. `old` may grow until the last of `new` was taken."""
        names_of_new = []
        with room_for("captured rows", self.path):
            for table, name in new:
                final = _file_name(table, name)
                _write(table, self.path / f"{final}{_NEW}")
                names_of_new.append(final)
        plan = {"add": names_of_new, "remove": [path.name for path in old]}
        if old:
            write_atomically(self.path / _JOURNAL, json.dumps(plan), mode=0o600)
        self._apply(plan)

    def _apply(self, plan: dict[str, list[str]]) -> None:
        for name in plan["remove"]:
            if _NAME.fullmatch(name) and name not in plan["add"]:
                (self.path / name).unlink(missing_ok=True)
        for name in plan["add"]:
            if _NAME.fullmatch(name):
                with suppress(FileNotFoundError):
                    (self.path / f"{name}{_NEW}").replace(self.path / name)
        (self.path / _JOURNAL).unlink(missing_ok=True)

    def _finish(self) -> None:
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            self._apply(json.loads((self.path / _JOURNAL).read_text()))
        (self.path / _JOURNAL).unlink(missing_ok=True)
        for partial in self.path.glob(f"*{_NEW}"):
            partial.unlink(missing_ok=True)

    def _forget_old(self, retention_s: float) -> None:
        oldest = int((self._clock() - retention_s) * _MICRO)
        for file in self.files():
            if file.until < oldest:
                file.path.unlink(missing_ok=True)
            elif file.since < oldest - int(min(_SLACK_S, retention_s / 20) * _MICRO):
                kept = _within(_read(file.path), oldest / _MICRO, float("inf"))
                self._change([(kept, os.urandom(8).hex())] if kept.num_rows else [], [file.path])

    def _limit(self, limit_bytes: int) -> None:
        sizes = [(file, file.size) for file in self.files()]
        total = sum(size for _, size in sizes)
        for file, size in sizes:
            if total <= limit_bytes:
                return
            file.path.unlink(missing_ok=True)
            total -= size

    def _join(self) -> None:
        """Joins neighbours, so that there are few files: as many small ones as make one large one at most."""
        run: list[File] = []
        for file in self.files():
            size = file.size
            if size > _JOINED_BYTES // 2 or sum(each.size for each in run) + size > _JOINED_BYTES:
                run = []
                continue
            run.append(file)
        if len(run) >= _SMALL:
            table = joined(_read(file.path) for file in run)
            if table is not None:
                self._change([(table, os.urandom(8).hex())], [file.path for file in run])

    def _deletions(self) -> list[_Deletion]:
        try:
            return _DELETIONS.validate_json((self.path / _DELETED).read_bytes())
        except (FileNotFoundError, ValueError):
            return []

    def _without_deleted(self, table: pa.Table, secret: str) -> pa.Table:
        for each in self._deletions():
            table = _without(table, each.column, frozenset(each.hashes), secret, until=each.until)
        return table


def _linked(file: Path, folder: Path) -> str:
    to = folder / file.name
    try:
        os.link(file, to)
    except OSError:  # another file system
        shutil.copyfile(file, to)
    return str(to)


def _read(path: Path) -> pa.Table:
    return pq.read_table(path, partitioning=None)


def _write(table: pa.Table, path: Path) -> None:
    """Writes a file that only its owner can read, down to the disk."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        pq.write_table(table, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())


def _file_name(table: pa.Table, name: str) -> str:
    span = pc.min_max(table.column("at").cast(pa.int64()))
    return f"{max(0, span['min'].as_py())}-{max(0, span['max'].as_py())}-{table.num_rows}-{name}.parquet"


def _within(table: pa.Table, since: float, until: float) -> pa.Table:
    at = table.column("at").cast(pa.int64())
    inside = pc.greater_equal(at, int(since * _MICRO))
    if until != float("inf"):
        inside = pc.and_(inside, pc.less(at, int(until * _MICRO)))
    return table.filter(inside)


def _without(table: pa.Table, column: str, hashes: frozenset[str], secret: str, *, until: float) -> pa.Table:
    """The rows but those with such a value, captured by `until`. The column may hold values, or their hashes."""
    found = [name for name in table.column_names if name.startswith(INPUT) and names(name, (column,))]
    if not found:
        return table
    latest = float("inf") if until == float("inf") else until * _MICRO
    at = table.column("at").cast(pa.int64()).to_pylist()
    keep = []
    for value, when in zip(table.column(found[0]).to_pylist(), at, strict=True):
        is_it = value is not None and (value in hashes or hashed(value, secret) in hashes)
        keep.append(not (is_it and when <= latest))
    return table.filter(pa.array(keep, pa.bool_()))


def export(table: pa.Table, file: Path) -> None:
    """Writes rows to a file of the caller's, whole or not at all, which only its owner can read.

    Raises:
        StorageFull: no space is left.
    """
    partial = file.with_name(f".{file.name}{_NEW}")
    try:
        with room_for(file.name, file.parent):
            _write(table, partial)
            partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
