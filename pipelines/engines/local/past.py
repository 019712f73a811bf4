"""Past releases of a home. Reports are stored with the releases and, in the registry, with the versions."""

from contextlib import suppress
from pathlib import Path

from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.pipelines.engines.pages import with_page
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.store.published import PublishedRelease, retired_since
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.rest import RestRegistry
from shiplift.runtime.store.registry.terms import TAG


def report_of(home: Path, model: str, version: int) -> ReleaseReport:
    """The newest report of a version: from this home, else from the registry.

    Raises:
        NotFound: the version was never released.
        StackDown: the version was not released from this home, and the registry is down.
    """
    releases = Releases(home)
    ended = [name for name in releases.of(model, version) if releases.result(name)]
    if ended:
        report = _result(releases, max(ended, key=lambda name: _ended_at(releases, name)))
        return report.model_copy(update={"retired": _retired_since(home, report)})
    registry = Registry(stack.require(home).registry_uri)
    return with_page(PublishedRelease(registry, registry.version(model, version)), home)


def reports_of(home: Path, model: str) -> list[ReleaseReport]:
    """The newest report of each version released from this home. If a model has none here, those in the registry."""
    releases = Releases(home)
    names = releases.of(model) if model else releases.names()
    newest: dict[tuple[str, int], ReleaseReport] = {}
    for name in sorted(names, key=lambda name: _ended_at(releases, name)):
        if report := releases.result(name):
            newest[report.model, report.version] = report
    return list(newest.values()) if newest or not model else _in_registry(home, model)


def _in_registry(home: Path, model: str) -> list[ReleaseReport]:
    registry = Registry(stack.require(home).registry_uri)
    published = [PublishedRelease(registry, info) for info in registry.versions(model)]
    return [report for release in published if (report := release.find())]


def _retired_since(home: Path, report: ReleaseReport) -> str:
    """Who took the version out of service since; empty if nobody did, or if the registry does not answer."""
    with suppress(ShipliftError):
        info = RestRegistry(stack.require(home).registry_uri).version(report.model, report.version)
        return retired_since(info) if info and info.tags.get(f"{TAG}release") == report.release else ""
    return ""


def _result(releases: Releases, name: str) -> ReleaseReport:
    report = releases.result(name)
    assert report is not None  # noqa: S101 - it has ended
    return report


def _ended_at(releases: Releases, name: str) -> float:
    file = releases.folder(name) / "result.json"
    return file.stat().st_mtime if file.is_file() else 0.0
