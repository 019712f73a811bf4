"""The last stage of every release, however it ended: ends staging, and publishes the results with the model version.

It writes tags with the outcome, the release as JSON, the HTML report, and metrics that MLflow can compare. If the
registry is down, the release ends all the same.
"""

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from markupsafe import escape

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.families import table
from shiplift.runtime.gates.report import Story, render
from shiplift.runtime.gates.story import story_of
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.release import Ending, ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Check, Outcome, Verdict
from shiplift.runtime.serving.followers import release_followers
from shiplift.runtime.serving.production import production
from shiplift.runtime.serving.staging import staging
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.history import History, server_config, server_config_or_reason
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.published import path_of
from shiplift.runtime.store.registry.terms import CHALLENGER, CHAMPION

R = TypeVar("R", bound=Record)


def conclude(site: Site, request: Request, trigger: Trigger, ending: Ending) -> ReleaseReport:
    """Ends staging, and writes the release's report to the home and to the registry, if the registry answers.

    If the version was promoted, pipelines that follow the model are registered again.
    """
    staging(site, request.model, request.version).end()
    ledger = Ledger(site, request)
    story = _story(site, ledger, ending)
    report = _report(site, request, trigger, ending, story)
    folder = Path(site.home) / "releases" / ending.release
    page = folder / "report.html"
    report = report.model_copy(update={"report": str(page)})
    html = _page(report, story)
    write_atomically(page, html)
    with _registry_may_be_down():
        _publish(ledger, request, trigger, report, story, html)
    if report.alias:
        with _registry_may_be_down():
            release_followers(site, request.model, request.version, ledger.registry)
    return report


def _page(report: ReleaseReport, story: Story) -> str:
    """The report's page; if that can't be made, a plain one, since the release has ended all the same."""
    try:
        return render(report, story)
    except Exception as error:  # a bug of ours: it must not turn a promoted release into a failed one
        traceback.print_exception(error)
        why = f"This page could not be made ({type(error).__name__}: {error}). The release as JSON:"
        text = escape(f"{why}\n\n{report.model_dump_json(indent=1)}")
        return f"<!doctype html><meta charset=utf-8><title>{escape(report.release)}</title><pre>{text}</pre>\n"


class _AvailableHistory(History):
    """A release's history without the records that can't be read now, since the registry may be down."""

    def last(self, kind: type[R]) -> R | None:
        """The record of a type; None if there is none or it can't be read."""
        with _registry_may_be_down():
            return super().last(kind)
        return None


def _story(site: Site, ledger: Ledger, ending: Ending) -> Story:
    history = _AvailableHistory(ledger, ending.stages, ending.givers)
    config = server_config_or_reason(ArtifactStore(site.artifacts_uri), history.package)
    champion_config = _champion_config(site, ledger, history.last(Verdict))
    return story_of(history, table.told, config=config, champion_config=champion_config)


def _champion_config(site: Site, ledger: Ledger, verdict: Verdict | None) -> str:
    """The configuration of the champion that it was compared with; empty if there is none or it can't be read."""
    evidence = verdict.evidence if verdict else None
    if evidence is None or evidence.champion is None:
        return ""
    with _registry_may_be_down():
        version = evidence.champion.version
        request = Request(model=ledger.model, version=version)
        promotion = Ledger(site, request, registry=ledger.registry).promotion()
        if promotion:
            return server_config(ArtifactStore(site.artifacts_uri), promotion.package)
    return ""


def _report(site: Site, request: Request, trigger: Trigger, ending: Ending, story: Story) -> ReleaseReport:
    promoted = any(run.name == "promote" and run.outcome == "ok" for run in ending.stages)
    outcome, code, reason = _outcome(ending, promoted=promoted)
    now = time.time()
    measured = sum(run.measured_seconds for run in ending.stages)
    registered = story.admitted.model_version.registered_at if story.admitted else 0.0
    since = registered if trigger.kind == "webhook" and registered else trigger.requested_at or ending.started_at
    checks: tuple[Check, ...] = ending.verdict.checks if ending.verdict else ()
    return ReleaseReport(
        model=request.model,
        version=request.version,
        verdict=outcome,
        alias=CHAMPION if promoted else "",
        endpoint=production(site).endpoint(request.model) if promoted else None,
        stages=ending.stages,
        checks=checks,
        release=ending.release,
        reason=reason,
        exit_code=code,
        failure=ending.failure,
        seconds=round(now - ending.started_at, 3),
        since_request_seconds=round(now - since, 3),
        overhead_seconds=round(now - since - measured, 3),
        trigger=trigger.kind,
        commit=trigger.commit,
        serving_target=next(iter(story.deployed), ""),
        serving_beside=story.deployed[1:],
        not_served=_not_served(ending, story.deployed),
        left_out=dict(story.left_out),
    )


def _not_served(ending: Ending, deployed: tuple[str, ...]) -> tuple[str, ...]:
    """The targets that a stage ran for or was skipped for, except the deployed ones."""
    names = dict.fromkeys(run.target for run in ending.stages if run.target)
    return tuple(name for name in names if name not in deployed) if deployed else ()


def _outcome(ending: Ending, *, promoted: bool) -> tuple[Outcome, int, str]:
    if ending.failure:
        outcome = Outcome.FAIL if ending.failure.about_model else Outcome.INCONCLUSIVE
        return outcome, ending.failure.exit_code, ending.failure.message
    verdict: Verdict | None = ending.verdict
    if verdict and verdict.outcome is not Outcome.PASS:
        return verdict.outcome, verdict.outcome.exit_code, "; ".join(verdict.reasons)
    if promoted:
        return Outcome.PASS, Outcome.PASS.exit_code, "every check passed"
    return Outcome.INCONCLUSIVE, ShipliftError.exit_code, "it did not finish"


def _publish(
    ledger: Ledger, request: Request, trigger: Trigger, report: ReleaseReport, story: Story, html: str
) -> None:
    registry, run_id = ledger.registry, ledger.run_id
    if not report.alias and registry.alias(request.model, CHALLENGER) == request.version:
        registry.move_alias(request.model, CHALLENGER, 0)
    page = path_of(report.release, "report.html")
    registry.write_text(run_id, path_of(report.release, "release.json"), report.model_dump_json(indent=1))
    registry.write_text(run_id, page, html)
    if story.config:
        registry.write_text(run_id, path_of(report.release, "config.pbtxt"), story.config)
    registry.metrics(run_id, **dict(_metrics(report)))
    registry.tag(
        request.model,
        request.version,
        release=report.release,
        verdict=str(report.verdict),
        outcome=report.outcome,
        reason="; ".join(text for text in (report.reason, report.targets_note) if text),
        report=page,
        report_link=registry.link(run_id, page),
        **({"commit": trigger.commit} if trigger.commit else {}),
    )


def _metrics(report: ReleaseReport) -> Iterator[tuple[str, float]]:
    for check in report.checks:
        if check.measured is not None and check.measured == check.measured and abs(check.measured) != float("inf"):
            yield check.name.replace(" ", "_"), check.measured


@contextmanager
def _registry_may_be_down() -> Iterator[None]:
    """Ignores errors, since the release has ended all the same; the reconciler updates the registry later."""
    try:
        yield
    except ShipliftError:
        return
