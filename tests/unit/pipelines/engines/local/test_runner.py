import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import tenacity

from shiplift.pipelines.engines.local import runner
from shiplift.pipelines.graph import FanOut, Pipeline, Placement, Stage
from shiplift.runtime.base.errors import DeadlineExceeded, NotAdmitted, NotFound, ShipliftError, Temporary
from shiplift.runtime.base.progress import measuring, progress
from shiplift.runtime.confinement import workplace
from shiplift.runtime.confinement.policy import Entry
from shiplift.runtime.records.base import Record, Sections, volatile
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.release import Ending, Event
from shiplift.runtime.records.verdict import Outcome, Verdict
from tests.integration.conftest import until
from tests.unit.examples import check


class Source(Record):
    text: str = "abc"


class Limit(Record):
    most: int = 5


class City(Record):
    name: str


class Cities(Record):
    all: tuple[City, ...] = ()


class Made(Record):
    text: str


class Halves(Sections):
    source: Source
    limit: Limit


class Served(Record):
    text: str
    port: int = volatile(0)


class Measured(Record):
    size: int


class Shipped(Record):
    text: str


class Closed(Record):
    exit_code: int = 0
    verdict: str = ""


class Memory:
    """Keeps records as the ledger does: as JSON, by key."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def get(self, key: str, stage: str, kind: Any) -> Any:
        return kind.model_validate_json(self.texts[key]) if key in self.texts else None

    def explain(self, error: NotFound) -> NotFound:
        return NotFound(f"{error.what}: it was deleted", do="Register it again.")

    def put(self, key: str, stage: str, record: Record) -> None:
        self.texts[key] = record.model_dump_json()


class Toy:
    """A small release: make, serve (an effect), measure what is served, judge, ship; `raising` makes a step fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.raising: dict[str, list[Exception]] = {}
        self.events: list[Event] = []
        self.cache = Memory()

        def make(source: Source) -> Made:
            self._called("make")
            return Made(text=source.text.upper())

        def serve(made: Made) -> Served:
            self._called("serve")
            return Served(text=made.text, port=len(self.calls))

        def measure(served: Served) -> Measured:
            self._called("measure")
            progress("measuring", 0.5)
            with measuring():
                return Measured(size=len(served.text))

        def judge(measured: Measured, limit: Limit) -> Verdict:
            self._called("judge")
            over = measured.size > limit.most
            reason = f"{measured.size} is over {limit.most}" if over else ""
            outcome = Outcome.PASS if not over else Outcome.INCONCLUSIVE if limit.most == 0 else Outcome.FAIL
            return Verdict.of((check(outcome, "size", reason),))

        def ship(made: Made, verdict: Verdict) -> Shipped:
            self._called("ship")
            return Shipped(text=made.text)

        def close(source: Source, ending: Ending) -> Closed:
            self._called("close")
            self.ending = ending
            return Closed(
                exit_code=ending.failure.exit_code if ending.failure else 0,
                verdict=str(ending.verdict.outcome) if ending.verdict else "",
            )

        self.pipeline = Pipeline(
            "toy",
            inputs=(Source, Limit),
            stages=(
                Stage(make, Placement(retries=2)),
                Stage(serve, Placement(keep="effect")),
                Stage(measure, Placement(uses=serve, retries=2)),
                Stage(judge),
                Stage(ship, Placement(keep="never")),
            ),
            on_exit=Stage(close, Placement(keep="never")),
        )

    def _called(self, step: str) -> None:
        self.calls.append(step)
        if self.raising.get(step):
            raise self.raising[step].pop(0)

    def walk(self, source: Source | None = None, limit: Limit | None = None) -> Ending:
        """A walk; `calls` and `events` are those of this walk alone."""
        self.calls.clear()
        self.events.clear()
        inputs = (source or Source(), limit or Limit())
        ending, self.known = runner.run(
            self.pipeline, *inputs, release="toy-1", cache=self.cache, tell=self.events.append
        )
        return ending


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Toy:
    monkeypatch.setattr(runner, "_WAIT_S", tenacity.wait_none())
    return Toy()


