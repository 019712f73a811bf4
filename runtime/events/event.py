"""An event: what happened to which model, for people and programs."""

import hashlib
import json
import operator
from datetime import UTC, datetime

from pydantic import Field

from shiplift.runtime.base.text import printable
from shiplift.runtime.events.kinds import ENDED, PREFIX, EventKind
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.request import Request, Trigger

_TEXT = 1000  # characters of a reason: names and reasons come from others


class ModelEvent(Record):
    """Something that happened to a model. Two with the same `id` are the same one, however often it is told.

    `version` is 0 if it is about the model as a whole. `at` is in seconds since the epoch. `release` names the release.
    `hook` is a target that the model's spec asks to be told, too. If a git push started the release, `commit` and
    `repository` say which; `link` is where to read more. Links and repositories are empty if unknown.
    """

    id: str
    kind: EventKind
    model: str
    version: int = Field(0, ge=0)
    at: float
    text: str = ""
    release: str = ""
    hook: str = Field("", exclude_if=operator.not_)  # older versions don't know these fields
    commit: str = Field("", exclude_if=operator.not_)
    repository: str = Field("", exclude_if=operator.not_)
    link: str = Field("", exclude_if=operator.not_)

    @property
    def subject(self) -> str:
        """The model, or the version."""
        return f"{self.model}/{self.version}" if self.version else self.model

    @property
    def sentence(self) -> str:
        """What happened, in a line for people."""
        what = self.kind.value.partition(".")[2].replace("_", " ")
        return f"{self.subject} {what}{f': {self.text}' if self.text else ''}"

    def cloud_event(self, source: str) -> dict[str, object]:
        """The event in CloudEvents' JSON format, version 1.0; `source` is the URI of the installation."""
        names = ("model", "version", "text", "release", "commit", "repository", "link")
        data = {name: getattr(self, name) for name in names}
        return {
            "specversion": "1.0",
            "id": self.id,
            "source": source,
            "type": f"{PREFIX}{self.kind}",
            "subject": self.subject,
            "time": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "datacontenttype": "application/json",
            "data": {name: value for name, value in data.items() if value not in ("", 0)},
        }


def model_event(
    kind: EventKind,
    model: str,
    version: int,
    *,
    at: float,
    text: str = "",
    release: str = "",
    key: str = "",
    hook: str = "",
) -> ModelEvent:
    """An event. The `key` tells it apart from others of its kind about the same version; by default, its time does."""
    identity = json.dumps([kind, model, version, key or f"{at:.6f}"])
    return ModelEvent(
        id=hashlib.sha256(identity.encode()).hexdigest()[:32],
        kind=kind,
        model=model,
        version=version,
        at=at,
        text=printable(text, limit=_TEXT),
        release=release,
        hook=hook,
    )


def begun(release: str, request: Request, trigger: Trigger, at: float, link: str = "") -> ModelEvent:
    """A release began; one that a killed process begins again is the same."""
    key = f"{release} {trigger.requested_at}"
    event = model_event(EventKind.STARTED, request.model, request.version, at=at, release=release, key=key)
    return _of_push(event, trigger, link)


def ended(report: ReleaseReport, trigger: Trigger, at: float, link: str = "") -> ModelEvent:
    """A release ended."""
    kind, key = ENDED[report.outcome], f"{report.release} {trigger.requested_at}"
    text = "" if report.alias else report.reason
    event = model_event(kind, report.model, report.version, at=at, text=text, release=report.release, key=key)
    return _of_push(event, trigger, link)


def _of_push(event: ModelEvent, trigger: Trigger, link: str) -> ModelEvent:
    return event.model_copy(update={"commit": trigger.commit, "repository": trigger.repository, "link": link})
