"""What starts a release: which version, by which spec, and who asked."""

from typing import Literal

from shiplift.runtime.records.base import Record, volatile


class Request(Record):
    """Which model version to release, and the spec given by hand (YAML text; empty means: as logged, or defaults)."""

    model: str
    version: int
    spec: str = ""


class Trigger(Record):
    """Who asked, for lineage. `allow_older` lets a version older than the champion be promoted."""

    kind: Literal["webhook", "sweep", "manual", "git"] = volatile("manual")
    delivery: str = volatile("")
    commit: str = volatile("")
    requested_at: float = volatile(0.0)
    allow_older: bool = volatile(default=False)