def test_a_walk_runs_every_stage_in_order_and_ends_with_a_pass(toy: Toy) -> None:
    ending = toy.walk()
    assert toy.calls == ["make", "serve", "measure", "judge", "ship", "close"]
    assert [(run.name, run.outcome, run.cached) for run in ending.stages] == [
        (name, "ok", False) for name in toy.calls[:-1]
    ]
    assert ending.verdict is not None
    assert (ending.verdict.outcome, ending.failure, ending.release) == (Outcome.PASS, None, "toy-1")


def test_what_every_stage_gave_is_known_in_the_end(toy: Toy) -> None:
    toy.walk()
    assert toy.known["shipped"] == Shipped(text="ABC")
    assert toy.known["closed"] == Closed(verdict="pass")
    assert toy.known["ending"] == toy.ending


def test_the_same_release_again_is_all_cache_hits_but_for_what_must_always_run(toy: Toy) -> None:
    toy.walk()
    ending = toy.walk()
    assert toy.calls == ["ship", "close"]
    assert [run.name for run in ending.stages if run.cached] == ["make", "serve", "measure", "judge"]
    assert toy.known["shipped"] == Shipped(text="ABC")


def test_a_changed_budget_reruns_the_gate_alone(toy: Toy) -> None:
    toy.walk()
    ending = toy.walk(limit=Limit(most=4))
    assert toy.calls == ["judge", "ship", "close"]
    assert [run.name for run in ending.stages if not run.cached] == ["judge", "ship"]


def test_a_changed_input_reruns_what_depends_on_it(toy: Toy) -> None:
    toy.walk()
    toy.walk(source=Source(text="abcd"))
    assert toy.calls == ["make", "serve", "measure", "judge", "ship", "close"]


def test_a_stage_whose_inputs_came_out_the_same_is_a_hit_although_an_earlier_one_ran(toy: Toy) -> None:
    toy.walk(source=Source(text="abc"))
    toy.walk(source=Source(text="ABC"))
    assert toy.calls == ["make", "ship", "close"]


def test_an_effect_is_set_up_again_only_when_a_stage_that_uses_it_runs(toy: Toy) -> None:
    toy.walk()
    forget(toy, "size")
    ending = toy.walk()
    assert toy.calls == ["serve", "measure", "ship", "close"]
    assert [(run.name, run.cached) for run in ending.stages] == [
        ("make", True),
        ("serve", False),
        ("measure", False),
        ("judge", True),
        ("ship", False),
    ]


def test_the_stage_that_uses_an_effect_is_given_the_fresh_one(toy: Toy) -> None:
    toy.walk()
    forget(toy, "size")
    toy.walk()
    assert toy.known["served"].port == 1  # of this walk: its first call


def forget(toy: Toy, field: str) -> None:
    toy.cache.texts = {key: text for key, text in toy.cache.texts.items() if f'"{field}":' not in text}


def test_a_walk_that_broke_off_goes_on_where_it_was(toy: Toy) -> None:
    toy.raising["judge"] = [NotAdmitted("broken", do="Fix it.")]
    toy.walk()
    ending = toy.walk()
    assert toy.calls == ["judge", "ship", "close"]
    assert ending.failure is None


def test_a_temporary_error_is_tried_again(toy: Toy) -> None:
    toy.raising["make"] = [Temporary("away", do="Wait."), Temporary("away", do="Wait.")]
    ending = toy.walk()
    assert toy.calls[:4] == ["make", "make", "make", "serve"]
    assert ending.failure is None
    assert [event.message for event in toy.events if event.kind == "progress"][:2] == ["trying again: away. Wait."] * 2


