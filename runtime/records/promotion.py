"""What production serves: the champion, its promotion, and aliases that say otherwise."""

from typing import Literal

from shiplift.runtime.records.base import Record, volatile
from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.records.deployment import Endpoint
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.retirement import Retirement


class Champion(Record):
    """The version that a challenger is compared with; version 0 if there is none yet.

    `own` is the released version's package, if that version is itself the champion and is released again. `quarantined`
    says why production kept the released version apart once; empty if it never did.
    """

    version: int = 0
    package: Package | None = None
    own: Package | None = volatile(None)
    quarantined: str = ""


class Beside(Record):
    """The package of another target that serves with a version's first one, and the capacity of one of its replicas."""

    package: Package
    capacity: Capacity | None = volatile(None)


class Promotion(Record):
    """The champion after a promotion or a rollback, stored with its version so that it can be compared and restored.

    It is stored before the traffic moves, with `unfinished` naming what has begun, and again once the aliases have
    moved. `capacity` is what the load test measured of one replica; None if it measured nothing. `others` are the
    packages of other targets that serve with it. `registered_at` and `digest` say which version was judged, as in
    `ModelVersion`; records of earlier versions of Shiplift lack them. While it is unfinished, `replaced` is the
    finished promotion of the same version that it takes the place of, if the version served before: an abort puts it
    back. One that was `retired` is history: it makes nothing serve again.
    """

    model: str
    version: int
    registered_at: float = 0.0
    digest: str = ""
    alias: str
    endpoint: Endpoint = volatile()
    previous: int = volatile(0)
    package: Package
    replicas: int = volatile(1)
    capacity: Capacity | None = volatile(None)
    others: tuple[Beside, ...] = ()
    unfinished: Literal["", "promotion", "rollback"] = volatile("")
    replaced: "Promotion | None" = volatile(None)
    retired: Retirement | None = volatile(None)

    @property
    def finished(self) -> "Promotion | None":
        """This promotion, or while it is unfinished the one that it takes the place of; None if there is none."""
        return self.replaced if self.unfinished else self


class Abort(Record):
    """A person's order to end a release: all traffic goes back to the champion. `at` is in seconds since the epoch."""

    by: str
    reason: str = ""
    at: float = 0.0

    @property
    def sentence(self) -> str:
        """Who aborted it and why, for people."""
        return f"aborted by {self.by}{f': {self.reason}' if self.reason else ''}"


class Moving(Record):
    """A promotion whose traffic moves, as the place that serves notes it. `abort` ends it, until it is `committed`.

    `requested_at` is the time of the release's trigger, which tells two releases of a version apart. An order to abort
    may come before the promotion has `begun`. On a cluster, `revision` is the `TritonRevision` that gets the traffic,
    and `before` the one that has it until then.
    """

    version: int
    requested_at: float = 0.0
    begun: bool = True
    revision: str = ""
    before: str = ""
    committed: bool = False
    abort: Abort | None = None

    def is_of(self, version: int, requested_at: float) -> bool:
        """Whether this is the promotion of a version by the release that was requested then."""
        return (self.version, self.requested_at) == (version, requested_at)

    def set_back(self, revision: str) -> bool:
        """Whether `revision`, which a `TritonService` names, means that someone has set that back by hand."""
        return bool(self.before) and revision == self.before and not (self.committed or self.abort)

    def keeps(self, revision: str) -> str:
        """The revision that has to stay ready, because all traffic may go back to it; empty if there is none."""
        return self.before if revision == self.revision and not (self.committed or self.abort) else ""


class AliasDrift(Record):
    """An alias that was moved by hand: it names `named` (0: none), but should name `version` (0: none)."""

    model: str
    alias: str
    named: int
    version: int

    @property
    def sentence(self) -> str:
        """What is wrong, for people."""
        named = f"names version {self.named}" if self.named else "was removed"
        should = f"version {self.version}" if self.version else "no version"
        return f"alias {self.alias!r} of {self.model!r} {named}, but production and its signed promotion say {should}"


class Reinstated(Record):
    """The aliases of a model that were moved back to what production serves."""

    moved: tuple[AliasDrift, ...] = ()
