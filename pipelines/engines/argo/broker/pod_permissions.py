"""The permissions of a pod's stages, one stage at a time: each may do only what it could do in a pod of its own.

The broker stores each stage's record, so it knows when the stage has ended and what the next one takes. The next
stage's permissions then replace the current ones: code that runs later in the pod can't change an earlier record. A
stage without a record in the ledger has no permissions.

The broker also decides whether the pod continues with a fan-out, because the pod itself is not trusted. It works out
the items from records that it stored itself, and reads what other pods hand over from the signed ledger.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from tenacity import RetryError, Retrying, TryAgain, retry_if_exception_type, stop_after_delay, wait_fixed

from shiplift.pipelines.engines.argo.broker.permissions import StagePermissions
from shiplift.pipelines.engines.argo.broker.version import VersionFolder
from shiplift.pipelines.engines.argo.pod.call import Call, handover
from shiplift.pipelines.engines.cache_key import has_key
from shiplift.pipelines.engines.walk import parts_of
from shiplift.pipelines.graph import Stage
from shiplift.pipelines.release import RELEASE
from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Site
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry.client import Registry

_MEET_S, _LOOK_S = 20, 0.25
R = TypeVar("R", bound=Record)


class PodPermissions:
    """The permissions of a pod's stages; `now` are those of the current stage. Files are fetched into `folder`."""

    def __init__(self, call: Call, folder: Path, registry: Registry | None = None) -> None:
        site = _of(call, Site)
        registry = registry or Registry(site.registry_uri)
        self.version = VersionFolder(site, _of(call, Request), folder, registry)
        self._call = call
        self._known = dict(call.arguments)
        self._gone_on = False
        first, *self._later = [stage for stage in call.stages if has_key(stage)]
        self.now = self._open(first)

    def _open(self, stage: Stage) -> StagePermissions:
        def on_record(record: Record) -> None:
            if self.now is permissions:
                self._close(record)

        arguments = {name: self._known[name] for name in self._names(stage)}
        permissions = StagePermissions(
            stage=stage, arguments=arguments, version=self.version, on_record=on_record, go_on=self._go_on
        )
        return permissions

    def _names(self, stage: Stage) -> Sequence[str]:
        return [name for name in stage.takes if name in self._known]

    def _close(self, record: Record) -> None:
        self._learn(record)
        if self._later:
            self.now = self._open(self._later.pop(0))

    def _learn(self, record: Record) -> None:
        self._known |= parts_of(record)

    # --- going on with a fan-out ---

    def _go_on(self) -> dict[str, Record] | None:
        fan_out = self._call.then
        done = all(stage.gives.parameter() in self._known for stage in self._call.stages if has_key(stage))
        if fan_out is None or self._gone_on or not done:
            return None
        for stage in self._call.stages:
            if not has_key(stage):
                self._learn(stage.step(**{name: self._known[name] for name in stage.takes}))
        item, met = fan_out.only_item(self._known[fan_out.source]), self._meet()
        if item is None or met is None:
            return None
        taken = {fan_out.item.parameter(): item, **met}
        self._known |= taken
        self._gone_on = True
        first, *self._later = fan_out.stages
        self.now = self._open(first)
        return taken

    def _meet(self) -> dict[str, Record] | None:
        """The records that other pods hand over; None if one of them does not arrive in time."""
        givers = {name: stage for stage in RELEASE.flat() for name in stage.provides}
        awaited = {name: givers[name] for name in self._call.pod.met}
        ledger = Ledger(self.version.site, self.version.request, registry=self.version.registry)

        def look() -> dict[str, Record]:
            met: dict[str, Record] = {}
            for name, stage in awaited.items():
                record = ledger.get(handover(self._call.attempt, stage), stage.name, stage.gives)
                if record is None:
                    raise TryAgain
                met[name] = parts_of(record)[name]
            return met

        try:
            wait = Retrying(
                retry=retry_if_exception_type(TryAgain), stop=stop_after_delay(_MEET_S), wait=wait_fixed(_LOOK_S)
            )
            return wait(look)
        except RetryError:
            return None


def _of(call: Call, kind: type[R]) -> R:
    argument = call.arguments.get(kind.parameter())
    if not isinstance(argument, kind):
        stages = "+".join(stage.name for stage in call.stages)
        raise UsageError(f"the broker of {stages} needs --{kind.parameter()}", do="Pass it as JSON.")
    return argument
