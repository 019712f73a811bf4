"""A service that is scaled to zero on a real cluster: its first request is held and answered, and none is lost.

The tests share a model, promoted once through the whole pipeline, so they run in order.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.cluster.conftest import Lab, until
from tests.cluster.test_release import SPEC, promoted, traffic

MODEL = "sleepy"
IDLE_S = 10
_ASLEEP_S, _AWAKE_S = 120, 120
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(lab: Lab) -> str:
    """A model with one promoted version, which is scaled to zero after some seconds without a request."""
    if not lab.values.activator:
        pytest.skip("only a cluster on this machine has a gateway, which the activator needs")
    promoted(lab, MODEL, lab.log_classifier(MODEL, spec=SPEC))
    patch(lab, {"scaling": {"toZero": True, "idleSeconds": IDLE_S}})
    return MODEL


def patch(lab: Lab, spec: dict[str, Any]) -> None:
    body = json.dumps({"spec": spec})
    lab.kube("-n", lab.serving, "patch", "tritonservice", MODEL, "--type=merge", "-p", body)


def status(lab: Lab) -> Any:
    return lab.kube.get("tritonservice", lab.serving, MODEL)["status"]


def activation(lab: Lab) -> str:
    return str(status(lab).get("activation", ""))


def pods(lab: Lab) -> list[str]:
    bodies = lab.kube.get("pod", lab.serving, selector=f"shiplift.dev/model={MODEL}")
    return [body["metadata"]["name"] for body in bodies]


def fall_asleep(lab: Lab) -> float:
    """Waits until no pod is left; returns the seconds that the status took to say so."""
    started = time.monotonic()
    until(lambda: activation(lab) == "ScaledToZero", seconds=_ASLEEP_S)
    took = time.monotonic() - started
    until(lambda: not pods(lab), seconds=90)
    return took


def over_http(lab: Lab) -> Any:
    client = traffic(lab, MODEL)
    data = {"name": "input", "shape": list(client.row.shape), "datatype": "FP32", "data": client.row.ravel().tolist()}
    url = f"http://{client.gateway}:8000/v2/models/{MODEL}/infer"
    answer = httpx.post(url, json={"inputs": [data]}, timeout=90, trust_env=False).raise_for_status().json()
    return answer["model_version"], {each["name"]: each["data"] for each in answer["outputs"]}


def over_grpc(lab: Lab) -> Any:
    client = traffic(lab, MODEL)
    options = [("grpc.default_authority", client.authority)]
    with triton.InferenceServerClient(f"{client.gateway}:8001", channel_args=options) as server:
        tensor = triton.InferInput("input", list(client.row.shape), "FP32")
        tensor.set_data_from_numpy(client.row)
        answer = server.infer(MODEL, [tensor], client_timeout=90)
    response = answer.get_response()
    outputs = {each.name: np.asarray(answer.as_numpy(each.name)).ravel().tolist() for each in response.outputs}
    return response.model_version, outputs


def timed(ask: Callable[[Lab], Any], lab: Lab) -> tuple[Any, float]:
    started = time.monotonic()
    return ask(lab), time.monotonic() - started


def test_requests_keep_it_awake_and_without_them_no_pod_is_left(lab: Lab, model: str) -> None:
    with traffic(lab, MODEL) as client:
        client.pause_s = 1.0
        end = time.monotonic() + 3 * IDLE_S
        while time.monotonic() < end:
            assert activation(lab) == ""
            time.sleep(1)
    assert client.failures == []
    took = fall_asleep(lab)
    print(f"asleep {took:.0f} s after the last request")
    assert took >= IDLE_S
    ready, available = lab.condition(MODEL, "Ready"), lab.condition(MODEL, "Available")
    assert (ready["status"], ready["reason"]) == (available["status"], available["reason"]) == ("True", "ScaledToZero")
    time.sleep(2 * IDLE_S)  # the operator's own requests wake nobody up
    assert (activation(lab), pods(lab)) == ("ScaledToZero", [])


def test_the_first_requests_are_held_and_answered_as_if_it_had_not_slept(lab: Lab, model: str) -> None:
    over_http(lab)
    right = (over_http(lab), over_grpc(lab))
    fall_asleep(lab)
    with ThreadPoolExecutor(2) as pool:
        held = [pool.submit(timed, ask, lab) for ask in (over_http, over_grpc)]
        (http, http_s), (grpc, grpc_s) = (call.result() for call in held)
    print(f"first answers after {http_s:.1f} s (HTTP) and {grpc_s:.1f} s (gRPC)")
    for answer, before in zip((http, grpc), right, strict=True):
        assert answer[0] == before[0]  # the version
        for name, values in before[1].items():  # in a batch with another request the last digits may differ
            np.testing.assert_allclose(answer[1][name], values, rtol=1e-4, atol=1e-6)
    until(lambda: activation(lab) == "" and lab.condition(MODEL, "Ready")["status"] == "True", seconds=_AWAKE_S)


def test_traffic_that_comes_and_goes_loses_no_request(lab: Lab, model: str) -> None:
    sent, failures = 0, list[str]()
    for seconds in (3, 15, 8):
        fall_asleep(lab)
        client = traffic(lab, MODEL)
        client.timeout_s, client.pause_s = 90.0, 0.05
        with client:
            until(lambda: activation(lab) == "", seconds=_AWAKE_S)
            time.sleep(seconds)
        sent, failures = sent + client.sent, failures + client.failures
    until(lambda: activation(lab) == "Draining", seconds=_ASLEEP_S)
    with traffic(lab, MODEL) as client:  # just when the routes are moving
        time.sleep(10)
    sent, failures = sent + client.sent, failures + client.failures
    print(f"{sent} requests over 4 times asleep and awake, {len(failures)} failed")
    assert failures == []


def test_another_revision_takes_over_while_it_sleeps(lab: Lab, model: str) -> None:
    fall_asleep(lab)
    before = lab.kube.get("tritonservice", lab.serving, MODEL)["spec"]["revision"]
    body = lab.kube.get("tritonrevision", lab.serving, before)
    other = {name: body[name] for name in ("apiVersion", "kind", "spec")}
    lab.kube.apply(other | {"metadata": {"name": f"{MODEL}-again", "namespace": lab.serving}})
    patch(lab, {"revision": f"{MODEL}-again"})
    until(lambda: status(lab)["revision"] == f"{MODEL}-again", seconds=_AWAKE_S)
    until(lambda: lab.condition(MODEL, "Ready")["status"] == "True", seconds=_AWAKE_S)
    assert over_http(lab)[0] == "1"
    until(lambda: not lab.kube.exists("deployment", lab.serving, before), seconds=_AWAKE_S)


def test_production_is_refused(lab: Lab, model: str) -> None:
    body = json.dumps({"spec": {"production": True}})
    refused = lab.kube.run("-n", lab.serving, "patch", "tritonservice", MODEL, "--type=merge", "-p", body, check=False)
    assert "scaling.toZero leaves a service without pods, which production forbids" in refused.stderr
