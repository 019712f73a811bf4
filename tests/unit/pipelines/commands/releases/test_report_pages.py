from pathlib import Path

import pytest

from shiplift.pipelines.commands.releases import report_pages
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.engine import LocalEngine
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.runtime.base.errors import StackDown
from shiplift.runtime.host.processes import free_port
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import Outcome


def released(home: Path, model: str, version: int, *, promoted: bool) -> None:
    """A release that ended."""
    releases = Releases(home)
    name = releases.accept(Request(model=model, version=version), Trigger()).name
    report = ReleaseReport(
        model=model,
        version=version,
        verdict=Outcome.PASS if promoted else Outcome.FAIL,
        alias="champion" if promoted else "",
        endpoint=None,
        stages=(),
        checks=(),
        release=name,
        reason="every check passed" if promoted else "too slow",
        exit_code=0 if promoted else 20,
        seconds=1,
        since_request_seconds=1,
        overhead_seconds=1,
    )
    releases.end(name, report)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose stack was stopped: nothing answers at its registry's address."""
    ports = dict.fromkeys(("mlflow_port", "receiver_port", "http_port", "grpc_port", "metrics_port"), free_port())
    stopped = stack.Stack(
        **ports,
        registry_uri=f"http://127.0.0.1:{free_port()}",
        server_environment="",
        cache_mb=0,
        rate_limiter=False,
        sweep_s=60,
        since=0,
    )
    (tmp_path / "stack.json").write_text(stopped.model_dump_json())
    return tmp_path


def champion_of(page: str, model: str) -> str:
    row = page[page.index(f"<strong>{model}</strong>") :]
    return row.split('data-label="champion">')[1].split("<")[0]


def test_the_index_of_a_stack_that_is_down_says_what_its_home_knows(home: Path) -> None:
    for version, promoted in ((1, True), (2, True), (3, False)):
        released(home, "digits", version, promoted=promoted)
    released(home, "fraud", 1, promoted=False)
    page = report_pages.index(LocalEngine(home), home / "reports").read_text()
    assert (champion_of(page, "digits"), champion_of(page, "fraud")) == ("2", "-")
    assert "version 3: too slow" in page


def test_a_home_without_releases_has_an_index_too(home: Path) -> None:
    assert "No model has been released yet" in report_pages.index(LocalEngine(home), home / "reports").read_text()


def test_a_home_that_never_had_a_stack_has_no_site(tmp_path: Path) -> None:
    with pytest.raises(StackDown, match="no stack was started"):
        _ = LocalEngine(tmp_path).site
