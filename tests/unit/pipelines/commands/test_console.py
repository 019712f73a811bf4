import os
import threading
from pathlib import Path

import pytest

from shiplift.pipelines.commands import console
from shiplift.pipelines.engines.answers import Prediction
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.engine import LocalEngine
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.runtime.base.errors import StackDown
from shiplift.runtime.host.processes import identify
from shiplift.runtime.records.deployment import Endpoint
from shiplift.runtime.records.release import Event, ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import Outcome
from tests.unit.examples import check


def report(name: str) -> ReleaseReport:
    return ReleaseReport(
        model="digits",
        version=1,
        verdict=Outcome.PASS,
        alias="champion",
        endpoint=Endpoint(http="http://127.0.0.1:1/v2/models/digits", grpc="127.0.0.1:2"),
        stages=(),
        checks=(check(), check(Outcome.INCONCLUSIVE, "[bold]odd[/]", measured=None)),
        release=name,
        reason="[red]every[/] check passed",
        exit_code=0,
        seconds=0,
        since_request_seconds=0,
        overhead_seconds=0,
        report="/tmp/report.html",
    )


def with_dispatcher(home: Path) -> None:
    """A stack whose dispatcher is this process."""
    numbers = ("mlflow_port", "receiver_port", "http_port", "grpc_port", "metrics_port", "cache_mb")
    running = stack.Stack(
        **dict.fromkeys(numbers, 1),
        registry_uri="",
        server_environment="",
        rate_limiter=False,
        sweep_s=60,
        since=0,
        processes={"dispatcher": identify(os.getpid())},
    )
    (home / "stack.json").write_text(running.model_dump_json())


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path)


@pytest.fixture
def engine(tmp_path: Path) -> LocalEngine:
    """A home whose dispatcher is gone."""
    return LocalEngine(tmp_path)


@pytest.fixture
def name(releases: Releases) -> str:
    return releases.accept(Request(model="digits", version=1), Trigger()).name


def test_a_release_is_followed_to_its_end(
    engine: LocalEngine, releases: Releases, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with_dispatcher(engine.home)

    def work() -> None:
        releases.tell(name, Event(stage="admit", kind="started"))
        releases.tell(name, Event(stage="admit", kind="progress", message="[red]scanning[/]"))
        releases.tell(name, Event(stage="admit", kind="finished", outcome="ok", seconds=1.5))
        releases.end(name, report(name))

    worker = threading.Thread(target=work)
    worker.start()
    assert console.follow(engine, name) == report(name)
    worker.join(timeout=120)
    out, err = capfd.readouterr()
    assert out == ""
    assert "[red]scanning[/]" in err  # a step's message is text, not markup
    assert "ok" in err


def test_a_release_that_has_ended_is_shown_at_once(engine: LocalEngine, releases: Releases, name: str) -> None:
    releases.end(name, report(name))
    assert console.follow(engine, name, quiet=True) == report(name)


def test_a_release_that_nobody_works_on_is_not_waited_for(engine: LocalEngine, name: str) -> None:
    with pytest.raises(StackDown, match="the dispatcher is not running"):
        console.follow(engine, name, quiet=True)


def test_a_release_without_a_result_is_an_error(engine: LocalEngine, releases: Releases, name: str) -> None:
    (releases.folder(name) / "queued").unlink()
    with pytest.raises(StackDown, match="has no result"):
        console.follow(engine, name, quiet=True)


def test_a_report_is_shown_with_verdict_gates_and_endpoint(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    console.show_report(report(name))
    out, err = capfd.readouterr()
    for words in (
        "PASS  digits version 1",
        "[red]every[/] check passed",
        "p99",
        "http://127.0.0.1:1/v2/models/digits",
        "127.0.0.1:2",
        "/tmp/report.html",
    ):
        assert words in out
    assert err == ""


def test_what_to_do_about_a_refusal_stands_below_it(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    slow = check(Outcome.FAIL, "p99", do="Raise `slo.p99_ms`; then `shiplift rerun MODEL/VERSION`.")
    console.show_report(report(name).model_copy(update={"alias": "", "verdict": Outcome.FAIL, "checks": (slow,)}))
    said = " ".join(capfd.readouterr().out.split())
    assert "what to do about p99: Raise `slo.p99_ms`; then `shiplift rerun digits/1`." in said


def test_targets_that_are_not_served_are_shown_with_the_verdict(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    two = {"serving_target": "fast", "not_served": ("[red]arm[/]",)}
    console.show_report(report(name).model_copy(update=two))
    assert "note: target fast is deployed and judged, [red]arm[/] is not: one target serves" in capfd.readouterr().out
    console.show_report(report(name))
    assert "note" not in capfd.readouterr().out


def test_an_answer_is_shown_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    console.show_answer(
        Prediction(model="digits", version=3, outputs={"label": [[7]], "name": ["[red]seven[/] :smile:"]})
    )
    assert capfd.readouterr().out == "digits version 3\nlabel: [[7]]\nname: ['[red]seven[/] :smile:']\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (0.12345, "0.1235"), (12.5, "12.5"), (123456.7, "123,457"), (-2000, "-2,000")],
)
def test_numbers_are_written_as_people_do(value: float | None, text: str) -> None:
    assert console.number(value) == text
