"""The models that production serves now, as the scoring protocol reaches them."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from starlette.concurrency import run_in_threadpool

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.records.scoring import AnswerForm
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.scoring.answers import form_of
from shiplift.runtime.serving.scoring.problems import UNAVAILABLE, UNKNOWN, ScoringProblem
from shiplift.runtime.serving.scoring.schema import InputSchema, schema_of

_KNOWN_S = 2.0  # how long a look-up stays valid
_AGAIN_S = 0.2  # how long it does after a refusal
LookUp = Callable[[], Sequence[ServedModel]]


@dataclass(frozen=True, kw_only=True)
class Scorable:
    """A served model, with what it takes and how it answers."""

    served: ServedModel

    @cached_property
    def schema(self) -> InputSchema:
        """Its inputs."""
        return schema_of(self.served)

    @cached_property
    def form(self) -> AnswerForm:
        """The form of its answers."""
        return form_of(self.served)


class ScoringModels:
    """The served models; `look_up` returns all of them. `default` is the one that answers without a name."""

    def __init__(self, look_up: LookUp, default: str = "") -> None:
        self._look_up, self._default = look_up, default
        self._known: dict[str, Scorable] = {}
        self._hosts: dict[str, Scorable] = {}
        self._known_at = float("-inf")
        self._lock = asyncio.Lock()

    async def named(self, name: str, host: str = "") -> Scorable:
        """The model of that name. Without a name: that of the request's host, the default, or the only one.

        Raises:
            ScoringProblem: there is none, or the models can't be looked up at the moment.
        """
        await self._refresh()
        found = self._known.get(name or self._default) or (self._of_host(host) if not name else None)
        if found is None:
            names = ", ".join(sorted(self._known)) or "none"
            what = f"no model {name!r} is in production" if name else "several models are in production, or none"
            message = f"{what}; send requests to /models/NAME/invocations. Models in production: {names}"
            raise ScoringProblem(404, message, code=UNKNOWN)
        return found

    async def again(self, before: Scorable) -> Scorable:
        """The same model as it is served now."""
        await self._refresh(_AGAIN_S)
        return await self.named(before.served.model)

    def _of_host(self, host: str) -> Scorable | None:
        only = next(iter(self._known.values())) if len(self._known) == 1 else None
        return self._hosts.get(host.partition(":")[0].lower()) or only

    async def _refresh(self, known_s: float = _KNOWN_S) -> None:
        if time.monotonic() - self._known_at <= known_s:
            return
        async with self._lock:
            if time.monotonic() - self._known_at <= known_s:
                return
            try:
                served = await run_in_threadpool(self._look_up)
            except ShipliftError as error:
                raise ScoringProblem(503, str(error), code=UNAVAILABLE) from error
            before = self._known
            self._known = {each.model: _kept(before.get(each.model), each) for each in served}
            self._hosts = {each.served.host.lower(): each for each in self._known.values() if each.served.host}
            self._known_at = time.monotonic()


def _kept(before: Scorable | None, served: ServedModel) -> Scorable:
    """What is known of the model already, if it is the same."""
    return before if before and before.served == served else Scorable(served=served)
