import asyncio
import base64
import hashlib
import hmac
import json
import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from shiplift.pipelines.engines.local.releases import Releases
from shiplift.pipelines.triggers.intake import Deliveries, Intake
from shiplift.pipelines.triggers.receiver import MAX_BODY_BYTES, create_app
from shiplift.pipelines.triggers.settings import DeliveryLimits
from shiplift.pipelines.triggers.signatures import MAX_AGE_S
from shiplift.runtime.base.errors import ClusterRefused, StorageFull, Temporary
from shiplift.runtime.records.request import Request
from shiplift.runtime.store.registry.terms import VersionInfo
from tests.unit.examples import found

SECRET = "the webhook's secret"


class Desk:
    """A receiver with a registry that knows version 3 of every model, and a sender that signs as MLflow does."""

    def __init__(self, home: Path) -> None:
        self.releases = Releases(home)
        self.secrets: tuple[str, ...] = (SECRET,)
        self.failing: list[Exception] = []
        self.asked: list[tuple[str, int]] = []
        self.registered_at = 1.5
        deliveries = Deliveries(home / "deliveries")
        self.app = create_app(
            Intake(
                accept=self.releases.accept, find_version=self._find, mlflow=lambda: self.secrets, deliveries=deliveries
            )
        )

    def _find(self, name: str, version: int) -> VersionInfo | None:
        self.asked.append((name, version))
        if self.failing:
            raise self.failing.pop()
        return found(name, version, self.registered_at) if version == 3 else None

    def post(self, *requests: dict[str, Any]) -> list[httpx.Response]:
        """Sends requests (from `delivery`) at the same time."""

        async def send() -> list[httpx.Response]:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://receiver") as client:
                return await asyncio.gather(*(client.post("/webhooks/mlflow", **request) for request in requests))

        return asyncio.run(send())

    def status(self, request: dict[str, Any]) -> int:
        return self.post(request)[0].status_code

    @property
    def accepted(self) -> list[Request]:
        return [self.releases.order(name).request for name in self.releases.names()]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def body_of(name: Any = "digits", version: Any = "3", **changes: Any) -> bytes:
    data = {"name": name, "version": version, "source": "models:/m-1", "tags": {}}
    return json.dumps({"entity": "model_version", "action": "created", "data": data} | changes).encode()


def delivery(
    body: bytes | None = None, *, id_: str = "delivery-1", secret: str = SECRET, age_s: float = 0, **headers: str
) -> dict[str, Any]:
    sent = body if body is not None else body_of()
    at = str(int(time.time() - age_s))
    digest = hmac.new(secret.encode(), f"{id_}.{at}.".encode() + sent, hashlib.sha256).digest()
    signed = {
        "X-MLflow-Delivery-Id": id_,
        "X-MLflow-Timestamp": at,
        "X-MLflow-Signature": f"v1,{base64.b64encode(digest).decode()}",
    }
    return {"content": sent, "headers": signed | headers}


def test_a_signed_delivery_becomes_a_release(desk: Desk) -> None:
    (answer,) = desk.post(delivery())
    assert (answer.status_code, answer.text) == (202, f"accepted: {desk.releases.names()[0]}\n")
    assert desk.accepted == [Request(model="digits", version=3, registered_at=1.5)]
    trigger = desk.releases.order(desk.releases.names()[0]).trigger
    assert (trigger.kind, trigger.delivery) == ("webhook", "delivery-1")


def test_a_version_with_the_number_of_a_deleted_one_is_released_anew(desk: Desk) -> None:
    for number, (registered_at, answer) in enumerate(
        [(1.5, "accepted"), (1.5, "already there"), (2.5, "accepted")] * 2
    ):
        desk.registered_at = registered_at
        (response,) = desk.post(delivery(id_=f"delivery-{number}"))
        assert response.text.startswith(answer if number < 3 else "already there")
    assert sorted(request.registered_at for request in desk.accepted) == [1.5, 2.5]


def test_one_right_signature_among_several_is_enough(desk: Desk) -> None:
    request = delivery()
    request["headers"]["X-MLflow-Signature"] = "v1,b2xk " + request["headers"]["X-MLflow-Signature"]
    assert desk.status(request) == 202


