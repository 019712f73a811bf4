"""Services that scale, and alerts that fire, with the real KEDA and Prometheus of the script's add-on `autoscaling`.

The add-on has no Prometheus operator, so the tests hand the service's PrometheusRule to Prometheus themselves. They
share a model, promoted once through the whole pipeline, so they run in order.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
import yaml

from benchmarks.scaling.live import chain
from tests.cluster.conftest import Kube, Lab, script_has, until
from tests.cluster.test_release import SPEC, promoted, scaled, traffic

MODEL = "scaled"
_BACK_S = 10
_CAPACITY = {"peakPerSecond": 30, "withinSloPerSecond": 25, "p99Milliseconds": 25}  # far less than it can do
SLOW = """
targets: [{name: local-cpu, engine: onnxruntime, precisions: [fp32]}]
search: {time_budget_s: 2, max_batch: [1], queue_delay_us: [0], instances: [1], threads: [1], window_ms: 100}
load: {concurrency: [1, 2], window_ms: 200, attempts: 1, comparison_rounds: 1, open_loop_s: 0}
rollout: {canary_percent: [], hold_s: 0}
"""
pytestmark = pytest.mark.slow


class Rules:
    """Copies the service's PrometheusRule into Prometheus' configuration whenever it changes, with short waits."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._stop, self._loaded = lab, threading.Event(), ""
        self._thread = threading.Thread(target=self._copy, daemon=True)

    def __enter__(self) -> "Rules":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=30)
        put_rules(self._lab.kube, self._lab.serving, None)

    def _copy(self) -> None:
        get = ("-n", self._lab.serving, "get", "prometheusrule", MODEL, "-o", "json")
        while not self._stop.is_set():
            answer = self._lab.kube.run(*get, check=False)
            if answer.returncode == 0 and answer.stdout != self._loaded:
                put_rules(self._lab.kube, self._lab.serving, impatient(json.loads(answer.stdout)["spec"]))
                self._loaded = answer.stdout
            self._stop.wait(2)


def impatient(spec: Any) -> Any:
    """The same rules, with alerts that fire after two seconds."""
    groups = [
        {**group, "rules": [rule | ({"for": "2s"} if "for" in rule else {}) for rule in group["rules"]]}
        for group in spec["groups"]
    ]
    return {"groups": groups}


def put_rules(kube: Kube, name: str, spec: Any) -> None:
    """Loads a rule file into Prometheus, or with None removes it."""
    data = {f"{name}.yaml": yaml.safe_dump(spec) if spec else None}
    kube("-n", "monitoring", "patch", "configmap", "prometheus-rules", "--type=merge", "-p", json.dumps({"data": data}))


@pytest.fixture(scope="module")
def prometheus(kube: Kube) -> str:
    """The address of a Prometheus that scrapes the pods, with KEDA beside it."""
    if not script_has("autoscaling"):
        pytest.skip("the cluster's script has no add-on `autoscaling`")
    kube.run("-n", "monitoring", "create", "configmap", "prometheus-rules", check=False)
    return f"http://{kube.service('monitoring', 'prometheus')}:9090"


@pytest.fixture(scope="module")
def released(lab: Lab, prometheus: str) -> dict[str, float]:
    """The capacity in the revision of a model with one promoted version."""
    promoted(lab, MODEL, lab.log_classifier(MODEL, spec=SPEC))
    return dict(lab.kube.get("tritonrevision", lab.serving, revision(lab))["spec"]["capacity"])


@pytest.fixture(scope="module")
def model(lab: Lab, released: dict[str, float]) -> Iterator[str]:
    """A service between 1 and 2 pods, whose pods are said to take little."""
    patch(lab, "tritonrevision", revision(lab), {"capacity": _CAPACITY})
    patch(lab, "tritonservice", MODEL, {"scaling": {"maxReplicas": 2}})
    with Rules(lab):
        until(lambda: condition(lab, "ScalingActive")["status"] == "True", seconds=120)
        yield MODEL


