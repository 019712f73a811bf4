"""What happened to models on a cluster, read from Workflows: those that Argo has removed are not among it."""

import time
from collections.abc import Callable, Iterator, Mapping

from shiplift.pipelines.engines.argo.releases import ArgoReleases, concluding
from shiplift.pipelines.engines.argo.workflows import RELEASE_TEMPLATE, Run
from shiplift.runtime.events.event import ModelEvent, begun, ended
from shiplift.runtime.records.request import Trigger

_FOLLOW_S = 2.0
Link = Callable[[str, int], str]  # the address of a version's release on the live page; empty if there is none


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


def events_of(runs: Mapping[str, Run], link: Link = lambda *_: "") -> list[ModelEvent]:
    """The beginnings and ends of releases in the order of their times, from all Workflows by name.

    The end of a release whose own exit handler did not run is in the Workflow that concluded it.
    """
    found = [each for run in runs.values() if run.template == RELEASE_TEMPLATE for each in _of(run, runs, link)]
    return sorted(found, key=lambda each: each.at)


def _all(releases: ArgoReleases, model: str) -> list[ModelEvent]:
    found = events_of({run.name: run for run in releases.everything(model=model)})
    return [each for each in found if model in ("", each.model)]


def _of(run: Run, runs: Mapping[str, Run], link: Link) -> Iterator[ModelEvent]:
    if run.request is None or not run.first_pod_at:
        return
    trigger, page = run.trigger or Trigger(), link(run.request.model, run.request.version)
    yield begun(run.name, run.request, trigger, run.first_pod_at, page)
    conclusion = runs.get(concluding(run.name))
    report = run.report or (conclusion.report if conclusion else None)
    if report and not run.active:
        yield ended(report, trigger, run.finished_at, page)