def test_a_registry_that_is_away_while_a_record_is_kept_costs_no_work(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, away = toy.cache.put, [Temporary("away", do="Wait."), Temporary("away", do="Wait.")]

    def flaky(*record: Any) -> None:
        if away:
            raise away.pop()
        put(*record)

    monkeypatch.setattr(toy.cache, "put", flaky)
    ending = toy.walk()
    assert toy.calls[:2] == ["make", "serve"]
    assert (ending.failure, away) == (None, [])


def test_retries_end_and_the_last_error_is_the_release_s(toy: Toy) -> None:
    toy.raising["make"] = [Temporary(f"away {n}", do="Wait.") for n in range(5)]
    ending = toy.walk()
    assert toy.calls == ["make", "make", "make", "close"]
    assert ending.failure is not None
    assert (ending.failure.kind, ending.failure.exit_code, ending.failure.what) == ("Temporary", 75, "away 2")


@pytest.mark.parametrize("error", [NotAdmitted("unsafe", do="Fix it."), ShipliftError("odd", do="See.")])
def test_no_other_error_is_tried_again(toy: Toy, error: ShipliftError) -> None:
    toy.raising["make"] = [error]
    ending = toy.walk()
    assert toy.calls == ["make", "close"]
    assert ending.failure is not None
    assert (ending.failure.kind, ending.failure.what) == (type(error).__name__, error.what)
    assert [(run.name, run.outcome) for run in ending.stages] == [("make", "failed")]
    assert toy.known["closed"].exit_code == error.exit_code


@pytest.mark.parametrize(("most", "word"), [(1, "refused"), (0, "inconclusive")])
def test_an_objection_ends_the_release_before_it_ships(toy: Toy, most: int, word: str) -> None:
    ending = toy.walk(limit=Limit(most=most))
    assert toy.calls == ["make", "serve", "measure", "judge", "close"]
    assert (ending.stages[-1].outcome, ending.stages[-1].message) == (word, f"size: 3 is over {most}")
    assert (ending.failure, toy.ending) == (None, ending)
    assert toy.known["closed"].verdict in ("fail", "inconclusive")


def test_a_kept_objection_ends_the_release_again_without_running_anything(toy: Toy) -> None:
    first = toy.walk(limit=Limit(most=1))
    again = toy.walk(limit=Limit(most=1))
    assert toy.calls == ["close"]
    assert again.verdict == first.verdict
    assert (again.stages[-1].outcome, again.stages[-1].cached) == ("refused", True)


def test_a_bug_is_a_failure_with_its_traceback_in_the_log(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    toy.raising["measure"] = [ZeroDivisionError("oops")]
    assert toy.walk() == toy.ending
    assert "in measure" in (log := capsys.readouterr().err)
    assert log.endswith("ZeroDivisionError: oops\n")
    assert toy.calls == ["make", "serve", "measure", "close"]
    assert toy.ending.failure is not None
    assert (toy.ending.failure.kind, toy.ending.failure.exit_code) == ("ZeroDivisionError", 70)
    assert toy.ending.failure.what == "a bug in Shiplift: ZeroDivisionError: oops"
    assert [(run.name, run.outcome) for run in toy.ending.stages][-1] == ("measure", "failed")
    assert toy.ending.stages[-1].message == toy.ending.failure.message


def test_a_failed_stage_is_not_kept(toy: Toy) -> None:
    toy.raising["measure"] = [NotAdmitted("no", do="Fix it.")]
    toy.walk()
    assert not any('"size":' in text for text in toy.cache.texts.values())


def test_whoever_listens_hears_each_stage_start_go_on_and_finish(toy: Toy) -> None:
    toy.walk()
    heard = [(event.stage, event.kind) for event in toy.events]
    assert heard[:2] == [("make", "started"), ("make", "finished")]
    assert [event.kind for event in toy.events if event.stage == "measure"] == ["started", "progress", "finished"]
    assert [event.done for event in toy.events if event.kind == "progress"] == [0.5]
    toy.walk()
    heard_again = [(event.kind, event.cached) for event in toy.events if event.stage == "measure"]
    assert heard_again == [("started", False), ("finished", True)]


def test_time_spent_measuring_is_noted_apart(toy: Toy) -> None:
    ending = toy.walk()
    assert all(run.measured_seconds <= run.seconds for run in ending.stages)
    assert [run.name for run in ending.stages if run.key == ""] == ["ship"]


def test_a_walk_outside_the_main_thread_works_without_signals(toy: Toy) -> None:
    endings: list[Ending] = []
    thread = threading.Thread(target=lambda: endings.append(toy.walk()))
    thread.start()
    thread.join(timeout=120)
    assert [ending.failure for ending in endings] == [None]


def test_a_fan_out_runs_its_stages_per_item_and_caches_them_per_item() -> None:
    visited: list[str] = []

    def visit(city: City, source: Source) -> Made:
        visited.append(city.name)
        return Made(text=f"{source.text} in {city.name}")

    def gather(made: tuple[Made, ...]) -> Shipped:
        return Shipped(text=", ".join(part.text for part in made))

    each = FanOut(City, "cities", "all", (Stage(visit),))
    pipeline = Pipeline("tour", inputs=(Source, Cities), stages=(each, Stage(gather)))
    cache = Memory()

    def tour(*names: str) -> tuple[Ending, str]:
        visited.clear()
        cities = Cities(all=tuple(City(name=name) for name in names))
        ending, known = runner.run(pipeline, Source(), cities, release="t", cache=cache)
        return ending, known["shipped"].text

    ending, text = tour("Bonn", "Jena")
    assert text == "abc in Bonn, abc in Jena"
    assert [(run.name, run.target) for run in ending.stages] == [("visit", "Bonn"), ("visit", "Jena"), ("gather", "")]
    _, text = tour("Jena", "Köln")
    assert (visited, text) == (["Köln"], "abc in Jena, abc in Köln")


def test_items_that_are_not_for_this_machine_are_skipped_with_the_reason() -> None:
    def visit(city: City) -> Made:
        return Made(text=city.name)

    def gather(made: tuple[Made, ...]) -> Shipped:
        return Shipped(text=", ".join(part.text for part in made))

    def unfit(city: City) -> str:
        return "no road" if city.name == "Ys" else ""

    each = FanOut(City, "cities", "all", (Stage(visit),), unfit=unfit)
    pipeline = Pipeline("tour", inputs=(Cities,), stages=(each, Stage(gather)))

    def tour(*names: str) -> tuple[Ending, dict[str, Any]]:
        cities = Cities(all=tuple(City(name=name) for name in names))
        return runner.run(pipeline, cities, release="t", cache=Memory())

    ending, known = tour("Ys", "Bonn")
    assert known["shipped"].text == "Bonn"
    assert [(run.target, run.outcome, run.message) for run in ending.stages] == [
        ("Ys", "skipped", "no road"),
        ("Bonn", "ok", ""),
        ("", "ok", ""),
    ]
    ending, known = tour("Ys")
    assert ending.failure is not None
    assert (ending.failure.kind, ending.failure.exit_code) == ("NoMatchingTarget", 49)
    assert "this machine fits no city of the release: Ys: no road" in ending.failure.what


def test_a_later_stage_takes_a_part_of_sections() -> None:
    def split() -> Halves:
        return Halves(source=Source(text="x"), limit=Limit(most=7))

    def make(source: Source, limit: Limit) -> Made:
        return Made(text=f"{source.text}{limit.most}")

    pipeline = Pipeline("parts", inputs=(), stages=(Stage(split), Stage(make)))
    cache = Memory()
    for _ in range(2):  # a miss, then a hit
        _, known = runner.run(pipeline, release="p", cache=cache)
        assert known["made"] == Made(text="x7")


def test_a_stage_that_hangs_ends_at_its_deadline() -> None:
    def hang(source: Source) -> Made:
        threading.Event().wait(60)
        return Made(text="")

    pipeline = Pipeline("slow", inputs=(Source,), stages=(Stage(hang, Placement(deadline_s=1)),))
    ending, _ = runner.run(pipeline, Source(), release="s", cache=Memory())
    assert ending.failure is not None
    assert (ending.failure.kind, ending.failure.what) == (DeadlineExceeded.__name__, "stage hang took over 1 s")
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_step_that_catches_every_exception_does_not_catch_its_deadline() -> None:
    def stubborn(source: Source) -> Made:
        try:
            threading.Event().wait(60)
        except Exception:
            return Made(text="went on")
        return Made(text="")

    pipeline = Pipeline("slow", inputs=(Source,), stages=(Stage(stubborn, Placement(deadline_s=1)),))
    ending, known = runner.run(pipeline, Source(), release="s", cache=Memory())
    assert ending.failure is not None
    assert ending.failure.kind == DeadlineExceeded.__name__
    assert "made" not in known


def test_the_sandbox_of_the_next_stage_is_started_while_one_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    order: list[str] = []

    def first(source: Source) -> Made:
        order.append("first")
        return Made(text="")

    def second(made: Made) -> Served:
        order.append("second")
        return Served(text="")

    def third(served: Served) -> Shipped:
        order.append("third")
        return Shipped(text="")

    monkeypatch.setattr(workplace, "warm", lambda entry, *_: order.append(f"warm {entry.function}"))
    stages = (Stage(first), Stage(second, Placement(warm=Entry("b:b"))), Stage(third, Placement(warm=Entry("c:c"))))
    pipeline, cache = Pipeline("warm", inputs=(Source,), stages=stages), Memory()
    runner.run(pipeline, Source(), release="w", cache=cache, scratch=tmp_path)
    assert order == ["warm b:b", "first", "warm c:c", "second", "third"]
    order.clear()
    runner.run(pipeline, Source(), release="w", cache=cache, scratch=tmp_path)
    assert order == []  # all are cache hits


def test_whoever_watches_hears_of_each_stage_before_it_runs(toy: Toy) -> None:
    entered: list[str] = []
    ending, _ = runner.run(
        toy.pipeline, Source(), Limit(), release="t", cache=toy.cache, entering=lambda stage: entered.append(stage.name)
    )
    assert ending.failure is None
    assert list(dict.fromkeys(entered)) == ["make", "serve", "measure", "judge", "ship", "close"]
    assert entered.count("make") == 2  # before it is looked up, and when its time begins


def test_a_stage_starts_again_after_the_effect_that_it_uses(toy: Toy) -> None:
    toy.walk()
    forget(toy, "size")
    toy.walk()
    heard = [(event.stage, event.kind) for event in toy.events if event.stage in ("serve", "measure")]
    assert heard == [
        ("serve", "started"),
        ("serve", "finished"),
        ("measure", "started"),
        ("serve", "started"),
        ("serve", "finished"),
        ("measure", "started"),
        ("measure", "progress"),
        ("measure", "finished"),
    ]


def test_a_walk_whose_process_was_killed_is_concluded_without_running_a_stage(toy: Toy) -> None:
    ended = Ending(release="t", started_at=1, stages=(), givers={}, failure=Failure.of(DeadlineExceeded("x", do="y")))
    known = runner.conclude(toy.pipeline, Source(), Limit(), ending=ended)
    assert (toy.calls, known["ending"]) == (["close"], ended)
    assert known["closed"].exit_code == DeadlineExceeded.exit_code


# --- real signals to a real process ---------------------------------------------------------------------------------

SCRIPT = """
import json, os, signal, sys, threading
from shiplift.pipelines.engines.local import runner
from shiplift.pipelines.graph import Pipeline, Placement, Stage
from shiplift.runtime.base.progress import progress
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.release import Ending

class Made(Record):
    text: str = ""

class Closed(Record):
    said: str = ""

class Cache:
    def get(self, key, stage, kind): return None
    def put(self, key, stage, record): say(f"stored {stage}")

def say(text):
    print(text, flush=True)

def work() -> Made:
    try:
        say("working")
        threading.Event().wait(60)
    except Exception:
        say("swallowed")
    return Made()

def close(ending: Ending) -> Closed:
    say("closing")
    if "--slow-exit" in sys.argv:
        sys.stdin.readline()
    return Closed(said="closed")

def move() -> Made:
    say("working")
    sys.stdin.readline()
    return Made(text="moved")

class Trap:  # is signalled where Python drops exceptions: in a finalizer
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass

def drop() -> Made:
    say("working")
    Trap()
    progress("going on")
    say("went on")
    return Made()

step = {"--dropped": Stage(drop), "--shielded": Stage(move, Placement(shielded=True))}.get(sys.argv[-1], Stage(work))
pipeline = Pipeline("cut", inputs=(), stages=(step,), on_exit=Stage(close))
heard = []
ending, known = runner.run(pipeline, release="cut", cache=Cache(), on_signal=heard.append)
print(json.dumps({"ending": ending.model_dump(mode="json"), "heard": heard, "closed": known["closed"].said}))
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    running: list[subprocess.Popen[str]] = []

    def begin(*flags: str) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [sys.executable, script, *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        running.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "working\n"
        return child

    yield begin
    for child in running:
        child.kill()
        child.communicate()


def waits(child: Any) -> Any:
    """The child once it is blocked: a signal between Python's last look and the call that blocks is heard after it."""
    until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_SLEEPING)
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_a_step_cancels_the_release(start: Any, number: signal.Signals) -> None:
    child = waits(start())
    child.send_signal(number)
    out, _ = child.communicate(timeout=120)
    *before, last = out.splitlines()
    assert before == ["closing"]  # nothing was kept, and the step could not swallow it
    output = json.loads(last)
    assert output["ending"]["failure"]["kind"] == "Cancelled"
    assert output["ending"]["failure"]["what"] == f"stopped by {number.name}"
    assert [(run["name"], run["outcome"]) for run in output["ending"]["stages"]] == [("work", "cancelled")]
    assert (output["heard"], output["closed"], child.returncode) == ([number], "closed", 0)


def test_a_signal_whose_exception_python_dropped_cancels_at_the_next_word(start: Any) -> None:
    *before, last = start("--dropped").stdout.read().splitlines()
    assert before == ["closing"]
    assert json.loads(last)["ending"]["failure"]["kind"] == "Cancelled"


def test_a_second_signal_does_not_disturb_the_exit_stage(start: Any) -> None:
    child = waits(start("--slow-exit"))
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "closing\n"
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate("go on\n", timeout=120)
    assert json.loads(out)["closed"] == "closed"
    assert child.returncode == 0


def test_a_stage_that_moves_traffic_is_finished_rather_than_cancelled(start: Any) -> None:
    child = start("--shielded")
    for number in (signal.SIGINT, signal.SIGTERM):
        child.send_signal(number)
    out, _ = child.communicate("go on\n", timeout=120)
    output = json.loads(out.splitlines()[-1])
    assert [(run["name"], run["outcome"]) for run in output["ending"]["stages"]] == [("move", "ok")]
    assert (output["ending"]["failure"], output["closed"]) == (None, "closed")


def test_what_is_gone_from_the_registry_is_explained_by_the_ledger(toy: Toy) -> None:
    toy.raising["measure"] = [NotFound("the registry has no version 3", do="-")]
    ending = toy.walk()
    assert ending.failure is not None
    assert ending.failure.exit_code == NotFound.exit_code
    assert ending.failure.message == "the registry has no version 3: it was deleted. Register it again."