@pytest.mark.parametrize("missing", ["X-MLflow-Delivery-Id", "X-MLflow-Timestamp", "X-MLflow-Signature"])
def test_a_delivery_that_is_not_signed_is_refused(desk: Desk, missing: str) -> None:
    request = delivery()
    del request["headers"][missing]
    assert (desk.status(request), desk.accepted, desk.asked) == (401, [], [])


@pytest.mark.parametrize(
    "change",
    [
        {"content": body_of("other")},
        {"content": body_of() + b" "},
        {"X-MLflow-Delivery-Id": "delivery-2"},
        {"X-MLflow-Timestamp": str(int(time.time()) - 5)},
        {"X-MLflow-Signature": "v1,AAAA"},
        {"X-MLflow-Signature": ""},
        {"X-MLflow-Signature": " "},
        {"X-MLflow-Signature": "é"},
    ],
)
def test_an_altered_delivery_is_refused(desk: Desk, change: dict[str, Any]) -> None:
    request = delivery()
    request["content"] = change.get("content", request["content"])
    request["headers"] |= {name: value.encode() for name, value in change.items() if name != "content"}
    assert (desk.status(request), desk.accepted, desk.asked) == (401, [], [])


def test_a_delivery_signed_with_another_secret_is_refused(desk: Desk) -> None:
    assert (desk.status(delivery(secret="guessed")), desk.accepted) == (401, [])


@pytest.mark.parametrize("age_s", [MAX_AGE_S + 5, -MAX_AGE_S - 5])
def test_a_stale_delivery_is_refused(desk: Desk, age_s: float) -> None:
    assert (desk.status(delivery(age_s=age_s)), desk.accepted, desk.asked) == (409, [], [])


@pytest.mark.parametrize("sent", ["", "soon", "1.5", "-5", "²"])
def test_a_time_that_is_none_is_refused_and_never_an_error(desk: Desk, sent: str) -> None:
    digest = hmac.new(SECRET.encode(), f"delivery-1.{sent}.".encode() + body_of(), hashlib.sha256).digest()
    request = delivery()
    request["headers"]["X-MLflow-Timestamp"] = sent.encode("latin-1")
    request["headers"]["X-MLflow-Signature"] = f"v1,{base64.b64encode(digest).decode()}"
    assert (desk.status(request) in (401, 409), desk.accepted) == (True, [])


def test_a_replayed_delivery_is_refused(desk: Desk) -> None:
    request = delivery()
    assert [desk.status(request) for _ in range(3)] == [202, 409, 409]
    assert len(desk.accepted) == len(desk.asked) == 1


def test_a_delivery_that_is_too_large_is_refused_whatever_its_header_says(desk: Desk) -> None:
    large = body_of(padding="x" * MAX_BODY_BYTES)
    assert (desk.status(delivery(large)), desk.accepted) == (413, [])

    async def pieces() -> Any:
        for _ in range(MAX_BODY_BYTES // 1024 + 1):
            yield b"x" * 1024

    request = delivery(large)
    assert (desk.status(request | {"content": pieces()}), desk.accepted) == (413, [])


def test_a_delivery_of_the_largest_size_is_taken(desk: Desk) -> None:
    padding = "x" * (MAX_BODY_BYTES - len(body_of(padding="")))
    assert desk.status(delivery(body_of(padding=padding))) == 202


def test_fifty_deliveries_with_one_id_at_once_make_one_release(desk: Desk) -> None:
    answers = desk.post(*[delivery()] * 50)
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 49
    assert len(desk.accepted) == 1


def test_fifty_deliveries_of_one_version_at_once_make_one_release(desk: Desk) -> None:
    answers = desk.post(*(delivery(id_=f"delivery-{n}") for n in range(50)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.text.split(": ")[1] for answer in answers}) == len(desk.accepted) == 1


def test_a_version_that_the_registry_does_not_know_starts_nothing(desk: Desk) -> None:
    """MLflow's own test event names a version that does not exist."""
    (answer,) = desk.post(delivery(body_of("example_model", "1", data_source="models:/123")))
    assert (answer.status_code, desk.accepted) == (200, [])
    assert "no such version" in answer.text


def test_a_delivery_works_again_once_the_registry_is_back(desk: Desk) -> None:
    desk.failing = [Temporary("the registry is away", do="Wait.")]
    (answer,) = desk.post(delivery())
    assert (answer.status_code, answer.headers["retry-after"], desk.accepted) == (503, "2", [])
    assert (desk.status(delivery()), len(desk.accepted)) == (202, 1)


@pytest.mark.parametrize(("error", "status"), [(StorageFull("full", do="Free."), 503), (ZeroDivisionError(), 500)])
def test_a_delivery_works_again_after_any_failure(desk: Desk, error: Exception, status: int) -> None:
    desk.failing = [error]
    assert (desk.status(delivery()), desk.accepted) == (status, [])
    assert (desk.status(delivery()), len(desk.accepted)) == (202, 1)


@pytest.mark.parametrize(
    "body",
    [
        body_of(entity="registered_model"),
        body_of(action="deleted"),
        body_of(entity="model_version_alias"),
        body_of(data={}),
        body_of(data=[]),
        body_of(version="latest"),
        body_of(version=0),
        body_of(version=-3),
        body_of(version=2**40),
        body_of(version=None),
        body_of(name=""),
        body_of(name=5),
        b"",
        b"not json",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"entity": "model_version", "action": "created", "data": {"name": "\\ud800", "version": 3}}',
    ],
)
def test_any_other_event_is_ignored(desk: Desk, body: bytes) -> None:
    assert (desk.status(delivery(body)), desk.accepted, desk.asked) == (200, [], [])


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/passwd", "a:b", "a\x00b", "a\nb", " a", "a ", "x" * 257])
def test_a_hostile_name_is_ignored_before_anyone_is_asked(desk: Desk, name: str) -> None:
    assert (desk.status(delivery(body_of(name))), desk.accepted, desk.asked) == (200, [], [])


