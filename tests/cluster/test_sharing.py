"""Several models on one server: promoted, moved and deleted under steady traffic on all of them.

The services are made with `kubectl apply`, and their packages without a release. The tests run in order.
"""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton

from shiplift.runtime.serving.kubernetes.objects.names import SERVER, package_name
from shiplift.runtime.serving.operator.resources import (
    CapacitySpec,
    HeartbeatSpec,
    RevisionSpec,
    RolloutSpec,
    ServiceSpec,
    revision_object,
    service_object,
)
from shiplift.runtime.store.artifacts import ArtifactStore
from tests.cluster.conftest import Lab, until
from tests.cluster.test_faults import server_of
from tests.cluster.traffic import Traffic
from tests.packages import ROW, multiplying

pytestmark = pytest.mark.slow
MODELS = {"ada": 2.0, "bob": 3.0, "cyd": 4.0}
_MEASURED = CapacitySpec(peak_per_second=500, within_slo_per_second=400, memory_mebibytes=120)


def declare(lab: Lab, model: str, factor: float, version: int = 1) -> str:
    """Stores a package in the registry, and creates its revision; returns the revision's name."""
    experiment = lab.mlflow.get_experiment_by_name("lab").experiment_id
    folder = f"{experiment}/packages"
    store = ArtifactStore(f"mlflow-artifacts://{lab.kube.service(lab.namespace, 'mlflow')}:5000/{folder}")
    package = multiplying(store, lab.folder / "made", model, factor=factor, version=version)
    spec = RevisionSpec(
        artifacts_uri=f"mlflow-artifacts://mlflow.{lab.namespace}.svc:5000/{folder}",
        package=package.model_dump(mode="json"),
        capacity=_MEASURED,
    )
    lab.kube.apply(revision_object(package_name(package), lab.serving, spec))
    return package_name(package)


@pytest.fixture(scope="module")
def services(lab: Lab) -> Iterator[None]:
    """Three services with the placement `shared`, on one server."""
    for model, factor in MODELS.items():
        spec = ServiceSpec(
            model=model,
            revision=declare(lab, model, factor),
            placement="shared",
            rollout=RolloutSpec(canary_percent=(50,), hold_seconds=2),
            heartbeat=HeartbeatSpec(interval_seconds=2),
        )
        lab.kube.apply(service_object(model, lab.serving, spec))
    started = time.monotonic()
    until(lambda: together(lab), seconds=300)
    print(f"three models share a server after {time.monotonic() - started:.0f} s")
    yield
    for model in MODELS:
        lab.kube("-n", lab.serving, "delete", "tritonservice", model)
    until(lambda: not lab.kube.get("deployment", lab.serving, selector=SERVER), seconds=60)


def status(lab: Lab, model: str) -> Any:
    return lab.kube.get("tritonservice", lab.serving, model).get("status", {})


def server(lab: Lab, model: str) -> str:
    return str(status(lab, model).get("server", ""))


def deployments(lab: Lab) -> set[str]:
    return {
        body["metadata"]["name"]
        for body in lab.kube.get("deployment", lab.serving)
        if body["spec"]["template"]["metadata"]["labels"].get("app.kubernetes.io/name") == "triton"
    }


def together(lab: Lab, *models: str) -> str:
    """The server of these models, by default of all, once none has pods of its own; empty before."""
    servers = {server(lab, model) for model in models or MODELS}
    own = lab.kube.get("deployment", lab.serving, selector=f"shiplift.dev/model in ({','.join(MODELS)})")
    alone = len(servers) == 1 and "" not in servers and servers <= deployments(lab) and not own
    return servers.pop() if alone else ""


def gateway(lab: Lab) -> str:
    body = lab.kube.get("gateway", lab.serving, "shiplift")
    return str(body["status"]["addresses"][0]["value"])


def answers_right(lab: Lab, model: str, factor: float) -> None:
    """One request over each protocol."""
    body = {"inputs": [{"name": "input", "shape": [1, 4], "datatype": "FP32", "data": ROW.ravel().tolist()}]}
    url = f"http://{gateway(lab)}:8000/v2/models/{model}/infer"
    answer = httpx.post(url, json=body, trust_env=False, timeout=10).json()
    assert answer["outputs"][0]["data"] == (factor * ROW).ravel().tolist()
    options = [("grpc.default_authority", f"{model}.{lab.serving}")]
    with triton.InferenceServerClient(f"{gateway(lab)}:8001", channel_args=options) as client:
        tensor = triton.InferInput("input", [1, 4], "FP32")
        tensor.set_data_from_numpy(ROW)
        result = client.infer(model, [tensor], client_timeout=10).as_numpy("output")
    assert np.array_equal(result, np.float32(factor) * ROW)


