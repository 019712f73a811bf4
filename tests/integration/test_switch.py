"""Traffic while versions change: no request is lost, and a promotion killed at any line converges."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from shiplift.pipelines.commands.start.demo_story import TrafficClient
from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.records.promotion import Champion, Promotion
from shiplift.runtime.records.verdict import Outcome, Verdict
from shiplift.runtime.serving.production import production
from shiplift.runtime.spec.groups import Delivery
from shiplift.runtime.spec.serving_settings import Rollout
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry.terms import CHAMPION, PREVIOUS
from shiplift.steps.rollback import rollback
from tests.integration.conftest import FAST, ONE_FORM, Lab, digits, request, until

KILLS = 20  # lines at which to kill, evenly spread
KILLER = Path(__file__).with_name("killer.py")


@contextmanager
def traffic(lab: Lab, model: str) -> Iterator[TrafficClient]:
    """Runs a client that sends requests without pause while the context lasts."""
    images, _ = digits()
    client = TrafficClient(
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


def wait_for(client: TrafficClient, sent: int) -> None:
    until(lambda: client.sent > sent)


@contextmanager
def pinned(lab: Lab, model: str, version: int) -> Iterator[Counter[str]]:
    """Asks for one version without pause while the context lasts; yields how many were `answered`, or failed why."""
    stop, outcomes = threading.Event(), Counter[str]()
    image = triton.InferInput("input", [1, 64], "FP32")
    image.set_data_from_numpy(digits()[0][:1])

    def ask() -> None:
        with triton.InferenceServerClient(f"127.0.0.1:{lab.running.grpc_port}") as client:
            while not stop.is_set():
                try:
                    client.infer(model, [image], model_version=str(version), client_timeout=10)
                    outcomes["answered"] += 1
                except InferenceServerException as error:
                    outcomes[str(error)] += 1

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield outcomes
    finally:
        stop.set()
        thread.join(timeout=30)


def promotion_of(lab: Lab, model: str, version: int) -> Promotion:
    promotion = Ledger(lab.site, request(model, version)).promotion()
    assert promotion is not None
    return promotion


@pytest.fixture(scope="module")
def pair(lab: Lab) -> tuple[int, int]:
    """Two released versions; the newer one was promoted under traffic and is the champion."""
    first = lab.log_classifier("switched", spec=ONE_FORM)
    assert lab.wait("switched", first).exit_code == 0
    second = lab.log_classifier("switched", samples=1000, spec=ONE_FORM)
    until(lambda: any(event.stage == "load_test" for event in lab.events("switched", second)), seconds=180)
    with traffic(lab, "switched") as client:  # only now: it takes a core from the release
        assert lab.wait("switched", second).exit_code == 0
        until(lambda: str(second) in client.versions)
    assert client.failures == []
    return first, second


def test_no_request_fails_while_versions_are_promoted_and_rolled_back(lab: Lab, pair: tuple[int, int]) -> None:
    first, second = pair
    with traffic(lab, "switched") as client:
        for version in (first, second, first, second):
            assert rollback(lab.site, "switched").version == version
            assert lab.registry.alias("switched", CHAMPION) == version
            wait_for(client, client.sent + 100)
    assert client.failures == []
    assert client.versions == {str(first), str(second)}


@pytest.mark.slow
def test_earlier_versions_answer_those_who_name_them(lab: Lab) -> None:
    """The three models differ in what they learnt, so that an answer tells which of them gave it."""
    policy = "serving: {version_policy: {latest: 2}}\ntargets: [{name: cpu, engine: onnxruntime, precisions: [fp32]}]\n"
    images, _ = digits()

    def learnt(samples: int) -> list[int]:
        return [int(label) for label in lab.classifier(samples).predict(images)]

    def answered(version: int | None) -> list[int]:
        answer = lab.ask("pinned", {"input": images[:8]}, version)
        assert answer["version"] == (version or serving)
        whole = [lab.ask("pinned", {"input": images[at : at + 8]}, version) for at in range(0, len(images), 8)]
        return [int(label) for each in whole for (label,) in each["outputs"]["label"]]

    def released(samples: int) -> int:
        version = lab.log_classifier("pinned", samples=samples, spec=FAST + policy)
        assert lab.wait("pinned", version).exit_code == 0
        return version

    samples = (100, 300, 1000)
    assert len({tuple(learnt(each)) for each in samples}) == 3
    first, second = released(100), released(300)
    with pinned(lab, "pinned", second) as asked:
        third = serving = released(1000)
        assert (answered(None), answered(second)) == (learnt(1000), learnt(300))
        until(lambda: sum(asked.values()) > 200)
    assert set(asked) == {"answered"}
    with pytest.raises(NotFound, match=f"does not serve version {first} of 'pinned'; it serves {second}, {third}"):
        lab.ask("pinned", {"input": images[:1]}, first)
    over_http = httpx.post(
        f"http://127.0.0.1:{lab.running.http_port}/v2/models/pinned/versions/{second}/infer",
        trust_env=False,
        json={"inputs": [{"name": "input", "shape": [1, 64], "datatype": "FP32", "data": images[0].tolist()}]},
    )
    assert over_http.json()["model_version"] == str(second)
    with traffic(lab, "pinned") as client, pinned(lab, "pinned", second) as asked:
        assert rollback(lab.site, "pinned").version == second
        wait_for(client, client.sent + 100)
    assert (client.failures, client.versions) == ([], {str(second), str(third)})
    assert set(asked) == {"answered"}
    serving = second
    assert (answered(None), answered(first)) == (learnt(300), learnt(100))
    with pytest.raises(NotFound):
        lab.ask("pinned", {"input": images[:1]}, third)


@pytest.mark.slow
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


@contextmanager
def killer(lab: Lab) -> Iterator[Callable[..., dict[str, Any]]]:
    """Yields a function that promotes or rolls back in a process that dies at its n-th line (0: never).

    With `abort`, a person aborts it at that line.
    """
    process = subprocess.Popen(
        [sys.executable, str(KILLER), str(lab.home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    orders, answers = process.stdin, process.stdout

    def order(verb: str, version: int, point: int, abort: int = 0) -> dict[str, Any]:
        named = {"verb": verb, "model": "switched", "version": version, "point": point, "abort": abort}
        orders.write(json.dumps(named) + "\n")
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
@pytest.mark.slow
@pytest.mark.parametrize("verb", ["promote", "rollback"])
def test_killed_at_any_line_and_run_again_it_converges(lab: Lab, pair: tuple[int, int], verb: str) -> None:
    champion, previous = (lab.registry.alias("switched", alias) for alias in (CHAMPION, PREVIOUS))
    assert {champion, previous} == set(pair)
    with traffic(lab, "switched") as client, killer(lab) as run:
        lines = run(verb, previous, 0)["lines"]
        champion, previous = previous, champion
        assert lines > KILLS
        for point in range(1, lines + 1, lines // KILLS):
            target = previous
            result = run(verb, target, point)
            assert result["killed"] or result["lines"] < point, point  # fewer lines if less was left to do
            run(verb, target, 0)
            assert lab.registry.alias("switched", CHAMPION) == target, point
            assert lab.registry.alias("switched", PREVIOUS) == champion, point
            assert production(lab.site).serves(promotion_of(lab, "switched", target).package), point
            champion, previous = target, champion
    assert client.failures == []


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_aborted_at_any_line_the_champion_serves_even_if_the_abort_is_killed(lab: Lab, pair: tuple[int, int]) -> None:
    place, aborts = production(lab.site), 0
    champion, other = (lab.registry.alias("switched", alias) for alias in (CHAMPION, PREVIOUS))
    with traffic(lab, "switched") as client, killer(lab) as run:
        lines = run("promote", other, 0)["lines"]
        place.settle("switched", other)
        champion, other = other, champion
        for number, line in enumerate(range(1, lines + 1, lines // KILLS)):
            run("promote", other, line + 5 * (number % 4) if number % 4 else 0, abort=line)
            run("promote", other, 0)
            known = place.moving("switched")
            aborts += bool(known and known.abort)
            if not (known and known.abort):  # the order came before there was something to abort, or too late
                champion, other = other, champion
            place.settle("switched", other if known and known.abort else champion)
            assert lab.registry.alias("switched", CHAMPION) == champion, line
            assert place.serving("switched") == champion, line
            assert place.serves(promotion_of(lab, "switched", champion).package), line
    assert aborts > KILLS // 4
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
    from shiplift.runtime.records.deployment import Deployment, Endpoint, ServerProcess
    from shiplift.runtime.records.process import Process
    from shiplift.steps.promote import promote
    from tests.integration.conftest import by_hand
    from tests.unit.examples import model_version

    first, second = pair
    package = promotion_of(lab, "switched", first).package
    deployment = Deployment(
        package=package,
        endpoint=Endpoint(http="", grpc=""),
        workload=ServerProcess(process=Process(pid=1, started_at=0), repository=""),
    )
    before = lab.registry.alias("switched", CHAMPION)
    with pytest.raises(Refused):
        promote(
            lab.site,
            request("switched", first),
            by_hand(),
            model_version(name="switched", version=first),
            Verdict(outcome=Outcome.FAIL, checks=()),
            deployment,
            Champion(version=second),
            Delivery(),
        )
    assert lab.registry.alias("switched", CHAMPION) == before
