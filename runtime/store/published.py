"""What the registry keeps for people about an ended release, with its version: report, page, server configuration.

The names are in one place, since the last stage writes what commands on other machines read.
"""

from dataclasses import dataclass
from typing import Protocol

from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.base.text import printable
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.store.registry.terms import FOLDER, RETIRED_TAG, TAG, VersionInfo


class TextStore(Protocol):
    """A registry's interface for small files of runs."""

    def read_text(self, run_id: str, path: str) -> str | None:
        """A text artifact of a run; None if there is none."""


def path_of(release: str, name: str) -> str:
    """The path of a release's file in its version's run: `release.json`, `report.html` or `config.pbtxt`."""
    return f"{FOLDER}/releases/{release}/{name}"


def run_of(info: VersionInfo) -> str:
    """The run that keeps a version's history; empty if there is none yet."""
    return info.run_id or info.tags.get(f"{TAG}run_id", "")


def retired_since(info: VersionInfo) -> str:
    """Who took a version out of service after its newest release, when and why; empty if it was not."""
    return info.tags.get(RETIRED_TAG, "") if info.tags.get(f"{TAG}outcome") == "retired" else ""


@dataclass(frozen=True)
class PublishedRelease:
    """The newest release of a version, as the registry keeps it."""

    texts: TextStore
    info: VersionInfo

    def report(self) -> ReleaseReport:
        """How it ended. Its `report` is empty, since its page is in no folder.

        Raises:
            NotFound: the version was never released, or its report could not be kept.
        """
        report = self.find()
        if report is None:
            name, outcome = f"{self.info.name}/{self.info.version}", self.info.tags.get(f"{TAG}outcome", "")
            if outcome:
                raise NotFound(
                    f"the registry has no report of {name}, whose release ended as {outcome}: {self._reason}",
                    do=f"Let Shiplift write artifacts there, then run `shiplift rerun {name}`.",
                )
            raise NotFound(f"{name} was never released", do=f"Run `shiplift release {name}`.")
        return report

    def find(self) -> ReleaseReport | None:
        """The same; None if the version was never released."""
        text = self._text("release.json")
        if not text:
            return None
        changes = {"report": "", "retired": retired_since(self.info)}
        return ReleaseReport.model_validate_json(text).model_copy(update=changes)

    def page(self) -> str:
        """Its page as HTML; empty if there is none."""
        return self._text("report.html") or ""

    def config(self) -> str:
        """The config.pbtxt with which it was served; empty if it did not get that far."""
        return self._text("config.pbtxt") or ""

    @property
    def _reason(self) -> str:
        return printable(self.info.tags.get(f"{TAG}reason", ""), limit=500)

    def _text(self, name: str) -> str | None:
        release, run_id = self.info.tags.get(f"{TAG}release", ""), run_of(self.info)
        return self.texts.read_text(run_id, path_of(release, name)) if release and run_id else None
