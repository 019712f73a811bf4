"""A version that bakes: it serves all requests, and the version before it stays ready in case that it fails."""

from typing import Literal

from pydantic import Field

from shiplift.runtime.base.durations import in_short
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.promotion import Promotion

BakingState = Literal["baking", "alarmed", "rolled back", "passed", "ended"]


class Alarm(Record):
    """What ends a bake badly: a `kind` from the table of alarms, and the limit in the kind's own unit.

    `query` is PromQL, whose values must not be above the limit or, with `below`, not below it.
    """

    kind: str
    limit: float = 0.0
    query: str = ""
    below: bool = False


class BakeReading(Record):
    """One look at a version that bakes.

    `at_s` is from a clock that never goes back. `answered` and `failed` count its requests since its server started.
    `latency_ms` are quantiles of the last minute's requests; empty: there were none. `wrong` is what is wrong with its
    answers to the heartbeat (empty: nothing), and `drift` how its requests drifted (empty: not, or they are too few).
    None anywhere means that it could not be read. `values` are the results of the alarms' queries.
    """

    at_s: float
    answered: int | None = None
    failed: int | None = None
    latency_ms: dict[float, float] | None = None
    wrong: str | None = None
    drift: str | None = None
    values: dict[str, float | None] = Field(default_factory=dict)


class Baking(Record):
    """The bake of a version, as the place that serves notes it.

    `package` is the digest of what serves, `requested_at` the time of the release's trigger. `previous` is the version
    that serves again after an alarm, `former` its promotion. On a cluster, `package` is the revision that serves, and
    `before` the one that stays ready. `watched_s` is how long every alarm has been known to be
    quiet: neither the time of a clock nor the time in which nobody watched counts. `silent_s` is how long an alarm has
    said nothing now, and `unknown` which, and why. `reason` says why the bake is over, `told` that its end was told.
    """

    model: str
    version: int
    package: str = ""
    requested_at: float = 0.0
    previous: int = 0
    before: str = ""
    for_s: float
    silence_s: float = 600.0
    confidence: float = 0.95
    alarms: tuple[Alarm, ...] = ()
    watched_s: float = 0.0
    silent_s: float = 0.0
    unknown: str = ""
    state: BakingState = "baking"
    reason: str = ""
    told: bool = False
    former: Promotion | None = None

    @property
    def active(self) -> bool:
        """Whether it bakes, or an alarm has not led to its rollback yet."""
        return self.state in ("baking", "alarmed")

    @property
    def sentence(self) -> str:
        """How far it is, for people."""
        done = f"{in_short(self.watched_s)} of {in_short(self.for_s)}"
        if self.state == "baking":
            return f"baking {done}{f' ({self.unknown})' if self.unknown else ''}"
        if self.state == "alarmed":
            return f"rolling back after {done} of baking: {self.reason}"
        if self.state == "passed":
            return f"baked {in_short(self.for_s)} without an alarm"
        if self.state == "rolled back":
            return f"rolled back while baking: {self.reason}"
        return f"the bake ended after {done}: {self.reason}"

    @property
    def verdict(self) -> str:
        """Why the version was rolled back, for its tag; empty unless an alarm ended its bake."""
        return f"rolled back while baking: {self.reason}" if self.state in ("alarmed", "rolled back") else ""

    def is_of(self, package: str, requested_at: float) -> bool:
        """Whether this is the bake that a release's promotion began."""
        return (self.package, self.requested_at) == (package, requested_at)
