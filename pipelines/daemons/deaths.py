"""How soon a process of the stack that died is started again: one that dies again and again waits longer each time."""

from collections.abc import Iterable

from shiplift.runtime.serving.machine.pauses import pause_s

_SETTLED_S = 60.0  # a process that lived so long since it was started again has recovered


class Deaths:
    """The deaths of processes, by name. Times are in seconds, of any clock that never goes back.

    The first death costs no pause, the next ones cost 1 s, and twice as long each time, up to 5 min.
    """

    def __init__(self) -> None:
        self._in_a_row: dict[str, int] = {}
        self._started: dict[str, float] = {}
        self._waiting: dict[str, float] = {}

    def note(self, dead: Iterable[str], now: float) -> dict[str, tuple[int, float]]:
        """Notes which processes are dead. Returns those that have just died: the deaths in a row, and the pause."""
        self._waiting = {name: at for name, at in self._waiting.items() if name in dead}
        new = [name for name in dead if name not in self._waiting]
        for name in new:
            settled = now - self._started.get(name, float("-inf")) > _SETTLED_S
            self._in_a_row[name] = 1 if settled else self._in_a_row[name] + 1
            self._waiting[name] = now + pause_s(self._in_a_row[name] - 1)
        return {name: (self._in_a_row[name], self._waiting[name] - now) for name in new}

    def due(self, now: float) -> frozenset[str]:
        """The dead processes whose pause is over; they count as started now."""
        due = frozenset(name for name, at in self._waiting.items() if at <= now)
        self._started |= dict.fromkeys(due, now)
        self._waiting = {name: at for name, at in self._waiting.items() if name not in due}
        return due