def patch(lab: Lab, kind: str, name: str, spec: dict[str, Any]) -> None:
    lab.kube("-n", lab.serving, "patch", kind, name, "--type=merge", "-p", json.dumps({"spec": spec}))


def service(lab: Lab) -> Any:
    return lab.kube.get("tritonservice", lab.serving, MODEL)


def revision(lab: Lab) -> str:
    return str(service(lab)["spec"]["revision"])


def condition(lab: Lab, kind: str) -> Any:
    return lab.condition(MODEL, kind)


def replicas(lab: Lab, name: str = "") -> int:
    return int(lab.kube.get("deployment", lab.serving, name or revision(lab))["spec"]["replicas"])


def ready(lab: Lab) -> int:
    return int(service(lab)["status"].get("readyReplicas", 0))


def stays(look: Callable[[], bool], *, seconds: float) -> None:
    """Fails if something stops being true before the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert look()
        time.sleep(2)


def firing(prometheus: str) -> set[str]:
    answer = httpx.get(f"{prometheus}/api/v1/alerts", trust_env=False, timeout=10).json()["data"]["alerts"]
    mine = [alert for alert in answer if alert["labels"].get("tritonservice") == MODEL]
    return {alert["labels"]["alertname"] for alert in mine if alert["state"] == "firing"}


def test_a_release_says_what_a_pod_can_take(released: dict[str, float]) -> None:
    assert released["peakPerSecond"] > released["withinSloPerSecond"] > 25


def test_under_load_it_scales_up_and_back_down_and_no_request_fails(lab: Lab, model: str) -> None:
    started = time.monotonic()
    with traffic(lab, MODEL) as client:
        until(lambda: ready(lab) == 2, seconds=120)
        up_s = time.monotonic() - started
        until(lambda: condition(lab, "ScalingActive")["reason"] == "AtMaximum", seconds=60)
        assert condition(lab, "ScalingActive")["status"] == "True"
        client.pause_s, started = 1.0, time.monotonic()
        until(lambda: replicas(lab) == 1 and ready(lab) == 1, seconds=240)
        down_s = time.monotonic() - started
        until(lambda: condition(lab, "ScalingActive")["reason"] == "Scaling", seconds=60)
    print(f"2 pods ready after {up_s:.0f} s, 1 again after {down_s:.0f} s; {client.sent} requests")
    assert client.failures == []


@pytest.mark.parametrize("harm", ["delete", "edit"])
def test_an_autoscaler_that_somebody_harms_is_back_within_ten_seconds(lab: Lab, model: str, harm: str) -> None:
    name = revision(lab)
    until(lambda: condition(lab, "ScalingActive")["status"] == "True", seconds=60)
    if harm == "delete":
        lab.kube("-n", lab.serving, "delete", "scaledobject", name)
    else:
        patch(lab, "scaledobject", name, {"maxReplicaCount": 9})
    started = time.monotonic()
    look = ("-n", lab.serving, "get", "scaledobject", name, "-o", "jsonpath={.spec.maxReplicaCount}")
    until(lambda: lab.kube.run(*look, check=False).stdout == "2", seconds=30)
    took = time.monotonic() - started
    print(f"{harm}: back after {took:.1f} s")
    assert took <= _BACK_S
    assert condition(lab, "Ready")["status"] == "True"


def test_kubectl_scale_sets_the_least_number_of_pods(lab: Lab, model: str) -> None:
    lab.kube("-n", lab.serving, "scale", "tritonservice", MODEL, "--replicas=2")
    until(lambda: ready(lab) == 2, seconds=90)
    assert lab.kube.get("scaledobject", lab.serving, revision(lab))["spec"]["minReplicaCount"] == 2
    refused = lab.kube.run("-n", lab.serving, "scale", "tritonservice", MODEL, "--replicas=3", check=False)
    assert "scaling.maxReplicas must not be less than replicas" in refused.stderr
    lab.kube("-n", lab.serving, "scale", "tritonservice", MODEL, "--replicas=1")
    until(lambda: replicas(lab) == 1, seconds=180)


def test_another_revision_takes_over_with_as_many_pods_and_no_request_fails(lab: Lab, model: str) -> None:
    before = revision(lab)
    body = lab.kube.get("tritonrevision", lab.serving, before)
    other = {name: body[name] for name in ("apiVersion", "kind", "spec")}
    lab.kube.apply(other | {"metadata": {"name": f"{MODEL}-again", "namespace": lab.serving}})
    with traffic(lab, MODEL) as client:
        until(lambda: ready(lab) == 2, seconds=120)
        patch(lab, "tritonservice", MODEL, {"revision": f"{MODEL}-again"})
        until(lambda: service(lab)["status"]["weight"] > 0, seconds=180)
        assert (replicas(lab, before), replicas(lab, f"{MODEL}-again")) == (2, 2)
        until(lambda: not lab.kube.exists("deployment", lab.serving, before), seconds=180)
        assert not lab.kube.exists("scaledobject", lab.serving, before)
        assert ready(lab) == 2
    assert client.failures == []
    until(lambda: replicas(lab) == 1, seconds=240)


def test_with_prometheus_away_it_keeps_its_pods_and_says_so(lab: Lab, model: str) -> None:
    with traffic(lab, MODEL):
        until(lambda: ready(lab) == 2, seconds=120)
        with scaled(lab.kube, "monitoring", "prometheus", 0):
            until(lambda: condition(lab, "ScalingActive")["reason"] == "MetricsMissing", seconds=120)
            assert condition(lab, "ScalingActive")["status"] == "False"
            stays(lambda: replicas(lab) == 2, seconds=60)
    until(lambda: condition(lab, "ScalingActive")["status"] == "True", seconds=180)
    until(lambda: replicas(lab) == 1, seconds=240)


def test_a_queue_that_cannot_wait_gets_a_pod_without_the_autoscaler(lab: Lab, prometheus: str) -> None:
    """No rule of this model is in Prometheus, so KEDA knows nothing: only the operator sees the queue."""
    name = "sudden"
    promoted(
        lab, name, lab.log(name, partial(lab.mlflow.onnx.log_model, chain(512, 600), input_example=row()), spec=SLOW)
    )
    current = str(lab.kube.get("tritonservice", lab.serving, name)["spec"]["revision"])
    capacity = {"peakPerSecond": 40, "withinSloPerSecond": 30, "p99Milliseconds": 400}
    patch(lab, "tritonrevision", current, {"capacity": capacity})
    patch(lab, "tritonservice", name, {"scaling": {"maxReplicas": 2}})
    until(lambda: lab.kube.exists("scaledobject", lab.serving, current), seconds=60)

    def least() -> int:
        return int(lab.kube.get("scaledobject", lab.serving, current)["spec"]["minReplicaCount"])

    gateway, stop = traffic(lab, name).gateway, threading.Event()
    with ThreadPoolExecutor(40) as pool:
        clients = [pool.submit(ask_until, stop, gateway, f"{name}.{lab.serving}.svc", name) for _ in range(40)]
        started = time.monotonic()
        try:
            until(lambda: replicas(lab, current) == 2, seconds=60)
            took, raised = time.monotonic() - started, least()
            deployment = partial(lab.kube.get, "deployment", lab.serving, current)
            until(lambda: deployment()["status"].get("readyReplicas") == 2, seconds=90)
        finally:
            stop.set()
        print(f"a second pod {took:.1f} s after 40 clients began; {sum(each.result() for each in clients)} requests")
    assert raised == 2
    until(lambda: least() == 1, seconds=90)


def ask_until(stop: threading.Event, gateway: str, authority: str, model: str) -> int:
    """Sends one request after another; returns how many. Raises if one fails."""
    sent, options = 0, [("grpc.default_authority", authority)]
    with triton.InferenceServerClient(f"{gateway}:8001", channel_args=options) as client:
        tensor = triton.InferInput("x", list(row().shape), "FP32")
        tensor.set_data_from_numpy(row())
        while not stop.is_set():
            client.infer(model, [tensor], client_timeout=30)
            sent += 1
    return sent


def row() -> Any:
    return np.ones((1, 512), np.float32)


@contextmanager
def synthetic(lab: Lab, **series: str) -> Iterator[None]:
    """Series that a healthy service does not have, from expressions; their labels are those of the real ones."""
    name = revision(lab)
    triton = {"namespace": lab.serving, "model": MODEL, "shiplift_dev_package": name, "synthetic": "1"}
    operator = {"namespace": lab.namespace, "service": MODEL, "revision": "synthetic"}
    server = {"namespace": lab.serving, "container": "triton", "pod": f"{name}-synthetic"}
    own = {"nv": triton, "shiplift": operator, "container": server}
    more = {
        "nv_inference_request_failure": {"reason": "BACKEND"},
        "nv_inference_request_summary_us": {"quantile": "0.99"},
    }
    rules = [
        {"record": record, "expr": expr, "labels": own[record.partition("_")[0]] | more.get(record, {})}
        for record, expr in series.items()
    ]
    put_rules(
        lab.kube, f"{lab.serving}-synthetic", {"groups": [{"name": "synthetic", "interval": "2s", "rules": rules}]}
    )
    try:
        yield
    finally:
        put_rules(lab.kube, f"{lab.serving}-synthetic", None)


def test_every_alert_fires_when_it_should_and_none_before(lab: Lab, model: str, prometheus: str) -> None:
    with traffic(lab, MODEL) as client:
        client.pause_s = 0.5
        until(lambda: firing(prometheus) == set(), seconds=120)
        stays(lambda: firing(prometheus) == set(), seconds=20)
        wrong = {
            "nv_inference_request_failure": "time() * 100",
            "nv_inference_pending_request_count": "time() * 10 - 1.7e10",
            "nv_inference_request_summary_us": "vector(1e6)",
            "shiplift_heartbeat_failing_pods": "vector(1)",
            "shiplift_service_replicas": "vector(2)",
            "shiplift_service_max_replicas": "vector(2)",
            "shiplift_revision_weight_percent": "vector(50)",
            "container_memory_working_set_bytes": "vector(95)",
            "container_spec_memory_limit_bytes": "vector(100)",
        }
        expected = {
            "ShipliftErrorBudgetBurnsFast",
            "ShipliftErrorBudgetBurnsSlow",
            "ShipliftErrors",
            "ShipliftQueueGrows",
            "ShipliftAnswersLate",
            "ShipliftHeartbeatFails",
            "ShipliftAtMaximum",
            "ShipliftCanaryStuck",
            "ShipliftMemoryFull",
        }
        with synthetic(lab, **wrong):
            until(lambda: firing(prometheus) >= expected, seconds=150)
        assert client.failures == []


def test_the_alerts_on_the_operator_fire(lab: Lab, model: str, prometheus: str) -> None:
    name = revision(lab)
    patch(lab, "tritonservice", MODEL, {"revision": "scaled-9-ffffffff"})
    until(lambda: "ShipliftStalled" in firing(prometheus), seconds=90)
    patch(lab, "tritonservice", MODEL, {"revision": name})
    until(lambda: "ShipliftStalled" not in firing(prometheus), seconds=90)
    with scaled(lab.kube, lab.namespace, "operator", 0):
        until(lambda: "ShipliftHeartbeatSilent" in firing(prometheus), seconds=90)
    until(lambda: "ShipliftHeartbeatSilent" not in firing(prometheus), seconds=120)
