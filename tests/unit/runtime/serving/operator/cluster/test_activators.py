"""What the operator concludes from the activator's answers."""

import threading
from typing import Any

import httpx
import pytest

from shiplift.runtime.serving.operator.cluster.activators import Activators

A, B = "10.0.0.1:8085", "10.0.0.2:8085"


class Pods:
    """Pods of the activator by address; None does not answer."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Any] | None] = {A: {}, B: {}}
        self.activators = Activators(lambda: self.answers)
        self.activators._client = httpx.Client(transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = self.answers[request.url.netloc.decode()]
        return httpx.Response(503) if answer is None else httpx.Response(200, json=answer)

    def counts(self, address: str, *, held: int, arrived: int) -> None:
        self.answers[address] = {"digits": {"held": held, "arrived": arrived}}


def test_what_all_pods_hold_is_added_up_and_wakes_the_service() -> None:
    pods = Pods()
    assert pods.activators.poll() == []
    pods.counts(A, held=1, arrived=1)
    pods.counts(B, held=2, arrived=2)
    assert pods.activators.poll() == ["digits"]
    known = pods.activators.of("digits")
    assert (known.held, known.came_at, known.answered_at > 0) == (3, known.answered_at, True)
    assert pods.activators.of("other").held == 0


def test_a_request_that_came_and_went_between_two_questions_counts() -> None:
    pods = Pods()
    pods.activators.poll()
    pods.counts(A, held=0, arrived=1)
    assert pods.activators.poll() == ["digits"]
    came_at = pods.activators.of("digits").came_at
    assert pods.activators.poll() == []
    assert pods.activators.of("digits").came_at == came_at > 0


def test_requests_from_before_the_operator_started_do_not_count() -> None:
    pods = Pods()
    pods.counts(A, held=0, arrived=7)
    assert pods.activators.poll() == []
    assert pods.activators.of("digits").came_at == 0


@pytest.mark.parametrize(("arrived", "woken"), [(0, []), (1, ["digits"])])
def test_a_pod_that_began_again_has_counted_from_zero(arrived: int, woken: list[str]) -> None:
    pods = Pods()
    pods.counts(A, held=0, arrived=7)
    pods.activators.poll()
    pods.counts(A, held=0, arrived=arrived)
    assert pods.activators.poll() == woken


def test_a_pod_that_does_not_answer_may_hold_requests_so_nothing_is_known() -> None:
    pods = Pods()
    pods.activators.poll()
    answered_at = pods.activators.of("digits").answered_at
    pods.answers[B] = None
    with pytest.raises(httpx.HTTPError):
        pods.activators.poll()
    assert pods.activators.of("digits").answered_at == answered_at


def test_without_pods_nothing_is_known() -> None:
    pods = Pods()
    pods.answers.clear()
    assert pods.activators.poll() == []
    assert pods.activators.of("digits").answered_at == 0


def test_it_keeps_asking_after_an_error() -> None:
    pods, stop, woken = Pods(), threading.Event(), list[str]()
    pods.answers[A] = None

    def wake(name: str) -> None:
        woken.append(name)
        stop.set()

    thread = threading.Thread(target=pods.activators.run, args=(stop, wake))
    thread.start()
    pods.counts(A, held=1, arrived=1)
    thread.join(timeout=120)
    stop.set()
    assert woken == ["digits"]
