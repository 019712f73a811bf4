"""What starts a release: which model version, with which spec, and on whose request."""

from typing import Literal

from shiplift.runtime.records.base import Record, volatile


class Request(Record):
    """The model version to release, and the spec passed by hand (YAML text; empty: the logged one, or defaults)."""

    model: str
    version: int
    spec: str = ""


class Trigger(Record):
    """Who asked for a release, for lineage. `allow_older` permits promoting a version older than the champion."""

    kind: Literal["webhook", "sweep", "manual", "git"] = volatile("manual")
    delivery: str = volatile("")
    commit: str = volatile("")
    requested_at: float = volatile(0.0)
    allow_older: bool = volatile(default=False)
