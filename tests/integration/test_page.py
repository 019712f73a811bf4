"""The live page of a real stack: a release is watched as it runs, and what it shows is what the engine says."""

import httpx
import pytest

from shiplift.pipelines.engines.local import status
from shiplift.runtime.base.names import release_name
from tests.integration.conftest import Lab, until


@pytest.mark.slow
def test_a_release_is_watched_live(lab: Lab) -> None:
    with httpx.Client(base_url=status.endpoints(lab.running).page, trust_env=False, timeout=120) as browser:
        version = lab.log_classifier("watched")
        where = {"model": "watched", "version": str(version)}
        until(lambda: lab.engine.under_way(release_name("watched", version, "")), seconds=60)
        with browser.stream("GET", "/events", params=where) as events:
            seen = "".join(events.iter_text())
        assert seen.endswith("event: ended\ndata: \n\n")
        for stage in ("admit", "export", "tune", "gate", "promote"):
            assert f'<th scope="row">{stage}' in seen, stage
        report = lab.wait("watched", version)
        ended = browser.get("/release", params=where).text
        for words in (report.outcome, *(check.name for check in report.checks)):
            assert words in ended, words
        assert '<svg class="chart"' in ended
        assert "watched" in browser.get("/", params={"find": "watch"}).text
        assert browser.get("/report", params=where).is_success
        assert browser.get("/", headers={"host": "evil.example"}).status_code == 421