@pytest.mark.parametrize("name", ["..", ".", "-rf", "${HOME}", "%2e%2e", "x" * 256, "模型"])
def test_an_odd_name_that_the_registry_knows_stays_inside_the_home(desk: Desk, tmp_path: Path, name: str) -> None:
    assert desk.status(delivery(body_of(name))) == 202
    (folder,) = desk.releases.root.iterdir()
    assert folder.name == desk.releases.names()[0]
    assert {path.name for path in tmp_path.iterdir()} == {"releases", "deliveries"}
    assert desk.accepted == [Request(model=name, version=3, registered_at=1.5)]


def test_a_number_may_be_a_number(desk: Desk) -> None:
    assert desk.status(delivery(body_of(version=3))) == 202


def test_ids_of_deliveries_are_forgotten_when_their_age_alone_refuses_them(tmp_path: Path) -> None:
    deliveries = Deliveries(tmp_path / "seen")
    assert deliveries.claim("old")
    (file,) = (tmp_path / "seen").iterdir()
    os.utime(file, (0, time.time() - 3 * MAX_AGE_S))
    assert not deliveries.claim("old")
    later = Deliveries(tmp_path / "seen")
    assert later.claim("new")
    assert len(list((tmp_path / "seen").iterdir())) == 1
    assert not later.claim("new")


def test_thousands_of_ids_are_not_looked_through_for_each_delivery(tmp_path: Path) -> None:
    deliveries = Deliveries(tmp_path / "seen")
    assert deliveries.claim("first")
    (file,) = (tmp_path / "seen").iterdir()
    os.utime(file, (0, time.time() - 3 * MAX_AGE_S))
    assert deliveries.claim("second")
    assert file.exists()


def test_an_id_is_never_a_path(tmp_path: Path) -> None:
    assert Deliveries(tmp_path / "seen").claim("../../out")
    assert [path.name for path in tmp_path.iterdir()] == ["seen"]


