"""A person's decision to take a model out of service, or a version that no longer serves."""

import time

from pydantic import Field

from shiplift.runtime.records.base import Record


class Retirement(Record):
    """Who took what out of service, and why. `at` is in seconds since the epoch.

    `version` is the one that served (0: none did) or, if a single version was retired, that one.
    """

    by: str
    reason: str = ""
    at: float = 0.0
    version: int = 0

    @property
    def sentence(self) -> str:
        """Who retired it, when and why, for people."""
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.at))
        return f"retired by {self.by} on {when}{f': {self.reason}' if self.reason else ''}"


class Retiring(Record):
    """An order to retire a model or, with a `version`, that version. `force`: even if it is in use."""

    retirement: Retirement
    version: int = 0
    force: bool = False


class RetirementOrder(Record):
    """An order, and the model that it is about, as noted until it has been carried out."""

    model: str
    retiring: Retiring


class Traffic(Record):
    """The requests that clients sent to a model: so many in the last `window_s` seconds.

    The heartbeat's requests don't count. `last_at` is when the last one was noticed, in seconds since the epoch (0:
    none was). `unknown` says why nothing is known; empty if something is.
    """

    requests: int = Field(0, ge=0)
    window_s: float = Field(0.0, ge=0)
    last_at: float = 0.0
    unknown: str = ""

    @property
    def sentence(self) -> str:
        """What is in the way of retiring the model, for people; empty if nothing is."""
        if self.unknown:
            return f"whether clients send requests is not known: {self.unknown}"
        if not self.requests:
            return ""
        last = time.strftime("%H:%M:%S UTC", time.gmtime(self.last_at))
        return f"clients sent {self.requests} requests in the last {self.window_s:.0f} s, the last one at {last}"


class Dependent(Record):
    """A pipeline of models in production with a model as a member. `follows`: it is always the model's champion."""

    pipeline: str
    version: int
    member_version: int
    follows: bool

    @property
    def sentence(self) -> str:
        """How the pipeline depends on the model, for people."""
        how = "follows it" if self.follows else f"has version {self.member_version} of it"
        return f"pipeline {self.pipeline!r} version {self.version} {how}"


class Retired(Record):
    """A model, or a version of it, that is out of service.

    `served` is the version that served until then (0: none did). `versions` are those that can't serve again without a
    new release. `before`: it had been retired before, and `retirement` is the first one. `traffic` and `dependents` are
    what `force` overrode.
    """

    model: str
    version: int = 0
    served: int = 0
    versions: tuple[int, ...] = ()
    retirement: Retirement
    before: bool = False
    traffic: Traffic = Traffic()
    dependents: tuple[Dependent, ...] = ()

    @property
    def sentence(self) -> str:
        """What was retired, for people."""
        what = f"{self.model} version {self.version}" if self.version else self.model
        had = "had been" if self.before else "was"
        return f"{what} {had} {self.retirement.sentence}"