class Everybody:
    """Steady traffic on all three models."""

    def __init__(self, lab: Lab) -> None:
        self.clients = {
            model: Traffic(model, gateway(lab), f"{model}.{lab.serving}", ROW, pause_s=0.03) for model in MODELS
        }
        self._stack = ExitStack()

    def __enter__(self) -> "Everybody":
        for client in self.clients.values():
            self._stack.enter_context(client)
        until(lambda: all(client.sent > 20 for client in self.clients.values()), seconds=30)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def failures(self) -> dict[str, list[str]]:
        print({model: f"{client.sent} requests" for model, client in self.clients.items()})
        return {model: client.failures for model, client in self.clients.items() if client.failures}


def test_three_services_share_one_pod_and_all_answer_right(lab: Lab, services: None) -> None:
    name = together(lab)
    assert len(lab.kube.get("pod", lab.serving, selector=f"{SERVER}={name}")) == 1
    for model, factor in MODELS.items():
        answers_right(lab, model, factor)
        assert lab.condition(model, "Ready")["status"] == "True"
    owners = lab.kube.get("deployment", lab.serving, name)["metadata"]["ownerReferences"]
    assert {owner["name"] for owner in owners} >= set(list(MODELS)[:2])


def test_a_promotion_of_one_loses_no_request_of_any(lab: Lab, services: None) -> None:
    before = together(lab)
    revision = declare(lab, "ada", 5.0, version=2)
    with Everybody(lab) as everybody:
        patch = json.dumps({"spec": {"revision": revision}})
        lab.kube("-n", lab.serving, "patch", "tritonservice", "ada", "--type=merge", "-p", patch)
        until(lambda: status(lab, "ada").get("version") == 2 and server(lab, "ada") == "", seconds=120)
        assert server(lab, "bob") == before
        until(lambda: together(lab) not in ("", before), seconds=300)
        time.sleep(3)
    assert everybody.failures() == {}
    assert everybody.clients["ada"].versions == {"1", "2"}
    answers_right(lab, "ada", 5.0)


def test_one_gets_its_own_server_and_no_request_is_lost(lab: Lab, services: None) -> None:
    before = together(lab)
    with Everybody(lab) as everybody:
        patch = json.dumps({"spec": {"placement": "own"}})
        lab.kube("-n", lab.serving, "patch", "tritonservice", "bob", "--type=merge", "-p", patch)
        until(lambda: server(lab, "bob") == "", seconds=90)
        time.sleep(15)
    assert everybody.failures() == {}
    assert (server(lab, "ada"), server(lab, "cyd")) == (before, before)
    answers_right(lab, "bob", 3.0)


def test_when_the_shared_pod_is_deleted_all_of_its_models_come_back(lab: Lab, services: None) -> None:
    name = server(lab, "ada")
    (pod,) = lab.kube.get("pod", lab.serving, selector=f"{SERVER}={name}")
    lab.kube("-n", lab.serving, "delete", "pod", pod["metadata"]["name"])
    until(lambda: lab.condition("ada", "Available")["status"] == "True", seconds=60)
    for model in ("ada", "cyd"):
        lab.kube("-n", lab.serving, "wait", "--for=condition=Ready", f"tritonservice/{model}", "--timeout=90s")
        answers_right(lab, model, {"ada": 5.0, "cyd": 4.0}[model])
        assert server(lab, model) == name


def test_models_whose_server_keeps_ending_get_their_own_pods(lab: Lab, services: None) -> None:
    name = server(lab, "cyd")
    sharers = [model for model in MODELS if server(lab, model) == name]
    started = time.monotonic()
    for restarts in (0, 1):
        until(lambda: restarted(lab, name) == restarts and is_ready(lab, name), seconds=90)  # noqa: B023
        server_of(*lab.kube.get("pod", lab.serving, selector=f"{SERVER}={name}")).kill()
    until(lambda: all(server(lab, model) == "" for model in sharers), seconds=120)
    print(f"{', '.join(sharers)} have their own pods {time.monotonic() - started:.0f} s after the first crash")
    for model in sharers:
        lab.kube("-n", lab.serving, "wait", "--for=condition=Ready", f"tritonservice/{model}", "--timeout=90s")
        assert status(lab, model)["isolatedRevision"] == status(lab, model)["revision"]
        answers_right(lab, model, 5.0 if status(lab, model)["version"] == 2 else MODELS[model])
    until(lambda: name not in deployments(lab), seconds=60)


def restarted(lab: Lab, name: str) -> int:
    """How often the server of a pod was started again."""
    (pod,) = lab.kube.get("pod", lab.serving, selector=f"{SERVER}={name}")
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


def is_ready(lab: Lab, name: str) -> bool:
    return bool(lab.kube.get("deployment", lab.serving, name)["status"].get("readyReplicas") == 1)
