"""Past releases of a cluster. The registry stores them with the versions."""

from dataclasses import dataclass
from pathlib import Path

from shiplift.pipelines.engines.answers import WorkflowStatus
from shiplift.pipelines.engines.pages import save_page, with_page
from shiplift.pipelines.release import RELEASE
from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.families import table
from shiplift.runtime.gates.report import Story
from shiplift.runtime.gates.story import story_of
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.store.history import History
from shiplift.runtime.store.ledger import UncheckedLedger
from shiplift.runtime.store.published import PublishedRelease, run_of
from shiplift.runtime.store.registry.rest import RestRegistry
from shiplift.runtime.store.registry.terms import CHAMPION, TAG, VersionInfo


@dataclass(frozen=True)
class Past:
    """The releases stored in a registry; their report pages are saved in `home`."""

    registry: RestRegistry
    home: Path

    def report(self, model: str, version: int) -> ReleaseReport:
        """The report of a version's newest release; its page is saved in `home`."""
        return with_page(PublishedRelease(self.registry, self.version(model, version)), self.home)

    def with_page(self, report: ReleaseReport) -> ReleaseReport:
        """The report of a release that just ended, with the page saved here: its own path is one in a pod."""
        published = PublishedRelease(self.registry, self.version(report.model, report.version))
        newest = published.info.tags.get(f"{TAG}release") == report.release
        return save_page(report, published.page() if newest else "", self.home)

    def recorded(self, model: str = "") -> list[WorkflowStatus]:
        """How the newest release of each version ended, even if its Workflow no longer exists."""
        versions = self.registry.recent(model)
        return [_ended(info) for info in versions if info.tags.get(f"{TAG}release")]

    def reports(self, model: str = "") -> list[ReleaseReport]:
        """The newest report of each released version."""
        models = [model] if model else [name for name, latest, _ in self.registry.models() if latest]
        released = [
            PublishedRelease(self.registry, info)
            for name in models
            for info in self.registry.versions(name)
            if f"{TAG}release" in info.tags
        ]
        return [report for release in released if (report := release.find())]

    def history(self, report: ReleaseReport) -> History:
        """The records that a release's stages produced, unverified: the key for that never leaves the cluster."""
        run_id = run_of(self.version(report.model, report.version))
        return History(UncheckedLedger(self.registry, run_id), report.stages, RELEASE.givers)

    def story(self, report: ReleaseReport) -> Story:
        """The records of a release, prepared for its report page."""
        published = PublishedRelease(self.registry, self.version(report.model, report.version))
        return story_of(self.history(report), table.export_summary, config=published.config())

    def champions(self) -> dict[str, int]:
        """The champion of each model (0: none)."""
        return {model: aliases.get(CHAMPION, 0) for model, _, aliases in self.registry.models()}

    def version(self, model: str, version: int) -> VersionInfo:
        """A version in the registry.

        Raises:
            NotFound: the registry has no such version.
        """
        info = self.registry.version(model, version)
        if info is None:
            raise NotFound(f"the registry has no version {version} of {model!r}", do="See `shiplift status`.")
        return info


def _ended(info: VersionInfo) -> WorkflowStatus:
    return WorkflowStatus(
        name=info.tags[f"{TAG}release"],
        model=info.name,
        version=info.version,
        verdict=info.tags.get(f"{TAG}verdict", ""),
        outcome=info.tags.get(f"{TAG}outcome", ""),
        reason=info.tags.get(f"{TAG}reason", ""),
    )
