"""Pages beside a release's own: two releases side by side, and all models of a home."""

import contextlib
from pathlib import Path
from typing import TypeVar

from shiplift.pipelines.engines.local import engine as control
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.runtime.base.errors import NotFound, ShipliftError, StackDown
from shiplift.runtime.base.names import release_name, serving_name
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.gates.report import Standing, Story, render_comparison, render_index
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.measurement import LoadReport, Tuned
from shiplift.runtime.records.release import ReleaseReport, stage_keys
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.serving import Deployment
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.spec.measurement import Slo
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry import CHAMPION
from shiplift.runtime.store.registry_rest import PATIENT_S, RestRegistry

R = TypeVar("R", bound=Record)


def comparison(home: Path, left: str, right: str) -> Path:
    """Writes the page of two releases, given as MODEL/VERSION, and gives its path.

    Raises:
        UsageError: one names no version.
        NotFound: one was never released.
    """
    sides = []
    for name in (left, right):
        model, version = control.split(name)
        if version is None:
            raise NotFound(f"{name!r} names no version", do="Write MODEL/VERSION, such as digits/3.")
        report = control.report_of(home, model, version)
        sides.append((report, story_of(site_of(home), report)))
    names = [release_name(report.model, report.version, "") for report, _ in sides]
    page = home / "reports" / f"{names[0]}-and-{names[1]}.html"
    write_atomically(page, render_comparison(sides[0], sides[1]))
    return page


def index(home: Path) -> Path:
    """Writes the page of every model released from this home, and gives its path."""
    releases = Releases(home)
    by_model: dict[str, dict[int, ReleaseReport]] = {}
    for name in sorted(releases.names(), key=lambda one: _ended_at(releases, one)):
        if report := releases.result(name):
            by_model.setdefault(report.model, {})[report.version] = report
    champions = _champions(home)
    standings = tuple(
        _standing(home, champions, model, tuple(reports[version] for version in sorted(reports)))
        for model, reports in sorted(by_model.items())
    )
    page = home / "reports" / "index.html"
    write_atomically(page, render_index(standings))
    return page


def story_of(site: Site, report: ReleaseReport) -> Story:
    """What is still known of a release."""
    ledger = Ledger(site, Request(model=report.model, version=report.version))
    keys = stage_keys(report.stages)

    def kept(stage: str, kind: type[R]) -> R | None:
        return ledger.recall(keys[stage], stage, kind) if stage in keys else None

    deployment = kept("deploy", Deployment)
    if deployment:
        keys = stage_keys(report.stages, deployment.package.target)
    return Story(
        admitted=kept("admit", Admitted),
        tuned=kept("tune", Tuned),
        load_report=kept("load_test", LoadReport),
        package=deployment.package if deployment else None,
        config=_config(site, deployment),
    )


def site_of(home: Path) -> Site:
    """The home as a site, whether its stack runs or not.

    Raises:
        StackDown: it never had one.
    """
    found = stack.read(home)
    if found is None:
        raise StackDown(f"no stack was started in {home}", do="Run `shiplift up`.")
    return stack.site(home, found)


def _config(site: Site, deployment: Deployment | None) -> str:
    if deployment is None:
        return ""
    path = f"{serving_name(deployment.package.model)}/config.pbtxt"
    try:
        return ArtifactStore(site.artifacts_uri).read_from_tree(deployment.package.repository, path).decode()
    except ShipliftError as error:
        return f"# {error.what}"


def _champions(home: Path) -> dict[str, int] | None:
    """Each model's champion (0: none), asked for at once; None: the registry is down."""
    try:
        registry = RestRegistry(site_of(home).registry_uri, timeout_s=PATIENT_S)
        return {model: aliases.get(CHAMPION, 0) for model, _, aliases in registry.models()}
    except ShipliftError:
        return None


def _standing(home: Path, champions: dict[str, int] | None, model: str, reports: tuple[ReleaseReport, ...]) -> Standing:
    """What the registry says; where it is down, what this home knows."""
    promoted = [report.version for report in reports if report.alias]
    champion = promoted[-1] if promoted else 0
    limits = ""
    with contextlib.suppress(ShipliftError):
        admitted = _admitted(site_of(home), reports[-1])
        limits = _in_words(admitted.slo) if admitted else ""
    if champions is not None:
        champion = champions.get(model, 0)
    return Standing(model=model, champion=champion, limits=limits, releases=reports)


def _admitted(site: Site, report: ReleaseReport) -> Admitted | None:
    key = stage_keys(report.stages).get("admit")
    ledger = Ledger(site, Request(model=report.model, version=report.version))
    return ledger.recall(key, "admit", Admitted) if key else None


def _in_words(slo: Slo) -> str:
    given = (
        (slo.p99_ms, "p99 within {:g} ms"),
        (slo.throughput_per_s, "{:g} inferences/s"),
        (slo.memory_mb, "{:g} MiB"),
    )
    said = [words.format(value) for value, words in given if value is not None]
    return ", ".join(said) or "none"


def _ended_at(releases: Releases, name: str) -> float:
    file = releases.folder(name) / "result.json"
    return file.stat().st_mtime if file.is_file() else 0.0
