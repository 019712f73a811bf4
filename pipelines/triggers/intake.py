"""Turns a webhook delivery into a release, a run of `git_push`, or a refusal with its reason.

A delivery is trusted if its signature is valid and recent. Even then, only names and numbers are taken from it: the
registry must confirm that the version exists, and the settings must list the repository.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shiplift.pipelines.engines.answers import Accepted
from shiplift.pipelines.engines.argo.workflows import Push
from shiplift.pipelines.triggers.pushes import Find, read_push
from shiplift.pipelines.triggers.signatures import MAX_AGE_S, Refusal, check_github, check_gitlab, check_mlflow
from shiplift.runtime.base.errors import NotAdmitted, ShipliftError, StorageFull, Temporary
from shiplift.runtime.base.storage import room_for
from shiplift.runtime.records.drift import DriftReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.store.registry.terms import RETIRED_TAG, VersionInfo, check_name, request_of

_KEEP_DELIVERIES_S = 2 * MAX_AGE_S  # a sender's clock may be MAX_AGE_S ahead; after that, its signature is too old
_FORGET_EVERY_S = 30.0

Secrets = Callable[[], tuple[str, ...]]
Answer = tuple[int, str]


class VersionCreated(BaseModel):
    """The fields of `model_version.created` that the receiver uses."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(min_length=1, max_length=256)]
    version: Annotated[int, Field(ge=1, le=2**31)]


class WebhookBody(BaseModel):
    """The body of an MLflow webhook."""

    model_config = ConfigDict(extra="ignore")

    entity: Literal["model_version"]
    action: Literal["created"]
    data: VersionCreated


class Deliveries:
    """Recent delivery ids, as files: creating a file is atomic, so exactly one request claims each id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next_cleanup = 0.0
        folder.mkdir(parents=True, exist_ok=True)

    def claim(self, delivery: str) -> bool:
        """Claims an id; returns False if another call already has."""
        file = self._file(delivery)
        try:
            with room_for("a delivery's id", self._folder):
                os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        self._forget_old()
        return True

    def unclaim(self, delivery: str) -> None:
        """Frees the id of a delivery that failed: the sender will retry with the same id."""
        self._file(delivery).unlink(missing_ok=True)

    def _file(self, delivery: str) -> Path:
        return self._folder / hashlib.sha256(delivery.encode()).hexdigest()

    def _forget_old(self) -> None:
        """Removes expired ids, but only from time to time, because listing thousands of files is slow."""
        if time.monotonic() < self._next_cleanup:
            return
        self._next_cleanup = time.monotonic() + _FORGET_EVERY_S
        limit = time.time() - _KEEP_DELIVERIES_S
        for file in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if file.stat().st_mtime < limit:
                    file.unlink()


@dataclass(frozen=True, kw_only=True)
class Intake:
    """What the receiver needs, on one machine or on a cluster.

    `find_version` asks the registry for a version (None: it has none). Secrets are read for each delivery. `deliveries`
    refuses duplicates, where release names don't reveal them. Pushes are accepted if `push` is set. `ready` raises the
    reason why no delivery can be accepted now. `reports` are those of drift, where it is measured.
    """

    accept: Callable[[Request, Trigger], Accepted]
    find_version: Callable[[str, int], VersionInfo | None]
    mlflow: Secrets
    deliveries: Deliveries | None = None
    push: Callable[[Push], Accepted] | None = None
    find: Find = lambda _: None
    github: Secrets = tuple
    gitlab: Secrets = tuple
    ready: Callable[[], object] = lambda: None
    reports: Callable[[], Iterable[DriftReport]] | None = None


def of_mlflow(intake: Intake, headers: Mapping[str, str], body: bytes) -> Answer:
    """Answers a delivery from MLflow with an HTTP status and a sentence; a new version starts a release."""
    refusal = check_mlflow(intake.mlflow(), headers, body, now=time.time())
    if refusal:
        return refusal
    try:
        event = WebhookBody.model_validate_json(body)
        check_name(event.data.name)
    except (ValidationError, NotAdmitted):
        return 200, "ignored: not a new model version"
    return _once(intake.deliveries, headers["x-mlflow-delivery-id"], partial(_release, intake, event.data))


def of_github(intake: Intake, headers: Mapping[str, str], body: bytes) -> Answer:
    """Answers a delivery from GitHub; a push starts a run of `git_push`."""
    refusal = check_github(intake.github(), headers, body)
    event = headers.get("x-github-event", "")
    if refusal is None and event == "ping":
        return 200, "pong"
    return refusal or _pushed(intake, "github", event == "push", body)


def of_gitlab(intake: Intake, headers: Mapping[str, str], body: bytes) -> Answer:
    """Answers a delivery from GitLab; a push starts a run of `git_push`."""
    refusal: Refusal | None = check_gitlab(intake.gitlab(), headers, body, now=time.time())
    return refusal or _pushed(intake, "gitlab", headers.get("x-gitlab-event", "") == "Push Hook", body)


def _release(intake: Intake, version: VersionCreated, delivery: str) -> Answer:
    info = intake.find_version(version.name, version.version)
    if info is None:
        return 200, "ignored: the registry has no such version"
    if RETIRED_TAG in info.tags:
        return 200, "ignored: the model was retired after this version was registered"
    trigger = Trigger(kind="webhook", delivery=delivery[:200], requested_at=time.time())
    return _accepted(intake.accept(request_of(info), trigger))


def _pushed(intake: Intake, host: Literal["github", "gitlab"], is_push: bool, body: bytes) -> Answer:
    if not is_push or intake.push is None:
        return 200, "ignored: not a push of commits to a branch"
    push = read_push(host, body, intake.find)
    if not isinstance(push, Push):
        return push
    act = intake.push
    return _answered(lambda: _accepted(act(push)))


def _once(deliveries: Deliveries | None, delivery: str, act: Callable[[str], Answer]) -> Answer:
    """Acts on a delivery, unless one with the same id has succeeded before."""
    if deliveries is None:
        return _answered(partial(act, delivery))
    try:
        if not deliveries.claim(delivery):
            return 409, "this delivery was received before"
    except StorageFull as error:
        return 503, error.what
    status = 500
    try:
        status, message = _answered(partial(act, delivery))
    finally:
        if status >= 500:  # the sender retries these
            deliveries.unclaim(delivery)
    return status, message


def _answered(act: Callable[[], Answer]) -> Answer:
    """Turns errors into answers. 503 makes the sender retry. Details of other errors go only to the log."""
    try:
        return act()
    except (Temporary, StorageFull) as error:
        return 503, error.what
    except ShipliftError as error:
        structlog.get_logger().error("a delivery failed", error=str(error))
        return 500, f"{error.title}: see the receiver's log"


def _accepted(accepted: Accepted) -> Answer:
    return 202, f"{'accepted' if accepted.created else 'already there'}: {accepted.name}"
