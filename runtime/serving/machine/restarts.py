"""How soon a server may be restarted because of requests that never end.

A restart takes every model down for some seconds. A client that repeats such a request must not be able to cause
restart after restart, so each pause is twice as long as the one before. Times are in seconds, of any clock that never
goes back.
"""

from dataclasses import dataclass

FIRST_PAUSE_S = 60.0
LONGEST_PAUSE_S = 1800.0
HEALTHY_S = 3600.0  # after so long without a restart, the next one counts as the first


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """The restarts that requests have caused so far: how many in a row, and when the last one was."""

    in_a_row: int = 0
    last_at: float = 0.0

    def wait_s(self, now: float) -> float:
        """How long the next restart has to wait; 0 if it may happen at once."""
        before = self._in_a_row(now)
        if not before:
            return 0.0
        doubled = 2.0 ** min(before - 1, 16)  # already beyond the longest pause; floats overflow some day
        return max(0.0, self.last_at + min(FIRST_PAUSE_S * doubled, LONGEST_PAUSE_S) - now)

    def after(self, now: float) -> "Restarts":
        """The restarts after another one now."""
        return Restarts(in_a_row=self._in_a_row(now) + 1, last_at=now)

    def _in_a_row(self, now: float) -> int:
        return 0 if now - self.last_at > HEALTHY_S else self.in_a_row
