"""Who is told: a site's targets, and where their secrets are. A secret is in no record, and in no message."""

import os
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.events.event import ModelEvent
from shiplift.runtime.events.forges import FORGES, Forge, concerns
from shiplift.runtime.events.kinds import EventKind
from shiplift.runtime.records.base import Record

Format = Literal["cloudevents", "slack", "teams", "github", "gitlab"]
_MAX_SECRET_BYTES = 4096


class EventTarget(Record):
    """An HTTP address that gets events; a `name` keeps its place in the outbox when its address changes.

    The address is `url`, or in the file `url_file` or the environment variable `url_env`: that of a chat is a secret.
    `secret_file` or `secret_env` have the secret that signs, for `cloudevents` only. `kinds` are those that it gets
    (empty: all), `models` the models that it hears of (empty: all). A `hook` gets only the events for which a model's
    spec names it, and no spec can name another target. `timeout_s` bounds one delivery.

    The formats `github` and `gitlab` give the commits of a `repository` (`OWNER/NAME`) their status: the address is
    then that of the API, by default the public one, and the secret is the token.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    url: str = ""
    url_file: str = ""
    url_env: str = ""
    format: Format = "cloudevents"
    repository: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)+)?$", max_length=200)
    secret_file: str = ""
    secret_env: str = ""
    kinds: tuple[EventKind, ...] = ()
    models: tuple[str, ...] = ()
    hook: bool = False
    timeout_s: float = Field(10, gt=0, le=60)

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        addresses = sum(map(bool, (self.url, self.url_file, self.url_env)))
        if addresses != 1 and (addresses or not self.forge):
            raise ValueError("needs exactly one of url, url_file and url_env")
        if bool(self.forge) != bool(self.repository):
            raise ValueError(
                "needs repository, OWNER/NAME" if self.forge else "has a repository, but no forge's format"
            )
        if self.forge and not (self.secret_file or self.secret_env):
            raise ValueError("needs secret_file or secret_env, with the token")
        if self.forge and self.hook:
            raise ValueError("gives commits their status, and can't be a hook")
        if self.hook and self.kinds:
            raise ValueError("is a hook, which gets what specs name it for: leave out kinds")
        if self.secret_file and self.secret_env:
            raise ValueError("has both secret_file and secret_env: leave one out")
        if self.url:
            _check(self.url, token=self.forge is not None)
        return self

    @property
    def forge(self) -> Forge | None:
        """The forge whose commits get a status; None for other formats."""
        return FORGES.get(self.format)

    def address(self) -> str:
        """Its URL.

        Raises:
            SpecInvalid: its file or variable is missing, or has no URL.
        """
        known = self.url or (self.forge.api if self.forge and not (self.url_file or self.url_env) else "")
        text = known or self._read(self.url_file, self.url_env, "address")
        try:
            return _check(text, token=self.forge is not None)
        except ValueError as error:
            raise SpecInvalid(f"events target {self.name!r}: the address {error}", do="Correct it.") from None

    def secret(self) -> str:
        """The secret that signs; empty if it has none.

        Raises:
            SpecInvalid: its file or variable is missing.
        """
        return self._read(self.secret_file, self.secret_env, "secret") if self.secret_file or self.secret_env else ""

    def wants(self, event: ModelEvent) -> bool:
        """Whether it hears of this."""
        if self.models and event.model not in self.models:
            return False
        if self.forge and not concerns(event, self.repository):
            return False
        return event.hook == self.name if self.hook else not self.kinds or event.kind in self.kinds

    def _read(self, file: str, variable: str, what: str) -> str:
        try:
            text = Path(file).read_bytes()[:_MAX_SECRET_BYTES].decode() if file else os.environ.get(variable, "")
        except (OSError, UnicodeDecodeError):
            text = ""
        if not text.strip():
            where = f"file {file}" if file else f"variable {variable}"
            raise SpecInvalid(f"events target {self.name!r}: {where} has no {what}", do="Write it there.")
        return text.strip()


class EventSettings(Record):
    """Who is told what happens to models, and how long.

    A target that has more than `waiting` events before it loses the oldest to the dead
    letters, and so it does with those that are older than `give_up_hours`.
    """

    targets: tuple[EventTarget, ...] = Field((), max_length=16)
    waiting: int = Field(5_000, ge=1, le=50_000, strict=True)
    give_up_hours: float = Field(72, gt=0, le=24 * 365)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [target.name for target in self.targets]
        if len(set(names)) < len(names):
            raise ValueError("targets: two have the same name")
        return self


def _check(url: str, *, token: bool) -> str:
    """The URL, if it is one; a `token` is sent in clear only to this machine."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url:
        raise ValueError("is not a URL that begins with http:// or https://")
    if parts.username or parts.password:
        raise ValueError("must contain no credentials")
    if token and parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        raise ValueError("must begin with https://, since a token is sent to it")
    return url
