"""Publishes a release with its version in the registry, where authors look: tags, files, metrics and a description."""

from collections.abc import Iterator
from contextlib import contextmanager

from shiplift.runtime.base.errors import RegistryDenied, ShipliftError, Temporary
from shiplift.runtime.gates import description
from shiplift.runtime.gates.figures import figures_of
from shiplift.runtime.gates.report import Story
from shiplift.runtime.records.release import Ending, ReleaseReport
from shiplift.runtime.records.request import Trigger
from shiplift.runtime.records.site import Site
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.published import path_of
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.terms import CHALLENGER


def publish(
    site: Site, ledger: Ledger, trigger: Trigger, ending: Ending, report: ReleaseReport, story: Story, html: str
) -> None:
    """Tags the version with the outcome, and keeps the report, its page and the metrics with the version's run.

    The version's description tells of the release below the author's own words. `html` is the page.

    Raises:
        Temporary: the registry is down: then nothing is published, and the reconciler lets it be done again.
    """
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
    with registry_may_be_down():
        model_id = ledger.info.model_id
        registry.metrics(run_id, figures_of(report, story), model_id=model_id, at_ms=int(ending.started_at * 1000))
    with registry_may_be_down():
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
def registry_may_be_down() -> Iterator[None]:
    """Ignores errors, because the release has ended all the same; the reconciler updates the registry later."""
    try:
        yield
    except ShipliftError:
        return
