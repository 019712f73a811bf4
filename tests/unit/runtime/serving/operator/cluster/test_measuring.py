"""Counting answers and telling failures apart; the rest of measuring needs servers, and is tested on a cluster."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from shiplift.runtime.base.errors import NotFound, ServerFailed, Temporary
from shiplift.runtime.model.generation.signature import SIGNATURE
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import Counts
from shiplift.runtime.serving.operator.cluster import front_clients, measuring
from shiplift.runtime.serving.operator.cluster.front_clients import first_right
from shiplift.runtime.serving.operator.cluster.measuring import Measurer
from shiplift.runtime.serving.operator.evidence import Counters, Evidence, Route
from shiplift.runtime.serving.operator.measurements import AskFront, AskPods, AskRoutes
from shiplift.runtime.serving.operator.observed import Observed, RevisionSeen
from tests.unit.examples import package
from tests.unit.runtime.serving.operator.world import World, name_of

WEIGHTS = {name_of(1): 50, name_of(2): 50}


class Servers:
    """Two revisions that answer in turn, or fail; `read` are the counters of their pods."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, versions: tuple[int, int] = (1, 2)) -> None:
        self.versions, self.turn = versions, cycle((name_of(1), name_of(2)))
        self.error: Exception | None = None
        self.rows: list[dict[str, int] | None] = []  # the samples of each client's request, by input
        self.counted = dict.fromkeys(WEIGHTS, 0)
        routes: tuple[Route, ...] = ("gRPC", "HTTP", "HTTP by path")
        monkeypatch.setattr(measuring, "CLIENTS", dict.fromkeys(routes, self.client))
        monkeypatch.setattr(measuring, "counters_of", self.read)

    @contextmanager
    def client(
        self, observed: Observed, package: Package, row: Arrays | None, timeout_s: float
    ) -> Iterator[Callable[[], int]]:
        self.rows.append(None if row is None else {name: array.shape[0] for name, array in row.items()})
        yield self.send

    def send(self) -> int:
        if self.error:
            raise self.error
        name = next(self.turn)
        self.counted[name] += 1
        return self.versions[int(name[-1]) - 1]

    def read(self, observed: Observed, revision: str) -> Counters:
        return {f"{revision}-pod": Counts(answered=self.counted[revision])}


def golden(_: Package, __: str) -> Arrays:
    return {"input/input": np.zeros((20, 4), np.float32), "output/output": np.zeros((20, 3), np.float32)}


def ask(
    servers: Servers, *, requests: int = 40, golden: Callable[[Package, str], Arrays] = golden, **changes: Any
) -> Evidence:
    world = World()
    for number, version in enumerate(servers.versions):
        seen = RevisionSeen(package=package(version=version, **changes), artifacts_uri="s3://models")
        world.revisions[name_of(number + 1)] = seen
    wanted = AskFront(target=name_of(2), weights=WEIGHTS, requests=requests)
    return Measurer(golden=golden).measure(world.look(), wanted, Evidence())


def test_a_model_that_answers_in_pieces_is_asked_over_grpc_without_what_it_needs_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def prompts(_: Package, __: str) -> Arrays:
        return {"input/prompt": np.array([["a"], ["b"]], object), "output/text": np.array([["c"], ["d"]], object)}

    servers = Servers(monkeypatch)
    share = ask(servers, golden=prompts, signature=SIGNATURE).share
    assert share is not None
    assert list(share.samples) == ["gRPC"]
    assert servers.rows == [{"prompt": 1}]


def test_answers_are_counted_on_every_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    share = ask(Servers(monkeypatch)).share
    assert share is not None
    assert {name: (each.asked, each.answered) for name, each in share.samples.items()} == {
        "gRPC": (40, 20),
        "HTTP": (40, 20),
    }
    assert share.grew == {name_of(1): 40, name_of(2): 40}
    assert (share.tries, share.weights) == (1, WEIGHTS)


def test_two_packages_of_the_same_version_are_distinguished_by_their_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    share = ask(Servers(monkeypatch, versions=(2, 2))).share
    assert share is not None
    assert {(each.asked, each.answered) for each in share.samples.values()} == {(40, 20)}


@pytest.mark.parametrize(
    ("error", "unreachable"),
    [
        (InferenceServerException("no route", status="StatusCode.UNIMPLEMENTED"), True),
        (InferenceServerException("no upstream", status="StatusCode.UNAVAILABLE"), True),
        (InferenceServerException("it broke", status="StatusCode.INTERNAL"), False),
        (Temporary("no upstream", do="Wait."), True),
        (NotFound("no route", do="Wait."), True),
        (ServerFailed("it broke", do="See the log."), False),
    ],
)
def test_a_route_that_does_not_exist_yet_is_not_a_failure(
    monkeypatch: pytest.MonkeyPatch, error: Exception, unreachable: bool
) -> None:
    servers = Servers(monkeypatch)
    servers.error = error
    share = ask(servers).share
    assert share is not None
    assert {(each.asked, each.unreachable) for each in share.samples.values()} == {(1, unreachable)}
    assert all(each.failure for each in share.samples.values())


