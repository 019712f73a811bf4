"""The outbox: every event, and which target still has to get it, in one SQLite file of the home.

SQLite makes each write atomic, lets any process write, and finds an event that was told before by its id. Targets read
by their place in it, so an event costs one row however many targets are away.
"""

import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from pydantic import ValidationError

from shiplift.runtime.base.errors import Temporary
from shiplift.runtime.events.event import ModelEvent
from shiplift.runtime.records.base import Record

_BUSY_S = 5.0
KEPT = 10_000  # events, for `shiplift events`
_RECENT = 200  # ids of events that a target got
_MOST = 100_000  # events, however far behind a target is
_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, model TEXT, body TEXT);
CREATE TABLE IF NOT EXISTS places (
    target TEXT PRIMARY KEY, seq INTEGER, tries INTEGER DEFAULT 0, next_at REAL DEFAULT 0, problem TEXT DEFAULT '');
CREATE TABLE IF NOT EXISTS dead (target TEXT, id TEXT, body TEXT, problem TEXT, at REAL, PRIMARY KEY (target, id));
"""


class Place(Record):
    """How far a target is: the last event that it got or lost, failed tries of the next one, and when to try again."""

    target: str
    seq: int
    tries: int = 0
    next_at: float = 0.0
    problem: str = ""
    waiting: int = 0
    dead: int = 0


class Outbox:
    """The outbox of a home. Its methods raise `Temporary` if the file can't be used, as on a full disk."""

    def __init__(self, home: Path) -> None:
        self._file = home / "events.db"

    def add(self, event: ModelEvent, *, keep: int = KEPT) -> bool:
        """Keeps an event, and forgets the oldest beyond `keep`; returns false if it was told before."""
        with self._open() as database:
            row = (event.id, event.model, event.model_dump_json())
            done = database.execute("INSERT OR IGNORE INTO events (id, model, body) VALUES (?, ?, ?)", row)
            if not done.rowcount:
                return False
            seq = done.lastrowid or 0
            forgotten = min(seq - keep, self._passed(database, seq))
            database.execute("DELETE FROM events WHERE seq <= ?", (forgotten,))
            return True

    def events(
        self, *, after: int = 0, model: str = "", newest: int = 0, most: int = 1000
    ) -> list[tuple[int, ModelEvent]]:
        """Events with their numbers, in order: `most` of those after a number, or the `newest` so many."""
        query, values = "SELECT seq, body FROM events WHERE seq > ?", [after]
        where, more = (" AND model = ?", [model]) if model else ("", [])
        order = f" ORDER BY seq DESC LIMIT {int(newest)}" if newest else f" ORDER BY seq LIMIT {int(most)}"
        if not self._file.is_file():
            return []
        with self._open() as database:
            rows = database.execute(query + where + order, [*values, *more]).fetchall()
        found = [(int(seq), event) for seq, body in rows if (event := _event(body))]
        return sorted(found, key=lambda each: each[0])

    def place(self, target: str) -> Place:
        """How far a target is. A new one begins with what happens from now on."""
        with self._open() as database:
            last = database.execute("SELECT COALESCE(MAX(seq), 0) FROM events").fetchone()[0]
            database.execute("INSERT OR IGNORE INTO places (target, seq) VALUES (?, ?)", (target, last))
            return self._place(database, target)

    def begin(self, target: str, *, after: float, but: Collection[str]) -> None:
        """Places a target before the first event that it has not got: one after a time, and not one of these ids.

        Times are in seconds since the epoch.
        """
        query = "SELECT seq, id FROM events WHERE json_extract(body, '$.at') > ? ORDER BY seq"
        with self._open() as database:
            (last,) = database.execute("SELECT COALESCE(MAX(seq), 0) FROM events").fetchone()
            rows = database.execute(query, (after,)).fetchall()
            seq = next((int(seq) - 1 for seq, identity in rows if identity not in but), last)
            database.execute("INSERT OR REPLACE INTO places (target, seq) VALUES (?, ?)", (target, seq))

    def got(self, target: str, *, within_s: float) -> tuple[float, tuple[str, ...]]:
        """When the newest event happened that a target has got or lost, and the ids of those from shortly before on.

        The time is 0 if there is none.
        """
        query = """SELECT json_extract(body, '$.at') AS at, id FROM events, places
            WHERE target = ? AND events.seq <= places.seq ORDER BY at DESC LIMIT ?"""
        with self._open() as database:
            rows = database.execute(query, (target, _RECENT)).fetchall()
        newest = float(rows[0][0]) if rows else 0.0
        return newest, tuple(sorted(identity for at, identity in rows if at > newest - within_s))

    def retain(self, targets: Sequence[str]) -> None:
        """Forgets all other targets."""
        if self._file.is_file():
            with self._open() as database:
                for (name,) in database.execute("SELECT target FROM places").fetchall():
                    if name not in targets:
                        database.execute("DELETE FROM places WHERE target = ?", (name,))

    def places(self) -> list[Place]:
        """How far each target is that was ever told anything."""
        if not self._file.is_file():
            return []
        with self._open() as database:
            names = [name for (name,) in database.execute("SELECT target FROM places ORDER BY target").fetchall()]
            return [self._place(database, name) for name in names]

    def delivered(self, target: str, seq: int) -> None:
        """A target has every event up to this one, or does not want it."""
        self._move(target, seq)

    def failed(self, target: str, tries: int, next_at: float, problem: str) -> None:
        """A target could not be told; it is tried again then."""
        with self._open() as database:
            database.execute(
                "UPDATE places SET tries = ?, next_at = ?, problem = ? WHERE target = ?",
                (tries, next_at, problem, target),
            )

    def bury(self, target: str, events: Sequence[tuple[int, ModelEvent]], problem: str, *, keep: int = 10_000) -> None:
        """Gives up telling a target of these events, which are the oldest that it waits for."""
        with self._open() as database:
            rows = [(target, each.id, each.model_dump_json(), problem, time.time()) for _, each in events]
            database.executemany("INSERT OR REPLACE INTO dead VALUES (?, ?, ?, ?, ?)", rows)
            database.execute(
                "DELETE FROM dead WHERE rowid NOT IN (SELECT rowid FROM dead ORDER BY at DESC LIMIT ?)", (keep,)
            )
            if events:
                self._advance(database, target, events[-1][0])

    def _move(self, target: str, seq: int) -> None:
        with self._open() as database:
            self._advance(database, target, seq)

    @staticmethod
    def _advance(database: sqlite3.Connection, target: str, seq: int) -> None:
        database.execute(
            "UPDATE places SET seq = ?, tries = 0, next_at = 0, problem = '' WHERE target = ?", (seq, target)
        )

    @staticmethod
    def _place(database: sqlite3.Connection, target: str) -> Place:
        row = database.execute("SELECT seq, tries, next_at, problem FROM places WHERE target = ?", (target,)).fetchone()
        waiting = database.execute("SELECT COUNT(*) FROM events WHERE seq > ?", (row[0],)).fetchone()[0]
        dead = database.execute("SELECT COUNT(*) FROM dead WHERE target = ?", (target,)).fetchone()[0]
        seq, tries, next_at, problem = row
        return Place(target=target, seq=seq, tries=tries, next_at=next_at, problem=problem, waiting=waiting, dead=dead)

    @staticmethod
    def _passed(database: sqlite3.Connection, seq: int) -> int:
        """The last event that no target waits for; targets can't keep more than `_MOST` events."""
        (least,) = database.execute("SELECT MIN(seq) FROM places").fetchone()
        return seq if least is None else max(int(least), seq - _MOST)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._file, timeout=_BUSY_S)) as database, database:
                database.executescript(_SCHEMA)
                yield database
        except (sqlite3.Error, OSError) as error:
            raise Temporary(
                f"the events in {self._file} can't be used: {error}",
                do="Make room on the disk; if the file is broken, remove it.",
            ) from error


def _event(body: str) -> ModelEvent | None:
    try:
        return ModelEvent.model_validate_json(body)
    except ValidationError:  # of another version of Shiplift
        return None
