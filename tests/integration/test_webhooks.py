"""Deliveries as they really arrive: from MLflow, altered, duplicated, or not at all."""

import base64
import concurrent.futures
import hashlib
import hmac
import json
import time
import uuid
from typing import Any

import httpx
import pytest

from shiplift.pipelines.daemons import dispatcher
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.pipelines.triggers.receiver import MAX_BODY_BYTES
from shiplift.runtime.base.names import release_name
from shiplift.runtime.base.secrets import load_secrets
from shiplift.runtime.host.processes import alive, stop
from shiplift.runtime.store.registry.lease import WEBHOOK
from shiplift.runtime.store.registry.terms import TAG
from tests.integration.conftest import Lab, until


def event(name: str, version: int) -> bytes:
    data: dict[str, Any] = {"name": name, "version": str(version), "source": "models:/m-1", "run_id": None, "tags": {}}
    return json.dumps({"entity": "model_version", "action": "created", "timestamp": "now", "data": data}).encode()


def headers(lab: Lab, body: bytes, *, delivery: str, sent: int | None = None) -> dict[str, str]:
    at = str(sent if sent is not None else int(time.time()))
    secret = load_secrets(lab.home).webhook
    mac = hmac.new(secret.encode(), f"{delivery}.{at}.".encode() + body, hashlib.sha256).digest()
    return {
        "X-MLflow-Signature": f"v1,{base64.b64encode(mac).decode()}",
        "X-MLflow-Delivery-Id": delivery,
        "X-MLflow-Timestamp": at,
    }


def post(lab: Lab, body: bytes, signed: dict[str, str]) -> httpx.Response:
    url = f"http://127.0.0.1:{lab.running.receiver_port}/webhooks/mlflow"
    return httpx.post(url, content=body, headers=signed, trust_env=False, timeout=30)


def test_mlflows_own_test_event_is_acknowledged_and_starts_nothing(lab: Lab) -> None:
    before = set(lab.releases.names())
    url = f"http://127.0.0.1:{lab.running.receiver_port}/webhooks/mlflow"
    client = lab.mlflow.MlflowClient()
    (webhook,) = [hook for hook in client.list_webhooks(max_results=100) if hook.name == WEBHOOK]
    assert webhook.url == url
    result = client.test_webhook(webhook.webhook_id)
    assert (result.success, result.response_status) == (True, 200)
    assert set(lab.releases.names()) == before


@pytest.mark.parametrize("fault", ["unsigned", "altered", "stale", "oversized", "other secret"])
def test_a_delivery_that_is_not_genuine_starts_nothing(lab: Lab, fault: str) -> None:
    before = set(lab.releases.names())
    body = event("alone", 1)
    signed = headers(lab, body, delivery=str(uuid.uuid4()))
    if fault == "unsigned":
        signed = {}
    elif fault == "altered":
        body = event("alone", 2)
    elif fault == "stale":
        signed = headers(lab, body, delivery=str(uuid.uuid4()), sent=int(time.time()) - 3600)
    elif fault == "oversized":
        body = body + b" " * MAX_BODY_BYTES
        signed = headers(lab, body, delivery=str(uuid.uuid4()))
    else:
        signed["X-MLflow-Signature"] = "v1," + base64.b64encode(b"0" * 32).decode()
    status = {"stale": 409, "oversized": 413}.get(fault, 401)
    assert post(lab, body, signed).status_code == status
    assert set(lab.releases.names()) == before


@pytest.mark.slow
def test_the_same_delivery_fifty_times_at_once_is_one_release(lab: Lab) -> None:
    before = set(lab.releases.names())
    version = lab.log_classifier("fifty")
    name = release_name("fifty", version, "")
    assert lab.wait("fifty", version).exit_code == 0
    first = lab.releases.result(name)

    body = event("fifty", version)
    signed = headers(lab, body, delivery=str(uuid.uuid4()))
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: post(lab, body, signed).status_code, range(50)))
    assert sorted(answers) == [202] + [409] * 49
    started = set(lab.releases.names()) - before
    assert {each for each in started if each.startswith("fifty-")} == {name}  # others are of earlier tests
    assert lab.releases.result(name) == first  # reused, not run again
    assert not lab.releases.active(name)


def test_a_version_the_registry_does_not_know_is_ignored(lab: Lab) -> None:
    before = set(lab.releases.names())
    body = event("never registered", 7)
    answer = post(lab, body, headers(lab, body, delivery=str(uuid.uuid4())))
    assert answer.status_code == 200
    assert "no such version" in answer.text
    assert set(lab.releases.names()) == before


@pytest.mark.slow
def test_a_lost_webhook_is_found_by_the_sweep_and_a_dead_receiver_comes_back(lab: Lab) -> None:
    running = stack.read(lab.home)
    assert running is not None
    dead = running.processes["receiver"]
    stop(dead)
    version = lab.log_classifier("lost")
    name = release_name("lost", version, "")
    if not lab.releases.folder(name).is_dir():  # MLflow's retries may reach the restarted receiver
        dispatcher.sweep(lab.site, Releases(lab.home), since=running.since)
    assert lab.wait("lost", version).exit_code == 0

    def again() -> Any:
        now = stack.read(lab.home)
        return now and now.processes["receiver"] != dead and alive(now.processes["receiver"])

    assert until(again)
    assert f"{TAG}release" in until(lambda: lab.registry.version("lost", version).tags)


def test_the_sweep_leaves_alone_what_was_registered_before_the_stack(lab: Lab) -> None:
    before = set(lab.releases.names())
    dispatcher.sweep(lab.site, Releases(lab.home), since=time.time() + 60)
    assert set(lab.releases.names()) == before
