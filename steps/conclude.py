"""The last stage of every release, however it ended: removes staging, and publishes the results with the version.

It writes tags with the outcome, the release as JSON, the HTML report, and metrics that MLflow can compare. If the
registry is down, the release still ends.
"""

import time
from pathlib import Path
from typing import TypeVar

from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.families import table
from shiplift.runtime.gates.outcome import not_served, outcome_of, proof_seconds
from shiplift.runtime.gates.page import page_of
from shiplift.runtime.gates.publishing import publish, registry_may_be_down
from shiplift.runtime.gates.report import Story
from shiplift.runtime.gates.story import story_of
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.measurement import LoadReport
from shiplift.runtime.records.release import Ending, ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Verdict
from shiplift.runtime.serving.dependents import release_dependents
from shiplift.runtime.serving.production import production
from shiplift.runtime.serving.rolling_back import tag_if_rolled_back
from shiplift.runtime.serving.staging import staging
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.history import History, load_table_or_nothing, server_config, server_config_or_reason
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry.terms import CHAMPION

R = TypeVar("R", bound=Record)


def conclude(site: Site, request: Request, trigger: Trigger, ending: Ending) -> ReleaseReport:
    """Removes staging, and writes the release's report to the home and, if the registry answers, to the registry.

    If the version was promoted, pipelines that follow the model are registered again.
    """
    staging(site, request.model, request.version).end()
    production(site).settle(request.model, request.version)
    ledger = Ledger(site, request)
    story = _story(site, ledger, ending)
    page = Path(site.home) / "releases" / ending.release / "report.html"
    report = _report(site, request, trigger, ending, story).model_copy(update={"report": str(page)})
    html = page_of(report, story)
    write_atomically(page, html)
    with registry_may_be_down():
        publish(site, ledger, trigger, ending, report, story, html)
    if report.alias:
        with registry_may_be_down():
            tag_if_rolled_back(site, ledger.registry, request.model, request.version)
        with registry_may_be_down():
            release_dependents(site, request.model, request.version, ledger.registry)
    return report


class _AvailableHistory(History):
    """A release's history that skips records it can't read now, since the registry may be down."""

    def last(self, kind: type[R]) -> R | None:
        """The record of a type; None if there is none or it can't be read."""
        with registry_may_be_down():
            return super().last(kind)
        return None


def _story(site: Site, ledger: Ledger, ending: Ending) -> Story:
    history = _AvailableHistory(ledger, ending.stages, ending.givers)
    config = server_config_or_reason(ArtifactStore(site.artifacts_uri), history.package)
    before = _champion_config(site, ledger, history.last(Verdict))
    figures = load_table_or_nothing(ArtifactStore(site.artifacts_uri), history.last(LoadReport))
    return story_of(history, table.export_summary, config=config, champion_config=before, load_table=figures)


def _champion_config(site: Site, ledger: Ledger, verdict: Verdict | None) -> str:
    """The configuration of the champion that was compared; empty if there is none or it can't be read."""
    champion = verdict.evidence.champion if verdict and verdict.evidence else None
    if champion is None:
        return ""
    with registry_may_be_down():
        request = Request(model=ledger.model, version=champion.version)
        promotion = Ledger(site, request, registry=ledger.registry).promotion()
        if promotion:
            return server_config(ArtifactStore(site.artifacts_uri), promotion.package)
    return ""


def _report(site: Site, request: Request, trigger: Trigger, ending: Ending, story: Story) -> ReleaseReport:
    promoted = any(run.name == "promote" and run.outcome == "ok" for run in ending.stages)
    outcome, code, reason = outcome_of(ending, promoted=promoted)
    now = time.time()
    registered = story.admitted.model_version.registered_at if story.admitted else 0.0
    since = registered if trigger.kind == "webhook" and registered else trigger.requested_at or ending.started_at
    return ReleaseReport(
        model=request.model,
        version=request.version,
        verdict=outcome,
        alias=CHAMPION if promoted else "",
        endpoint=production(site).endpoint(request.model) if promoted else None,
        stages=ending.stages,
        checks=ending.verdict.checks if ending.verdict else (),
        release=ending.release,
        reason=reason,
        exit_code=code,
        failure=ending.failure,
        seconds=round(now - ending.started_at, 3),
        since_request_seconds=round(now - since, 3),
        requested_at=round(since, 3),
        overhead_seconds=round(now - since - sum(run.measured_seconds for run in ending.stages), 3),
        trigger=trigger.kind,
        commit=trigger.commit,
        serving_target=next(iter(story.deployed), ""),
        serving_beside=story.deployed[1:],
        not_served=not_served(ending, story.deployed),
        left_out=dict(story.left_out),
        forms=story.exported.forms if story.exported else (),
        proof_seconds=proof_seconds(ending, story),
    )