def test_a_slow_model_gets_fewer_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_clients, "_SAMPLE_S", 0.0)
    share = ask(Servers(monkeypatch)).share
    assert share is not None
    assert {each.asked for each in share.samples.values()} == {0}


@pytest.mark.parametrize("away", [True, False])
def test_routes_are_asked_without_a_golden_request_while_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """Else an operator that starts meanwhile would say nothing for as long, or that all is well."""

    def fetch(package: Package, uri: str) -> Arrays:
        if away:
            raise Temporary("the artifact store does not answer", do="Wait.")
        return golden(package, uri)

    servers, wanted = Servers(monkeypatch, versions=(1, 1)), AskRoutes(revision=name_of(1), versions=(1,))
    evidence = Measurer(golden=fetch).measure(World().look(), wanted, Evidence())
    assert {beat.misses for beat in evidence.routes.values()} == {0}
    assert set(evidence.routes) == {"gRPC", "HTTP", "HTTP by path"}
    assert servers.rows == [None if away else {"input": 1}] * 3


def test_routes_that_are_expected_back_are_not_held_up_by_a_store_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def fetch(package: Package, uri: str) -> Arrays:
        answers.wait(10)
        return golden(package, uri)

    servers, measurer = Servers(monkeypatch, versions=(1, 1)), Measurer(golden=fetch)
    try:
        wanted = AskRoutes(revision=name_of(1), versions=(1,), patience_s=1)
        evidence = measurer.measure(World().look(), wanted, Evidence())
    finally:
        answers.set()
    assert {beat.misses for beat in evidence.routes.values()} == {0}
    assert servers.rows == [None] * 3


def test_golden_requests_are_fetched_once_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    rows: list[int] = []

    def fetch(package: Package, uri: str) -> Arrays:
        fetched.append(uri)
        return golden(package, uri)

    def beat(package: Package, golden: Arrays, address: str) -> tuple[bool, str]:
        rows.append(len(golden["input/input"]))
        return (True, "answers wrongly") if address == "bad" else (False, "")

    monkeypatch.setattr(measuring, "_beat", beat)
    measurer, world = Measurer(golden=fetch), World()
    wanted = AskPods(revision=name_of(1), group=name_of(1), pods=(("a", "good"), ("b", "bad")))
    evidence = measurer.measure(world.look(), wanted, Evidence())
    evidence = measurer.measure(world.look(), wanted, replace(evidence))
    assert fetched == ["s3://models"]
    assert set(rows) == {1}
    assert (evidence.beats["a"].misses, evidence.beats["b"].misses) == (0, 2)
    assert evidence.beats["b"].message == "b answers wrongly"


@pytest.mark.parametrize(
    ("versions", "error", "expected"),
    [
        ((1, 2), None, ""),
        ((3,), None, "is answered by version 1 instead of 3"),
        ((1,), Temporary("no upstream", do="Wait."), "does not answer: no upstream"),
    ],
)
def test_every_route_is_asked(
    monkeypatch: pytest.MonkeyPatch, versions: tuple[int, ...], error: Exception | None, expected: str
) -> None:
    servers = Servers(monkeypatch, versions=(1, 1))
    servers.error = error
    world = World()
    evidence = Evidence()
    for _ in range(2):
        wanted = AskRoutes(revision=name_of(1), versions=versions)
        evidence = Measurer(golden=golden).measure(world.look(), wanted, evidence)
    assert set(evidence.routes) == {"gRPC", "HTTP", "HTTP by path"}
    assert {beat.misses for beat in evidence.routes.values()} == {2 if expected else 0}
    assert all(expected in beat.message for beat in evidence.routes.values())


def test_a_request_that_hangs_does_not_hold_up_the_next_one() -> None:
    asked, hangs = [], threading.Event()

    def ask() -> str:
        asked.append(time.monotonic())
        if len(asked) == 1:
            hangs.wait(120)
            return "does not answer: it hung"
        return ""

    try:
        assert first_right(ask, 1.0) == ""
        assert len(asked) == 2
        assert asked[1] - asked[0] < 60
    finally:
        hangs.set()


def test_patience_ends_with_what_was_wrong_with_the_last_answer() -> None:
    asked = []

    def ask() -> str:
        asked.append(time.monotonic())
        return f"does not answer: {len(asked)}"

    assert first_right(ask, 0.3) == f"does not answer: {len(asked)}"
    assert len(asked) >= 2
    asked.clear()
    assert first_right(ask, 0) == "does not answer: 1"


def test_a_route_is_asked_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    servers, world = Servers(monkeypatch, versions=(1, 1)), World()
    servers.error = InferenceServerException("404")
    threading.Timer(0.2, lambda: setattr(servers, "error", None)).start()
    wanted = AskRoutes(revision=name_of(1), versions=(1,), patience_s=5)
    evidence = Measurer(golden=golden).measure(world.look(), wanted, Evidence())
    assert [beat.misses for beat in evidence.routes.values()] == [0, 0, 0]
