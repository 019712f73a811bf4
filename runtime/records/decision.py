"""A version that waits for a person's approval, and what the person decided."""

import operator
import time
from typing import Literal

from pydantic import Field

from shiplift.runtime.records.base import Record


class Decision(Record):
    """A person's decision about a version that waits for approval. `at` is in seconds since the epoch.

    `via` says where it was found, if in the registry, which does not keep who decided: `by` is then a name that the tag
    gives, or empty.
    """

    approved: bool
    by: str
    reason: str = ""
    at: float = 0.0
    via: Literal["", "tag", "alias"] = Field("", exclude_if=operator.not_)  # older versions don't know this field

    @property
    def sentence(self) -> str:
        """Who decided what and why, for people."""
        what = "approved" if self.approved else "rejected"
        place = f"{'an' if self.via == 'alias' else 'a'} {self.via} in the registry" if self.via else ""
        who = f"{self.by}, says {place}" if self.by and place else self.by or place
        return f"{what} by {who}{f': {self.reason}' if self.reason else ''}"


class Approval(Record):
    """What waits for approval, since when and until when (seconds since the epoch), and the decision about it.

    `digest` is that of the version's files, `package` that of what will serve, `champion` the version that it would
    replace (0: none). `spec` is the one that was passed by hand, as in the request.
    """

    spec: str = ""
    digest: str = ""
    package: str = ""
    champion: int = 0
    since: float = 0.0
    until: float = 0.0
    decision: Decision | None = None

    def is_about(self, other: "Approval") -> bool:
        """Whether both are about the same bytes and the same champion."""
        ours, theirs = ((each.digest, each.package, each.champion) for each in (self, other))
        return ours == theirs

    @property
    def deadline(self) -> str:
        """Until when a decision counts, for people."""
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.until))
