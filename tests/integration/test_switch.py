"""Traffic while versions change: no request is lost, and a promotion killed at any line converges."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shiplift.pipelines.commands.start.demo_story import Traffic
from shiplift.runtime.records.serving import Champion, Promotion
from shiplift.runtime.records.verdict import Outcome, Verdict
from shiplift.runtime.serving.production import production
from shiplift.runtime.spec.measurement import LatencyTarget
from shiplift.runtime.spec.serving import Rollout
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry.terms import CHAMPION, PREVIOUS
from shiplift.steps.rollback import rollback
from tests.integration.conftest import Lab, digits, request, until

POINTS = 20  # lines at which to kill, evenly spread
KILLER = Path(__file__).with_name("killer.py")


@contextmanager
def traffic(lab: Lab, model: str) -> Iterator[Traffic]:
    """Runs a client that sends requests without pause while the context lasts."""
    images, _ = digits()
    client = Traffic(
        model=model,
        http=f"http://127.0.0.1:{lab.running.http_port}/v2/models/{model}",
        grpc=f"127.0.0.1:{lab.running.grpc_port}",
        image=images[:1],
    )
    client.start()
    try:
        until(lambda: client.sent > 50)
        yield client
    finally:
        client.stop()


def wait_for(client: Traffic, sent: int) -> None:
    until(lambda: client.sent > sent)


def promotion_of(lab: Lab, model: str, version: int) -> Promotion:
    promotion = Ledger(lab.site, request(model, version)).promotion()
    assert promotion is not None
    return promotion


def test_no_request_fails_while_versions_are_promoted_and_rolled_back(lab: Lab) -> None:
    first = lab.log_classifier("live")
    assert lab.wait("live", first).exit_code == 0
    with traffic(lab, "live") as client:
        second = lab.log_classifier("live", samples=1000)
        assert lab.wait("live", second).exit_code == 0
        until(lambda: str(second) in client.versions)
        for version in (first, second, first):
            assert rollback(lab.site, "live").version == version
            assert lab.registry.alias("live", CHAMPION) == version
            wait_for(client, client.sent + 100)
    assert client.failures == []
    assert client.versions == {str(first), str(second)}


def test_a_package_that_answers_wrongly_never_takes_traffic(lab: Lab, tmp_path: Path) -> None:
    from shiplift.runtime.base.errors import GoldenMismatch, ServerFailed
    from shiplift.runtime.model.tensors import dump_npz, load_npz
    from shiplift.runtime.serving.triton.repository import GOLDEN
    from shiplift.runtime.store.artifacts import ArtifactStore

    version = lab.log_classifier("wrong")
    assert lab.wait("wrong", version).exit_code == 0
    package = promotion_of(lab, "wrong", version).package
    store = ArtifactStore(lab.site.artifacts_uri)
    for number, fault in enumerate(("golden", "model")):
        tree = store.fetch(package.repository, tmp_path / fault)
        if fault == "golden":
            golden = load_npz(tree / GOLDEN)
            golden["output/label"] = golden["output/label"] + 1
            (tree / GOLDEN).write_bytes(dump_npz(golden))
        else:
            (tree / "wrong" / str(version) / "model.onnx").write_bytes(b"not a model")
        broken = package.model_copy(update={"repository": store.put_tree(tree)})
        with traffic(lab, "wrong") as client, pytest.raises((GoldenMismatch, ServerFailed)):
            production(lab.site).move(broken, Rollout())
        assert client.failures == [], number
        assert client.versions == {str(version)}
        assert production(lab.site).serves(package)


@pytest.fixture(scope="module")
def pair(lab: Lab) -> tuple[int, int]:
    """Two released versions; the newer one is the champion."""
    first = lab.log_classifier("killed")
    assert lab.wait("killed", first).exit_code == 0
    second = lab.log_classifier("killed", samples=1000)
    assert lab.wait("killed", second).exit_code == 0
    return first, second


@contextmanager
def killer(lab: Lab) -> Iterator[Callable[[str, int, int], dict[str, Any]]]:
    """Yields a function that promotes or rolls back in a process that dies at its n-th line (0: never)."""
    process = subprocess.Popen(
        [sys.executable, str(KILLER), str(lab.home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    orders, answers = process.stdin, process.stdout

    def order(verb: str, version: int, point: int) -> dict[str, Any]:
        orders.write(json.dumps({"verb": verb, "model": "killed", "version": version, "point": point}) + "\n")
        orders.flush()
        answer: dict[str, Any] = json.loads(answers.readline())
        assert not answer["failed"], (verb, version, point)
        return answer

    try:
        yield order
    finally:
        process.stdin.close()
        process.wait(timeout=30)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("verb", [pytest.param("rollback", marks=pytest.mark.slow), "promote"])
def test_killed_at_any_line_and_run_again_it_converges(lab: Lab, pair: tuple[int, int], verb: str) -> None:
    champion, previous = (lab.registry.alias("killed", alias) for alias in (CHAMPION, PREVIOUS))
    assert {champion, previous} == set(pair)
    with traffic(lab, "killed") as client, killer(lab) as run:
        lines = run(verb, previous, 0)["lines"]
        champion, previous = previous, champion
        assert lines > POINTS
        for point in range(1, lines + 1, lines // POINTS):
            target = previous
            result = run(verb, target, point)
            assert result["killed"] or result["lines"] < point, point  # fewer lines if less was left to do
            run(verb, target, 0)
            assert lab.registry.alias("killed", CHAMPION) == target, point
            assert lab.registry.alias("killed", PREVIOUS) == champion, point
            assert production(lab.site).serves(promotion_of(lab, "killed", target).package), point
            champion, previous = target, champion
    assert client.failures == []


def test_promotions_of_one_model_wait_for_each_other(lab: Lab) -> None:
    place = production(lab.site)
    order: list[str] = []

    def second() -> None:
        with place.lock("waits"):
            order.append("second")

    with place.lock("waits"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join(timeout=10)
    assert order == ["first", "second"]


def test_a_verdict_that_is_not_a_pass_promotes_nothing(lab: Lab, pair: tuple[int, int]) -> None:
    from shiplift.runtime.base.errors import Refused
    from shiplift.runtime.records.serving import Deployment, Endpoint, Process, ServerProcess
    from shiplift.steps.promote import promote
    from tests.integration.conftest import by_hand

    first, second = pair
    package = promotion_of(lab, "killed", first).package
    deployment = Deployment(
        package=package,
        endpoint=Endpoint(http="", grpc=""),
        workload=ServerProcess(process=Process(pid=1, started_at=0), repository=""),
    )
    before = lab.registry.alias("killed", CHAMPION)
    with pytest.raises(Refused):
        promote(
            lab.site, request("killed", first), by_hand(), Verdict(outcome=Outcome.FAIL, checks=()), deployment,
            Champion(version=second), Rollout(), LatencyTarget(),
        )  # fmt: skip
    assert lab.registry.alias("killed", CHAMPION) == before
