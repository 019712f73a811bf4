"""The newest release of a version, as the registry keeps it, and what is said if it keeps none."""

import pytest

from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.store.published import PublishedRelease
from shiplift.runtime.store.registry.terms import TAG, VersionInfo
from tests.unit.examples import release_report


class Texts:
    def __init__(self, text: str | None) -> None:
        self.text = text

    def read_text(self, run_id: str, path: str) -> str | None:
        return self.text if path.endswith("release.json") else None


def info(**tags: str) -> VersionInfo:
    named = {f"{TAG}{key}": value for key, value in tags.items()}
    return VersionInfo(name="digits", version=3, source="", run_id="r", created_at=0, tags=named)


def test_a_kept_report_is_read() -> None:
    kept = PublishedRelease(Texts(release_report().model_dump_json()), info(release="x", outcome="promoted"))
    assert kept.report().outcome == "promoted"


def test_without_a_report_it_says_whether_there_was_a_release() -> None:
    with pytest.raises(NotFound, match="digits/3 was never released"):
        PublishedRelease(Texts(None), info()).report()
    unkept = info(release="x", outcome="refused", reason="slow; this account may not write")
    with pytest.raises(NotFound, match="ended as refused: slow; this account may not write"):
        PublishedRelease(Texts(None), unkept).report()
