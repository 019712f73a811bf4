"""A challenger that shadows the champion, on real servers: copies of clients' requests, gates, and nothing left on."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from shiplift.runtime.base.errors import PromotionConflict
from shiplift.runtime.capture.ring import Ring
from shiplift.runtime.confinement.watch import worker
from shiplift.runtime.events.kinds import EventKind
from shiplift.runtime.events.outbox import Outbox
from shiplift.runtime.measure.shadowing.on_machine import READER, LocalShadow
from shiplift.runtime.records.deployment import Deployment, Endpoint, ServerProcess
from shiplift.runtime.serving.machine.served import note_served
from shiplift.runtime.serving.machine.server import Server, private_server
from shiplift.runtime.serving.production import production
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.command_line import Features
from shiplift.runtime.spec.shadowing import Shadow
from shiplift.runtime.store.registry.terms import TAG
from tests.integration.backends import ENVIRONMENT, ask, lookup, put
from tests.integration.conftest import ONE_FORM, Lab, digits, until
from tests.unit.examples import package, site

pytestmark = pytest.mark.integration
CHAMPION, CHALLENGER = package(model="m", version=1), package(model="m", version=2)
WANTED = Shadow.model_validate({"for": "1m", "share": 1})


@contextmanager
def both(work: Path) -> Iterator[tuple[Server, Server]]:
    """Production with the champion, and staging with a challenger that answers 1 otherwise, and 3 with an error."""
    with ExitStack() as stack:
        servers = []
        for name, values in (("production", (0, 1, 2, 3)), ("staging", (0, 9, 2))):
            (work / name).mkdir()
            put(work / name, lookup(values), max_batch=1)  # or the error of a row would be that of its neighbours
            features = Features(cache_mb=0, captures=True)
            server = private_server(ENVIRONMENT, work / name / "models", features, log=work / f"{name}.log")
            servers.append(stack.enter_context(server))
            stack.enter_context(TritonClient(servers[-1].grpc, repository_key=servers[-1].key)).load("m")
        process = json.loads(servers[0].process.model_dump_json())
        (work / "stack.json").write_text(json.dumps({"processes": {"triton": process}}))
        note_served(work, CHAMPION)
        yield servers[0], servers[1]


def clients(server: Server, *values: int) -> None:
    """Requests of one row each; nobody minds that one fails."""
    for value in values:
        ask(server, {"x": np.array([[value]], np.int64)})


def test_copies_of_requests_are_answered_and_compared_and_nothing_is_left_on(tmp_path: Path) -> None:
    with both(tmp_path) as (champion, challenger):
        workload = ServerProcess(process=challenger.process, repository="")
        endpoint = Endpoint(http="", grpc=challenger.grpc)
        deployment = Deployment(package=CHALLENGER, endpoint=endpoint, workload=workload)
        with LocalShadow(site(tmp_path)).mirroring(deployment, CHAMPION, WANTED) as mirror:
            seen = mirror.look()
            assert seen.requests == 0

            def enough() -> bool:
                nonlocal seen
                clients(champion, 0, 1, 2, 3)
                seen = mirror.look()
                return seen.requests >= 8 and seen.challenger_latency is not None

            assert until(enough)
            with pytest.raises(InferenceServerException):
                clients(champion, 7)  # the champion's own failure is not a fault of the challenger
            assert seen.champion_latency is not None
            (output,) = seen.outputs
            assert (output.output, output.rows) == ("y", seen.requests - seen.failed)
            assert seen.failed * 3 == output.rows
            assert output.same * 3 == output.rows * 2
            note_served(tmp_path, CHALLENGER)
            with pytest.raises(PromotionConflict, match="version 2 serves m now, not version 1"):
                mirror.look()
        (event,) = [each for _, each in Outbox(tmp_path).events(model="m") if each.kind is EventKind.SHADOWING]
        assert event.text == "for 1m it gets 100 % of version 1's requests"
        before = counted(champion)
        clients(champion, 0, 1)
        assert counted(champion) == before


def test_a_server_stops_copying_for_a_process_that_is_gone_and_goes_on_for_the_capture(tmp_path: Path) -> None:
    with both(tmp_path) as (champion, _), ring(champion) as tap, ring(champion, "") as kept:
        for each in (tap, kept):
            each.set_share(1)
        tap.keep_open(60)

        def copied() -> bool:
            clients(champion, 1)
            return min(tap.counters().captured, kept.counters().captured) > 0

        assert until(copied)
        tap.keep_open(0)  # the time is up, and nobody sets the share to 0
        before, others = tap.counters().captured, kept.counters().captured
        clients(champion, 0, 1, 2)
        assert (tap.counters().captured, kept.counters().captured) == (before, others + 3)
        requests, _ = kept.records(1 << 20)
        assert [each.inputs["x"].item() for each in requests[-3:]] == [0, 1, 2]
        assert all(0 < each.took_us < 60_000_000 for each in requests)


@contextmanager
def ring(server: Server, reader: str = READER) -> Iterator[Ring]:
    """A reader's ring in a server."""
    folder = os.open(f"/proc/{worker(server.process.pid)}/root/tmp/shiplift-capture", os.O_RDONLY)
    tap = Ring(folder, "m", reader=reader)
    os.close(folder)
    try:
        yield tap
    finally:
        tap.close()


