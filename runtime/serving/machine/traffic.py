"""How many requests clients sent to each model on this machine, as the heartbeat's process notes it every few seconds.

The server's counters contain the heartbeat's own requests, whose number it knows. After an operator's repair, a few of
the repair's own may count as clients': in doubt, a model has traffic.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.retirement import Traffic
from shiplift.runtime.serving.machine.served import served

WINDOW_S = 600.0
_FRESH_S = 20.0  # longer than the pause between two readings, even of a machine under load
_LEAST_S = 8.0  # readings cover at least so long before they say anything
_PATIENCE_S = 40.0
_POLL_S = 0.2
_UNTIL_LOOKED = "the heartbeat, which counts them, has not looked at the model for long enough"


class PackageTraffic(Record):
    """What is counted of a package: since and until when (seconds since the epoch), and the requests of each minute.

    `counted` is the server's counter at the last reading, and `own` what the heartbeat has sent since.
    """

    digest: str
    since: float
    until: float
    counted: int
    own: int = 0
    minutes: tuple[tuple[int, int], ...] = ()
    last_at: float = 0.0

    def after(self, counted: int, own: int, now: float) -> "PackageTraffic":
        """The tally after a reading; `own` is what the heartbeat sends after it.

        A counter that went back belongs to a model that was loaded again.
        """
        more = max(0, counted - self.counted - self.own)
        minute, oldest = int(now // 60), int((now - WINDOW_S) // 60)
        minutes = {at: requests for at, requests in self.minutes if at > oldest}
        if more:
            minutes[minute] = minutes.get(minute, 0) + more
        changes = {"until": now, "counted": counted, "own": own, "minutes": tuple(sorted(minutes.items()))}
        return self.model_copy(update=changes | ({"last_at": now} if more else {}))

    @property
    def traffic(self) -> Traffic:
        """What it says of clients."""
        window_s = min(WINDOW_S, self.until - self.since)
        requests = sum(requests for _, requests in self.minutes)
        return Traffic(requests=requests, window_s=round(window_s, 1), last_at=self.last_at)


_TALLIES = TypeAdapter(dict[str, PackageTraffic])


def tallies(home: Path) -> dict[str, PackageTraffic]:
    """The tallies of all served models, by their served names."""
    with suppress(FileNotFoundError, ValidationError):
        return _TALLIES.validate_json(_file(home).read_bytes())
    return {}


def write(home: Path, counted: Mapping[str, PackageTraffic]) -> None:
    """Replaces the tallies of all served models."""
    write_atomically(_file(home), _TALLIES.dump_json(dict(counted)))


def traffic_of(home: Path, model: str, *, patience_s: float = _PATIENCE_S) -> Traffic:
    """The requests of a model's clients; waits until enough readings of the package that serves exist."""
    deadline = time.monotonic() + patience_s
    while True:
        state, tally = served(home, model), tallies(home).get(serving_name(model))
        if state and tally and _tells(tally, state.package):
            return tally.traffic
        if time.monotonic() >= deadline:
            return Traffic(unknown=_UNTIL_LOOKED)
        time.sleep(_POLL_S)


def _tells(tally: PackageTraffic, package: Package) -> bool:
    same, fresh = tally.digest == package.repository.sha256, time.time() - tally.until <= _FRESH_S
    return same and fresh and tally.until - tally.since >= _LEAST_S


def _file(home: Path) -> Path:
    return home / "production" / "traffic.json"
