"""Report pages of releases that ran elsewhere, saved on this machine so that a browser can open them."""

from pathlib import Path

from shiplift.runtime.base.names import release_name
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.store.published import PublishedRelease


def with_page(published: PublishedRelease, home: Path) -> ReleaseReport:
    """A report from the registry, with its page saved in `home`; if there is no page, its `report` is empty.

    Raises:
        NotFound: the version was never released.
    """
    return save_page(published.report(), published.page(), home)


def save_page(report: ReleaseReport, page: str, home: Path) -> ReleaseReport:
    """Saves the page in `home` and returns the report with its path. An empty page is not saved and has no path."""
    if not page:
        return report.model_copy(update={"report": ""})
    file = home / "reports" / f"{release_name(report.model, report.version, '')}.html"
    write_atomically(file, page)
    return report.model_copy(update={"report": str(file)})