def counted(server: Server) -> int:
    """How many requests the server has copied for a shadow."""
    with ring(server) as tap:
        return tap.counters().captured


# --- a whole release ---

SHADOW = "promotion: {{shadow: {{share: 1, for: {seconds}s, min_requests: 20, {more}}}}}\n"


def spec(more: str, seconds: int = 6) -> str:
    return ONE_FORM + SHADOW.format(seconds=seconds, more=more)


@contextmanager
def traffic(lab: Lab, model: str) -> Iterator[list[Any]]:
    """Clients' requests for as long as the context lasts; what they got."""
    stop, seen, image = threading.Event(), [], {"input": digits()[0][:2]}

    def run() -> None:
        while not stop.wait(0.01):
            seen.append(lab.ask(model, image))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
def test_a_challenger_answers_copies_of_real_requests_before_it_gets_traffic(lab: Lab) -> None:
    model = "shadowed"
    first = lab.log_classifier(model, spec=ONE_FORM)
    assert lab.wait(model, first, seconds=600).exit_code == 0
    with traffic(lab, model) as seen:
        second = lab.log_classifier(model, samples=1000, spec=spec("errors_percent: 0"))
        report = lab.wait(model, second, seconds=600)
        assert report.exit_code == 0, report
        checks = {each.name: each for each in report.checks}
        assert (checks["shadow requests"].measured or 0) >= 20
        assert checks["shadow errors"].measured == 0
        assert (checks["shadow p99"].measured or 0) > 0
        agreed = [each for name, each in checks.items() if name.startswith("shadow agreement of ")]
        assert agreed
        assert any((each.measured or 0) < 100 for each in agreed)  # other data, other probabilities
        assert production(lab.site).serving(model) == second

        third = lab.log_classifier(model, samples=1100, spec=spec("agreement_percent: 100"))
        refused = lab.wait(model, third, seconds=600)
        assert refused.exit_code != 0
        assert "rows agree with the champion's" in lab.registry.version(model, third).tags[f"{TAG}reason"]
        assert production(lab.site).serving(model) == second

        fourth = lab.log_classifier(model, samples=900, spec=spec("errors_percent: 0", seconds=3600))
        assert until(lambda: any("of 1h: " in each.message for each in lab.events(model, fourth)), seconds=600)
        answer = lab.engine.abort(model, "it took too long")
        assert (answer.version, answer.champion) == (fourth, second)
        assert lab.registry.version(model, fourth).tags[f"{TAG}outcome"] == "aborted"
        assert production(lab.site).serving(model) == second
        assert all(each is not None for each in seen)
