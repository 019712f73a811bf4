"""What happened to models on a cluster, read from Workflows: those that Argo has removed are not among it."""

import time
from collections.abc import Iterator

from shiplift.pipelines.engines.argo.releases import ArgoReleases
from shiplift.pipelines.engines.argo.workflows import Run
from shiplift.runtime.events.event import ModelEvent, begun, ended
from shiplift.runtime.records.request import Trigger

_FOLLOW_S = 2.0


def model_events(releases: ArgoReleases, model: str, *, newest: int, follow: bool) -> Iterator[ModelEvent]:
    """The beginnings and ends of releases, in order."""
    known: set[str] = set()
    found = _all(releases, model)
    known.update(each.id for each in found)
    yield from found[-newest:]
    while follow:
        time.sleep(_FOLLOW_S)
        new = [each for each in _all(releases, model) if each.id not in known]
        known.update(each.id for each in new)
        yield from new


def _all(releases: ArgoReleases, model: str) -> list[ModelEvent]:
    found = [each for run in releases.runs(model=model) for each in _of(run)]
    return sorted((each for each in found if model in ("", each.model)), key=lambda each: each.at)


def _of(run: Run) -> Iterator[ModelEvent]:
    if run.request is None or not run.first_pod_at:
        return
    trigger = run.trigger or Trigger()
    yield begun(run.name, run.request, trigger, run.first_pod_at)
    if run.report and not run.active:
        yield ended(run.report, trigger, run.finished_at)
