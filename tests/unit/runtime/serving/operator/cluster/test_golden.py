"""Golden requests in memory: fetched once, never waited for long, and tried again after a while."""

import threading
from collections.abc import Callable

import numpy as np
import pytest

from shiplift.runtime.base.errors import Temporary
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.operator.cluster.golden import GoldenRequests
from shiplift.runtime.serving.operator.observed import TargetPods
from tests.unit.runtime.serving.operator.world import World, name_of


def group() -> TargetPods:
    return World().look().groups(name_of(1))[0]


def arrays(_: Package, __: str) -> Arrays:
    return {"input/input": np.zeros((20, 4), np.float32)}


def counted(fetch: Callable[[Package, str], Arrays]) -> tuple[list[str], Callable[[Package, str], Arrays]]:
    fetched: list[str] = []

    def fetch_and_count(package: Package, uri: str) -> Arrays:
        fetched.append(uri)
        return fetch(package, uri)

    return fetched, fetch_and_count


def test_a_few_rows_are_fetched_once() -> None:
    fetched, fetch = counted(arrays)
    golden = GoldenRequests(fetch)
    assert [golden.of(group())["input/input"].shape for _ in range(3)] == [(8, 4)] * 3
    assert fetched == ["s3://models"]


def test_a_store_that_hangs_is_waited_for_a_moment_and_asked_only_once() -> None:
    answers = threading.Event()

    def hang(package: Package, uri: str) -> Arrays:
        assert answers.wait(120)
        return arrays(package, uri)

    fetched, fetch = counted(hang)
    golden = GoldenRequests(fetch, patience_s=0.05)
    for at_once in (False, True, False):
        with pytest.raises(Temporary, match="still being fetched"):
            golden.of(group(), at_once=at_once)
    answers.set()
    patient = next(rows for _ in range(200) if (rows := _fetched(golden)))
    assert patient["input/input"].shape == (8, 4)
    assert len(fetched) == 1


def _fetched(golden: GoldenRequests) -> Arrays | None:
    try:
        return golden.of(group())
    except Temporary:
        return None


@pytest.mark.parametrize(("pause_s", "fetches"), [(3600, 1), (0, 3)])
def test_after_a_failure_the_store_is_left_alone_for_a_while(pause_s: float, fetches: int) -> None:
    def fail(_: Package, __: str) -> Arrays:
        raise Temporary("the artifact store does not answer", do="Wait.")

    fetched, fetch = counted(fail)
    golden = GoldenRequests(fetch, pause_s=pause_s)
    for _ in range(3):
        with pytest.raises(Temporary, match="does not answer"):
            golden.of(group())
    assert len(fetched) == fetches
