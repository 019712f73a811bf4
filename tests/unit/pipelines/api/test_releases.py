"""Releases for programs, with an engine that notes what it is asked."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import shiplift
from shiplift.pipelines.api import engines, releases
from shiplift.pipelines.engines.answers import Accepted
from shiplift.runtime.base.errors import NotFound, Refused, Temporary, UsageError
from shiplift.runtime.records.verdict import Outcome
from tests.unit.examples import release_report

REFUSED = {"verdict": Outcome.FAIL, "alias": "", "exit_code": Refused.exit_code, "reason": "<b>slow</b>"}


class Engine:
    """Has one release, which ends with `report` once its events have been read."""

    def __init__(self) -> None:
        self.report = release_report()
        self.orders: list[tuple[Any, ...]] = []
        self.ended = False

    def order(self, name: str, spec: str, *, again: bool, allow_older: bool) -> Accepted:
        self.orders.append((name, spec, again, allow_older))
        return Accepted(name="digits-3-0", created=True, queued=True)

    def under_way(self, name: str) -> bool:
        return name == "digits-3-0" and not self.ended

    def events(self, name: str) -> Iterator[None]:
        assert name == "digits-3-0"
        yield None
        self.ended = True

    def result(self, name: str) -> Any:
        assert name == "digits-3-0"
        return self.report

    def reports(self, model: str = "") -> list[Any]:
        return [release_report(version=2), release_report(**REFUSED)] if model in ("", "digits") else []


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()
    monkeypatch.setattr(releases, "engine_of", lambda *_: engine)
    return engine


def test_a_release_is_ordered_awaited_and_read(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("slo: {p99_ms: 1}")
    ordered = shiplift.release("models:/digits/3", wait=False, spec=tmp_path / "spec.yaml", again=True)
    assert engine.orders == [("digits/3", "slo: {p99_ms: 1}", True, False)]
    assert (ordered.model, ordered.version, ordered.under_way) == ("digits", 3, True)
    with pytest.raises(NotFound, match="has not ended"):
        ordered.report()
    with pytest.raises(Temporary, match="has not ended after 0 s"):
        ordered.wait(timeout_s=0)
    assert ordered.wait() is ordered.report() is engine.report


def test_a_refusal_is_the_product_s_own_exception_and_the_report_is_there(engine: Engine) -> None:
    engine.report = release_report(**REFUSED)
    with pytest.raises(shiplift.errors.Refused, match="slow"):
        shiplift.release("digits")
    assert shiplift.release("digits", wait=False).report().outcome == "refused"
    assert engine.orders[0][0] == "digits"


def test_releases_are_a_table_in_terminals_and_notebooks(engine: Engine) -> None:
    listed = shiplift.releases("digits")
    assert [report.version for report in listed] == [3, 2]
    console = Console(width=200, record=True, file=sys.stderr)
    console.print(listed)
    assert "<b>slow</b>" in console.export_text()
    html = listed[:1]._repr_html_()
    assert "&lt;b&gt;slow" in html
    assert "<b>" not in html
    assert "refused" in repr(listed)
    assert engine.reports("other") == []


def test_a_wrong_name_or_option_is_said_as_on_the_command_line(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("models:/digits@champion", "digits/x"):
        with pytest.raises(shiplift.errors.ShipliftError, match="digits"):
            shiplift.release(wrong)
    with pytest.raises(UsageError, match="can't be read"):
        shiplift.release("digits", spec="nowhere.yaml")
    monkeypatch.setenv("SHIPLIFT_ENGINE", "nowhere")
    with pytest.raises(UsageError, match="SHIPLIFT_ENGINE"):
        engines.engine_of(None, None, None)
    assert engine.orders == []


def test_the_package_s_import_brings_nothing_else() -> None:
    code = (
        "import sys, shiplift; dir(shiplift); print(len([name for name in sys.modules if name.startswith('shiplift')]))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.split() == [b"1"]
