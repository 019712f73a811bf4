"""Follows releases under way for browsers: one thread per release, however many watch it.

Browsers get whole states, never differences, and at most one each `_EVERY_S`, the same for all who watch. So ten
thousand events a second and two hundred browsers cost as much as two events and one browser, and one that returns after
an hour sees what is true, not what it missed.
"""

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from shiplift.pipelines.engines.protocol import Engine
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.records.release import Event

_EVERY_S = 0.5
_LOG_EVERY_S, _LOG_LINES = 2.0, 200
_STAGES = 1000
_CHARACTERS = 1000  # of a message, and of a line of the log: what is kept for browsers is bounded


@dataclass(kw_only=True, eq=False)
class State:
    """A release as its events tell it so far: the newest event of each stage, and the end of its log.

    `changes` grows with each change, and `shown` is how many of them watchers have been told of, all at the same time.
    `problem`: it can't be followed.
    """

    stages: dict[tuple[str, str], Event] = field(default_factory=dict)
    log: tuple[str, ...] = ()
    changes: int = 0
    shown: int = 0
    shown_at: float = float("-inf")
    ended: bool = False
    problem: str = ""

    def show(self) -> int:
        """The number of changes to tell of now: a new one at most each `_EVERY_S`."""
        if time.monotonic() - self.shown_at >= _EVERY_S:
            self.shown, self.shown_at = self.changes, time.monotonic()
        return self.shown

    @property
    def now(self) -> str:
        """What happens at the moment, in words."""
        running = [event for event in list(self.stages.values()) if event.kind != "finished"]
        if self.problem or not running:
            return self.problem or ("it ended" if self.ended else "it waits for its next stage")
        newest = running[-1]
        where = f"{newest.stage} for {newest.target}" if newest.target else newest.stage
        return f"{where}: {newest.message}" if newest.message else where


class Following:
    """The releases that somebody watches."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._states: dict[str, State] = {}
        self._watchers: Counter[str] = Counter()

    async def watch(self, release: str, name: str) -> AsyncIterator[State | None]:
        """Yields the state of a release (`name` is its `MODEL/VERSION`) as it changes, and None while it does not.

        Ends with the state in which it ended, or can't be followed any more.
        """
        state = self._joined(release, name)
        seen = -1
        try:
            while True:
                over, shown = state.ended or bool(state.problem), state.show()
                yield state if shown != seen or over else None
                if over:
                    return
                seen = shown
                await asyncio.sleep(_EVERY_S)
        finally:
            self._leave(release, state)

    @property
    def watchers(self) -> int:
        """How many watch, together."""
        return self._watchers.total()

    def _joined(self, release: str, name: str) -> State:
        self._watchers[release] += 1
        if release not in self._states:
            state = self._states[release] = State()
            arguments = (release, name, state)
            threading.Thread(target=self._follow, args=arguments, daemon=True, name=f"following {release}").start()
        return self._states[release]

    def _leave(self, release: str, state: State) -> None:
        self._watchers[release] -= 1
        over = state.ended or bool(state.problem)
        if (over or self._watchers[release] <= 0) and self._states.get(release) is state:
            del self._states[release]
        if self._watchers[release] <= 0:
            del self._watchers[release]

    def _follow(self, release: str, name: str, state: State) -> None:
        read_at = float("-inf")
        try:
            for event in self._engine.events(release):
                if self._states.get(release) is not state:
                    return  # the last browser that watched has left
                if event:
                    _add(state, event)
                if time.monotonic() - read_at > _LOG_EVERY_S:
                    self._read_log(name, state)
                    read_at = time.monotonic()
            self._read_log(name, state)
            state.ended = True
        except ShipliftError as error:
            state.problem = str(error)
        except Exception as error:  # our own bug: the page says so
            state.problem = f"this release can't be followed: {type(error).__name__}"
            raise

    def _read_log(self, name: str, state: State) -> None:
        with contextlib.suppress(ShipliftError):  # there is none yet
            log = tuple(line[:_CHARACTERS] for line in self._engine.logs(name, lines=_LOG_LINES, follow=False))
            if log != state.log:
                state.log = log
                state.changes += 1


def _add(state: State, event: Event) -> None:
    """Notes an event; progress keeps the last message if it has none of its own."""
    key = (event.stage, event.target)
    if key in state.stages or len(state.stages) < _STAGES:
        state.stages[key] = event.model_copy(update={"message": event.message[:_CHARACTERS]})
        state.changes += 1
