"""The operator's watch over bakes: what it makes of several pods, and what it writes."""

import threading

import pytest

from shiplift.pipelines.daemons.operator import baking
from shiplift.pipelines.daemons.operator.baking import BakeWatch
from shiplift.runtime.gates.alarms import LOOK_S
from shiplift.runtime.records.baking import Alarm, Baking
from shiplift.runtime.serving.kubernetes.connection import Conflict
from shiplift.runtime.serving.operator.evidence import Evidence
from tests.unit.runtime.serving.operator.world import World, name_of

ERRORS = Alarm(kind="errors", limit=1)


class Bake:
    """Revision 1 bakes; `pods` are the requests that each has answered and failed."""

    def __init__(self, **fields: object) -> None:
        fields = {"model": "digits", "version": 1, "package": name_of(1), "for_s": 60, "alarms": [ERRORS]} | fields
        self.world = World()
        self.world.baking = Baking.model_validate(fields)
        self.pods: dict[str, tuple[int, int]] = {"a": (0, 0), "b": (0, 0)}
        self.written: list[Baking] = []
        self.conflicts = 0
        self.now = 0.0
        self.start()

    def start(self) -> None:
        """A process begins to watch."""
        self.watch = BakeWatch(
            lambda: {"digits": (self.world.look(), Evidence())},
            self.write,
            pages=lambda *_: {pod: self.page(*counts) for pod, counts in self.pods.items()},
            clock=lambda: self.now,
        )

    def page(self, answered: int, failed: int) -> str:
        labels = '{model="digits",version="1"}'
        return f"nv_inference_request_success{labels} {answered}\nnv_inference_request_failure{labels} {failed}\n"

    def write(self, baking: Baking) -> None:
        if self.conflicts:
            self.conflicts -= 1
            raise Conflict("digits", "it changed")
        self.world.baking = baking
        self.written.append(baking)

    def look(self, times: int = 1, answered: int = 0, failed: int = 0) -> Baking:
        for _ in range(times):
            self.now += LOOK_S
            self.pods = {pod: (a + answered, f + failed) for pod, (a, f) in self.pods.items()}
            self.watch.look()
        assert self.world.baking is not None
        return self.world.baking


@pytest.fixture
def bake() -> Bake:
    return Bake()


def test_it_passes_and_is_seldom_written_meanwhile(bake: Bake) -> None:
    assert bake.look(35, answered=10).state == "passed"
    assert len(bake.written) < 10


def test_an_alarm_is_written_at_once(bake: Bake) -> None:
    bake.look(5, answered=50)
    alarmed = bake.look(answered=10, failed=40)
    assert (alarmed.state, alarmed.reason[:35]) == ("alarmed", "80 of the last 500 requests failed,")
    assert bake.look(5, failed=10) == alarmed


def test_a_pod_that_is_new_or_restarted_brings_no_old_failures(bake: Bake) -> None:
    bake.look(5, answered=100)
    bake.pods["c"] = (10, 500)  # it failed before it was looked at
    assert bake.look(2, answered=100).state == "baking"
    bake.pods["a"] = (0, 0)
    assert bake.look(2, answered=100).state == "baking"


def test_an_operator_that_restarts_goes_on_where_it_was(bake: Bake) -> None:
    before = bake.look(20, answered=10).watched_s
    assert before >= 20
    bake.start()
    assert bake.look(7, answered=10).watched_s >= before


def test_pods_that_say_nothing_let_no_time_pass(bake: Bake) -> None:
    bake.look(3, answered=10)
    bake.pods = {}
    silent = bake.look(20)
    assert (silent.state, silent.unknown) == ("baking", "the server's counters can't be read")
    assert silent.watched_s <= 4
    assert bake.look(300).reason == "the server's counters can't be read, for 600 s; the limit is 600 s"


def test_another_revision_ends_it_and_a_conflict_is_tried_again(bake: Bake) -> None:
    bake.look(2)
    bake.world.want(2)
    bake.conflicts = 1
    assert bake.look().state == "baking"
    ended = bake.look()
    assert (ended.state, ended.reason) == ("ended", f"{name_of(2)} serves instead")


def test_only_the_leader_watches(bake: Bake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baking, "LOOK_S", 0.01)
    stop = threading.Event()
    calls: list[bool] = []

    def leads() -> bool:
        calls.append(True)
        stop.set()
        return False

    bake.watch.run(stop, leads)
    assert (len(calls), bake.written) == (1, [])
