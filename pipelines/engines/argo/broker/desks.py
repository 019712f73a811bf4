"""The desks of a pod's stages, one after another: each stage may do only what it could do in a pod of its own.

The broker stores a stage's record, so it knows by itself when the stage has ended and what the next one takes. Then the
next stage's desk opens and the one before closes: what runs later in the pod can't touch an earlier stage's record. A
stage without a record in the ledger has no desk.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from shiplift.pipelines.engines.argo import pod
from shiplift.pipelines.engines.argo.broker.desk import Desk
from shiplift.pipelines.engines.argo.broker.version import VersionFolder
from shiplift.pipelines.engines.cache_key import has_key
from shiplift.pipelines.graph import Stage
from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.records.base import Record, Sections
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Site
from shiplift.runtime.store.registry.client import Registry

R = TypeVar("R", bound=Record)


class Desks:
    """`now` is the desk of the stage under way. Files are fetched into `folder`."""

    def __init__(self, call: pod.Call, folder: Path, registry: Registry | None = None) -> None:
        site = _of(call, Site)
        registry = registry or Registry(site.registry_uri)
        self.version = VersionFolder(site, _of(call, Request), folder, registry)
        self._known = dict(call.arguments)
        first, *self._later = [stage for stage in call.stages if has_key(stage)]
        self.now = self._open(first)

    def _open(self, stage: Stage) -> Desk:
        def on_record(record: Record) -> None:
            if self.now is desk:
                self._close(record)

        arguments = {name: self._known[name] for name in self._names(stage)}
        desk = Desk(stage=stage, arguments=arguments, version=self.version, on_record=on_record)
        return desk

    def _names(self, stage: Stage) -> Sequence[str]:
        return [name for name in stage.takes if name in self._known]

    def _close(self, record: Record) -> None:
        sections = record.parts() if isinstance(record, Sections) else ()
        self._known |= {record.parameter(): record} | {name: getattr(record, name) for name in sections}
        if self._later:
            self.now = self._open(self._later.pop(0))


def _of(call: pod.Call, kind: type[R]) -> R:
    argument = call.arguments.get(kind.parameter())
    if not isinstance(argument, kind):
        stages = "+".join(stage.name for stage in call.stages)
        raise UsageError(f"the broker of {stages} needs --{kind.parameter()}", do="Pass it as JSON.")
    return argument