def test_the_receiver_says_that_it_is_up_and_describes_nothing_else(desk: Desk) -> None:
    async def ask(path: str) -> int:
        transport = httpx.ASGITransport(app=desk.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://receiver") as client:
            return (await client.get(path)).status_code

    statuses = {path: asyncio.run(ask(path)) for path in ("/healthz", "/docs", "/openapi.json", "/webhooks/mlflow")}
    assert statuses == {"/healthz": 200, "/docs": 404, "/openapi.json": 404, "/webhooks/mlflow": 405}


def test_two_secrets_are_right_while_one_replaces_the_other(desk: Desk) -> None:
    desk.secrets = ("new", SECRET)
    assert desk.status(delivery(id_="a")) == 202
    assert desk.status(delivery(id_="b", secret="new")) == 202
    desk.secrets = ("new",)
    assert desk.status(delivery(id_="c")) == 401
    desk.secrets = ()
    assert (desk.status(delivery(id_="d", secret="")), desk.status(delivery(id_="e", secret="new"))) == (401, 401)


def test_without_ids_kept_the_same_delivery_is_the_same_release(tmp_path: Path) -> None:
    """On a cluster: any replica may get it, and the release's name is what tells."""
    releases = Releases(tmp_path)
    app = create_app(Intake(accept=releases.accept, find_version=found, mlflow=lambda: (SECRET,)))
    answers = send(app, *[("/webhooks/mlflow", delivery())] * 50)
    assert {answer.status_code for answer in answers} == {202}
    assert sorted({answer.text.split(":")[0] for answer in answers}) == ["accepted", "already there"]
    assert len(releases.names()) == 1


def test_a_source_that_asks_too_often_waits(tmp_path: Path) -> None:
    intake = Intake(accept=Releases(tmp_path).accept, find_version=found, mlflow=lambda: (SECRET,))
    app = create_app(intake, DeliveryLimits(deliveries_per_minute=3))
    answers = send(app, *[("/webhooks/mlflow", delivery())] * 5)
    assert sorted(answer.status_code for answer in answers) == [202, 202, 202, 429, 429]
    waits = [int(answer.headers["retry-after"]) for answer in answers if answer.status_code == 429]
    assert all(1 <= wait <= 60 for wait in waits)
    (other,) = send(app, ("/webhooks/mlflow", delivery()), source="10.0.0.9")
    assert other.status_code == 202


def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    intake = Intake(accept=Releases(tmp_path).accept, find_version=found, mlflow=lambda: (SECRET,))
    app = create_app(intake, DeliveryLimits(body_timeout_s=0.05))

    async def slow() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    async def ask() -> int:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/webhooks/mlflow",
            "headers": [],
            "query_string": b"",
            "client": ("10.0.0.1", 1),
            "http_version": "1.1",
            "scheme": "http",
            "server": ("receiver", 80),
        }
        pieces = slow()
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": await anext(pieces), "more_body": True}

        async def keep(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, keep)
        return int(sent[0]["status"])

    assert asyncio.run(ask()) == 408


def test_readiness_says_what_is_missing_and_metrics_what_was_answered(tmp_path: Path) -> None:
    missing: list[Exception] = [Temporary("the WorkflowTemplate 'release' is not there yet", do="Install it.")]

    def ready() -> None:
        if missing:
            raise missing[0]

    app = create_app(
        Intake(accept=Releases(tmp_path).accept, find_version=found, mlflow=lambda: (SECRET,), ready=ready)
    )
    (answer,) = send(app, ("/readyz", {}), method="GET")
    assert (answer.status_code, "is not there yet" in answer.text) == (503, True)
    missing.clear()
    assert [response.status_code for response in send(app, ("/readyz", {}), ("/healthz", {}), method="GET")] == [
        200,
        200,
    ]
    send(app, ("/webhooks/mlflow", delivery()), ("/webhooks/mlflow", delivery(secret="guessed")))
    (metrics,) = send(app, ("/metrics", {}), method="GET")
    assert 'shiplift_deliveries_total{answer="202",kind="mlflow"} 1.0' in metrics.text
    assert 'shiplift_deliveries_total{answer="401",kind="mlflow"} 1.0' in metrics.text
    assert 'shiplift_delivery_seconds_count{kind="mlflow"} 2.0' in metrics.text
    assert "process_" not in metrics.text


def test_nothing_secret_is_logged(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    request = delivery()
    desk.post(request, delivery(secret="guessed", id_="other"))
    logged = "".join(capsys.readouterr())
    assert "delivery" in logged
    assert SECRET not in logged
    assert request["headers"]["X-MLflow-Signature"] not in logged


def test_a_failure_that_is_ours_is_not_told_to_the_sender(desk: Desk) -> None:
    desk.failing = [ClusterRefused("the cluster forbids POST /apis/secret-place", do="Grant it.")]
    (answer,) = desk.post(delivery())
    assert (answer.status_code, "secret-place" in answer.text) == (500, False)
    assert desk.status(delivery()) == 202


def send(
    app: Any, *requests: tuple[str, dict[str, Any]], method: str = "POST", source: str = "10.0.0.1"
) -> list[httpx.Response]:
    """Sends requests to an application at the same time."""

    async def all_of_them() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False, client=(source, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://receiver") as client:
            return await asyncio.gather(*(client.request(method, path, **options) for path, options in requests))

    return asyncio.run(all_of_them())
