"""What starts a release: which model version, with which spec, and on whose request."""

import operator
from typing import Literal

from pydantic import Field

from shiplift.runtime.records.base import Record, volatile
from shiplift.runtime.records.decision import Decision


class Request(Record):
    """The model version to release, and the spec passed by hand (YAML text; empty: the logged one, or defaults).

    A number can be used again, so `registered_at` says which version is meant: when the registry created it, in seconds
    since the epoch (0: unknown, for example in a request of an earlier Shiplift).
    """

    model: str
    version: int
    spec: str = ""
    registered_at: float = 0.0

    def same_version(self, other: "Request") -> bool:
        """Whether both mean the same version, as far as they say: one that is unknown may be any."""
        named = (self.model, self.version) == (other.model, other.version)
        return named and same_time(self.registered_at, other.registered_at)


def same_time(registered_at: float, other: float) -> bool:
    """Whether a version registered at one time may be the one registered at the other; 0 is unknown."""
    return 0 in (registered_at, other) or registered_at == other


class Trigger(Record):
    """Who asked for a release, for lineage. `allow_older` permits promoting a version older than the champion.

    A git push has a `commit` and the path of its `repository`, such as `OWNER/NAME`.
    `decision` is a person's, about a version that waits for approval.
    """

    kind: Literal["webhook", "sweep", "manual", "git"] = volatile("manual")
    delivery: str = volatile("")
    commit: str = volatile("")
    requested_at: float = volatile(0.0)
    allow_older: bool = volatile(default=False)
    decision: Decision | None = volatile(None)
    repository: str = Field("", exclude_if=operator.not_, json_schema_extra={"volatile": True})
