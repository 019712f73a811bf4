"""The last stage of every release, however it ended: removes staging, and publishes the results with the version.

It writes tags with the outcome, the release as JSON, the HTML report, and metrics that MLflow can compare. If the
registry is down, the release still ends.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from shiplift.runtime.base.errors import RegistryDenied, ShipliftError, Temporary
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.families import table
from shiplift.runtime.gates import description
from shiplift.runtime.gates.figures import figures_of
from shiplift.runtime.gates.outcome import not_served, outcome_of
from shiplift.runtime.gates.page import page_of
from shiplift.runtime.gates.report import Story
from shiplift.runtime.gates.story import story_of
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.release import Ending, ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Verdict
from shiplift.runtime.serving.dependents import release_dependents
from shiplift.runtime.serving.production import production
from shiplift.runtime.serving.staging import staging
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.history import History, server_config, server_config_or_reason
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.published import path_of
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.terms import CHALLENGER, CHAMPION

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
    with _registry_may_be_down():
        _publish(site, ledger, trigger, ending, report, story, html)
    if report.alias:
        with _registry_may_be_down():
            release_dependents(site, request.model, request.version, ledger.registry)
    return report


class _AvailableHistory(History):
    """A release's history that skips records it can't read now, since the registry may be down."""

    def last(self, kind: type[R]) -> R | None:
        """The record of a type; None if there is none or it can't be read."""
        with _registry_may_be_down():
            return super().last(kind)
        return None


def _story(site: Site, ledger: Ledger, ending: Ending) -> Story:
    history = _AvailableHistory(ledger, ending.stages, ending.givers)
    config = server_config_or_reason(ArtifactStore(site.artifacts_uri), history.package)
    before = _champion_config(site, ledger, history.last(Verdict))
    return story_of(history, table.export_summary, config=config, champion_config=before)


def _champion_config(site: Site, ledger: Ledger, verdict: Verdict | None) -> str:
    """The configuration of the champion that was compared; empty if there is none or it can't be read."""
    champion = verdict.evidence.champion if verdict and verdict.evidence else None
    if champion is None:
        return ""
    with _registry_may_be_down():
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
        overhead_seconds=round(now - since - sum(run.measured_seconds for run in ending.stages), 3),
        trigger=trigger.kind,
        commit=trigger.commit,
        serving_target=next(iter(story.deployed), ""),
        serving_beside=story.deployed[1:],
        not_served=not_served(ending, story.deployed),
        left_out=dict(story.left_out),
        forms=story.exported.forms if story.exported else (),
        proof_seconds=_proof_seconds(ending, story),
    )


def _proof_seconds(ending: Ending, story: Story) -> float:
    """How long this release's export and tuning proved; a cached stage proved nothing anew."""
    ran = {run.name for run in ending.stages if not run.cached}
    served = story.package.proof if story.package else None
    seconds = {
        Exported.parameter(): story.exported.proof_seconds if story.exported else 0.0,
        Tuned.parameter(): served.seconds if served else 0.0,
    }
    return round(sum(each for record, each in seconds.items() if ending.givers.get(record) in ran), 3)


def _publish(
    site: Site, ledger: Ledger, trigger: Trigger, ending: Ending, report: ReleaseReport, story: Story, html: str
) -> None:
    registry, run_id = ledger.registry, ledger.run_id
    if not report.alias and registry.alias(report.model, CHALLENGER) == report.version:
        registry.move_alias(report.model, CHALLENGER, 0)
    unkept = _kept(registry, run_id, report, story, html)
    page = "" if unkept else path_of(report.release, "report.html")
    link = registry.link(run_id, page) if page else ""
    reasons = (report.reason, report.targets_note, report.served_by, report.guarded_by, unkept)
    registry.tag(
        report.model,
        report.version,
        release=report.release,
        verdict=str(report.verdict),
        outcome=report.outcome,
        reason="; ".join(filter(None, reasons)),
        report=page,
        report_link=link,
        **({"commit": trigger.commit} if trigger.commit else {}),
    )
    with _registry_may_be_down():
        model_id = ledger.info.model_id
        registry.metrics(run_id, figures_of(report, story), model_id=model_id, at_ms=int(ending.started_at * 1000))
    with _registry_may_be_down():
        _describe(site, registry, report, link, unkept)


def _kept(registry: Registry, run_id: str, report: ReleaseReport, story: Story, html: str) -> str:
    """Keeps the release's files among the artifacts of the version's run; returns why they could not be, or "".

    Raises:
        Temporary: the registry is down: then nothing is published, and the reconciler lets it be done again.
    """
    files = {"release.json": report.model_dump_json(indent=1), "report.html": html, "config.pbtxt": story.config}
    try:
        for name, body in files.items():
            if body:
                registry.write_text(run_id, path_of(report.release, name), body)
    except ShipliftError as error:
        if isinstance(error, Temporary) and not isinstance(error, RegistryDenied):
            raise
        return f"The report could not be kept in the registry: {error}"
    return ""


def _describe(site: Site, registry: Registry, report: ReleaseReport, link: str, unkept: str) -> None:
    """Tells of the release below the author's words in the version's description, as they are now."""
    words = registry.version(report.model, report.version).description
    page = site.page_of(report.model, report.version)
    text = description.shortened(words, report, link=link, page=page, unkept=unkept)
    if text is not None and text != words:
        registry.describe(report.model, report.version, text)


@contextmanager
def _registry_may_be_down() -> Iterator[None]:
    """Ignores errors, because the release has ended all the same; the reconciler updates the registry later."""
    try:
        yield
    except ShipliftError:
        return
