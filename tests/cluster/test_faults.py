"""What production survives: killed and frozen servers, drained and dead nodes, an operator or a registry that is away.

The tests share a model, promoted once, so they run in order. Meanwhile a prober compares the service's condition Ready
with whether requests are answered, from the first fault to the last. Times are printed exactly and asserted loosely:
two cores run everything.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.cluster.conftest import ROOT, SCRIPT, Lab, until
from tests.cluster.figures import keep
from tests.cluster.test_release import SPEC, promoted, scaled, traffic
from tests.cluster.traffic import Prober, Traffic, every_route

MODEL = "tough"
SECOND = "dev-node-2"
# Of the time. The aim is 0.1, on a quiet machine; on a busy one 1.4 was seen.
_DISHONEST_PERCENT = 3
_ROLLOUT = ("Starting", "Canary", "Holding", "Moving")  # why a service is not Ready that is not settled yet
_BEAT = {"heartbeat": {"intervalSeconds": 1}}
watches: list[Prober] = []  # the one of this file


@pytest.fixture(scope="module")
def model(lab: Lab) -> Iterator[str]:
    """A model with one promoted version, which is watched from now on."""
    promoted(lab, MODEL, lab.log_classifier(MODEL, spec=SPEC))
    change(lab, **_BEAT)
    settle(lab, 1)
    with probed(lab) as prober:
        watches.append(prober)
        yield MODEL


def service(lab: Lab) -> Any:
    return lab.kube.get("tritonservice", lab.serving, MODEL)


def condition(lab: Lab, kind: str) -> Any:
    return lab.condition(MODEL, kind)


def change(lab: Lab, **spec: Any) -> None:
    lab.kube("-n", lab.serving, "patch", "tritonservice", MODEL, "--type=merge", "-p", json.dumps({"spec": spec}))


def pods(lab: Lab) -> list[Any]:
    """The pods that serve, without those that are ending."""
    selector = f"shiplift.dev/package={service(lab)['spec']['revision']}"
    return [
        pod for pod in lab.kube.get("pod", lab.serving, selector=selector) if "deletionTimestamp" not in pod["metadata"]
    ]


def name_of(pod: Any) -> str:
    return str(pod["metadata"]["name"])


def starts(lab: Lab) -> dict[str, int]:
    """How often each serving pod's containers were started again: a pod may be ready again between two looks."""
    return {
        name_of(pod): sum(each["restartCount"] for each in pod["status"].get("containerStatuses", []))
        for pod in pods(lab)
    }


def ready(lab: Lab) -> list[Any]:
    return [
        pod
        for pod in pods(lab)
        if any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))
    ]


def settle(lab: Lab, replicas: int, seconds: float = 150) -> None:
    """Waits until the service is ready with exactly so many pods."""

    def settled() -> bool:
        return condition(lab, "Ready")["status"] == "True" and len(pods(lab)) == len(ready(lab)) == replicas

    until(settled, seconds=seconds)


def serves(lab: Lab, revision: str) -> bool:
    """Whether a revision serves all requests; until the operator looks, the status is that of the one before."""
    status = service(lab)["status"]
    return (status["revision"], status["weight"]) == (revision, 100) and condition(lab, "Ready")["status"] == "True"


def server_of(pod: Any) -> psutil.Process:
    """The process of a pod's Triton, on this machine."""
    uid = pod["metadata"]["uid"]
    for process in psutil.process_iter(["pid", "name"]):
        try:
            groups = Path(f"/proc/{process.pid}/cgroup").read_text()
        except OSError:
            continue
        if uid in groups.replace("_", "-") and process.info["name"] == "tritonserver":
            return process
    raise AssertionError(f"pod {name_of(pod)} has no tritonserver on this machine")


@contextmanager
def watched(lab: Lab, what: str) -> Iterator[Traffic]:
    """Traffic; prints what it and the prober saw meanwhile."""
    client, prober, began = traffic(lab, MODEL), watches[-1], time.monotonic()
    try:
        with client:
            until(lambda: client.sent > 50)
            yield client
            time.sleep(3)  # for a late failure
    finally:
        keep(what, requests=client.sent, failed=len(client.failures), outage_s=client.outage_s)
        print(f"{what}: {prober.seen(began)}\n{prober.log(began)}")
        print("\n".join(sorted(set(client.failures))[:5]))


@contextmanager
def probed(lab: Lab) -> Iterator[Prober]:
    """Compares ten times a second whether production answers on every route with what the status says."""
    client = traffic(lab, MODEL)
    path = f"/apis/shiplift.dev/v1alpha1/namespaces/{lab.serving}/tritonservices/{MODEL}"
    command = ["kubectl", "proxy", "--port=0"]
    environment = {**os.environ, "KUBECONFIG": str(lab.kube.kubeconfig)}
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as proxy,
        every_route(client) as served,
        httpx.Client(timeout=5, trust_env=False) as api,
    ):
        assert proxy.stdout is not None
        address = proxy.stdout.readline().rsplit(" ", 1)[-1].strip()

        def problem() -> str:
            """What the status says against Ready; while a revision takes over, against Available."""
            body = api.get(f"http://{address}{path}").json()
            status = body["status"]
            conditions = {each["type"]: each for each in status["conditions"]}
            taking_over = (
                status["revision"] != body["spec"]["revision"]
                or status["weight"] < 100
                or conditions["Ready"]["reason"] in _ROLLOUT
            )
            condition = conditions["Available" if taking_over else "Ready"]
            return "" if condition["status"] == "True" else f"{condition['reason']}: {condition['message']}"

        try:
            with Prober(served, problem) as prober:
                yield prober
        finally:
            proxy.terminate()


def cluster(*words: str) -> None:
    """Runs the script that started the cluster."""
    if not SCRIPT or "node" not in Path(ROOT / SCRIPT).read_text():
        pytest.skip("this cluster can't add nodes")
    done = subprocess.run([ROOT / SCRIPT, *words], check=False, capture_output=True, text=True, timeout=900)
    if done.returncode and words[1] == "heal":  # it waits for a minute, which a busy machine may need twice
        done = subprocess.run([ROOT / SCRIPT, *words], check=False, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"cluster {' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


def test_a_server_that_is_killed_is_back_and_another_answers_meanwhile(lab: Lab, model: str) -> None:
    change(lab, replicas=2)
    settle(lab, 2)
    before = starts(lab)
    with watched(lab, "kill -9 of one of two servers") as client:
        server_of(pods(lab)[0]).kill()
        began = time.monotonic()
        until(lambda: starts(lab) != before, seconds=60)
        settle(lab, 2)
        keep("kill -9 of one of two servers", two_ready_again_s=time.monotonic() - began)
    assert len(client.failures) <= 5


@pytest.mark.slow
def test_a_frozen_server_leaves_the_route_and_is_replaced(lab: Lab, model: str) -> None:
    settle(lab, 2)
    victim = pods(lab)[0]
    process = server_of(victim)
    with watched(lab, "SIGSTOP of one of two servers") as client:
        process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        try:
            until(lambda: name_of(victim) not in map(name_of, ready(lab)), seconds=60)
            keep("SIGSTOP of one of two servers", off_the_route_s=time.monotonic() - began)
            until(lambda: len(ready(lab)) == 2, seconds=120)
            keep("SIGSTOP of one of two servers", two_ready_again_s=time.monotonic() - began)
        finally:
            if process.is_running():
                process.send_signal(signal.SIGCONT)
        settle(lab, 2)
    assert client.outage_s < 30


def test_a_replacement_starts_while_the_registry_is_away(lab: Lab, model: str) -> None:
    change(lab, replicas=1)
    settle(lab, 1)
    with scaled(lab.kube, lab.namespace, "mlflow", 0):
        (pod,) = pods(lab)
        lab.kube("-n", lab.serving, "delete", "pod", name_of(pod), "--wait=false")
        began = time.monotonic()
        until(lambda: name_of(pod) not in map(name_of, pods(lab)) and ready(lab), seconds=120)
        keep("a pod deleted while MLflow is away", replaced_s=time.monotonic() - began)
        with traffic(lab, MODEL) as client:
            until(lambda: client.sent > 20, seconds=60)
        settle(lab, 1)
    until(lambda: ready_of(lab, "mlflow"), seconds=180)  # its start takes both cores of a small machine, for a minute
    assert client.versions == {"1"}


def test_a_killed_operator_acts_again_within_seconds(lab: Lab, model: str) -> None:
    settle(lab, 1)
    selector = "app.kubernetes.io/name=operator"
    (pod,) = lab.kube.get("pod", lab.namespace, selector=selector)
    lab.kube("-n", lab.namespace, "delete", "pod", name_of(pod), "--grace-period=0", "--force")
    until(
        lambda: any(
            each["status"].get("containerStatuses", [{}])[0].get("ready")
            for each in lab.kube.get("pod", lab.namespace, selector=selector)
            if name_of(each) != name_of(pod)
        ),
        seconds=60,
    )
    began = time.monotonic()
    lab.kube("-n", lab.serving, "delete", "httproute", MODEL)
    until(lambda: lab.kube.exists("httproute", lab.serving, MODEL), seconds=40)
    keep("a route deleted as a killed operator is back", put_back_s=time.monotonic() - began)


@pytest.mark.slow
def test_an_operator_that_starts_while_the_registry_is_away_tells_at_once_what_routes_answer(
    lab: Lab, model: str
) -> None:
    """It has no golden requests yet, and none to get."""
    settle(lab, 1)
    selector, began = "app.kubernetes.io/name=operator", time.monotonic()
    with scaled(lab.kube, lab.namespace, "mlflow", 0):
        lab.kube("-n", lab.namespace, "delete", "pod", "-l", selector, "--grace-period=0", "--force")
        until(
            lambda: [
                pod
                for pod in lab.kube.get("pod", lab.namespace, selector=selector)
                if pod["status"].get("containerStatuses", [{}])[0].get("ready")
            ],
            seconds=60,
        )
        lab.kube("-n", lab.serving, "delete", "httproute", MODEL)
        until(lambda: lab.kube.exists("httproute", lab.serving, MODEL), seconds=40)
        settle(lab, 1)
    until(lambda: ready_of(lab, "mlflow"), seconds=60)
    unready_s = watches[-1].seen(began).serving_but_not_ready_s
    keep("the same while MLflow is away", untold_s=unready_s)
    assert unready_s < 2  # it waited for the registry for 3 s


def ready_of(lab: Lab, name: str) -> bool:
    """Whether a Deployment of the installation has all its pods."""
    body = lab.kube.get("deployment", lab.namespace, name)
    return bool(body["status"].get("readyReplicas", 0) == body["spec"]["replicas"])


def test_of_two_operators_one_acts(lab: Lab, model: str) -> None:
    settle(lab, 1)

    def acts(pod: Any) -> float:
        path = f"/api/v1/namespaces/{lab.namespace}/pods/{name_of(pod)}:8080/proxy/metrics"
        lines = [line for line in lab.kube("get", "--raw", path).splitlines() if "acts_total{" in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def operators() -> list[Any]:
        return list(lab.kube.get("pod", lab.namespace, selector="app.kubernetes.io/name=operator"))

    before = {name_of(pod): acts(pod) for pod in operators()}
    with scaled(lab.kube, lab.namespace, "operator", 2):
        lab.kube("-n", lab.namespace, "rollout", "status", "deployment/operator", "--timeout=90s")
        lab.kube("-n", lab.serving, "delete", "httproute", MODEL)
        until(lambda: lab.kube.exists("httproute", lab.serving, MODEL), seconds=30)
        time.sleep(15)  # longer than a Lease lasts
        acted = {name_of(pod) for pod in operators() if acts(pod) > before.get(name_of(pod), 0)}
    assert len(acted) == 1


@pytest.mark.slow
def test_a_promotion_that_was_asked_for_while_the_operator_was_away(lab: Lab, model: str) -> None:
    settle(lab, 1)
    name = service(lab)["spec"]["revision"]
    body = lab.kube.get("tritonrevision", lab.serving, name)
    copy = {
        "apiVersion": body["apiVersion"],
        "kind": body["kind"],
        "spec": body["spec"],
        "metadata": {"name": f"{MODEL}-copy", "namespace": lab.serving},
    }
    with watched(lab, "operator away for a promotion and a rollback") as client:
        with scaled(lab.kube, lab.namespace, "operator", 0):
            lab.kube.apply(copy)
            change(lab, revision=f"{MODEL}-copy")
            time.sleep(5)
        until(lambda: serves(lab, f"{MODEL}-copy"), seconds=180)
        assert service(lab)["status"]["previousRevision"] == name
        change(lab, revision=name)
        until(lambda: serves(lab, name), seconds=180)
        settle(lab, 1)
    assert client.failures == []


@pytest.mark.slow
def test_a_gateway_that_starts_again(lab: Lab, model: str) -> None:
    settle(lab, 1)
    selector = f"gateway.envoyproxy.io/owning-gateway-namespace={lab.serving}"
    began = time.monotonic()
    with watched(lab, "Envoy deleted"):
        lab.kube("-n", "envoy-gateway-system", "delete", "pod", "-l", selector, "--wait=false")
        time.sleep(30)
        settle(lab, 1)
    assert watches[-1].seen(began).ready_but_down_s < 5


@pytest.mark.slow
def test_nodes_are_drained_and_die_and_production_serves_on(lab: Lab, model: str) -> None:
    if not lab.kube.exists("node", "default", SECOND):
        cluster("node", "add")
    lab.kube("uncordon", SECOND)
    try:
        change(lab, production=True)
        settle(lab, 3, seconds=240)
        if {pod["spec"]["nodeName"] for pod in pods(lab)} != {"dev-node", SECOND}:  # they started before there were two
            lab.kube("-n", lab.serving, "delete", "pod", name_of(pods(lab)[0]))
            settle(lab, 3, seconds=240)
        where = sorted(pod["spec"]["nodeName"] for pod in pods(lab))
        print(f"three pods on {where}")
        assert set(where) == {"dev-node", SECOND}
        _drain(lab)
        _lose_power(lab)
    finally:
        lab.kube.run("uncordon", SECOND, check=False)
        change(lab, production=False)
        cluster("node", "remove", SECOND)
        settle(lab, 1, seconds=240)


def _drain(lab: Lab) -> None:
    with watched(lab, "kubectl drain") as client:
        began = time.monotonic()
        selector = "--pod-selector=app.kubernetes.io/name=triton"
        lab.kube("drain", SECOND, "--ignore-daemonsets", "--delete-emptydir-data", selector, "--timeout=150s")
        keep("kubectl drain", drained_s=time.monotonic() - began)
        settle(lab, 3, seconds=240)
    assert client.failures == []
    lab.kube("uncordon", SECOND)
    for _ in range(3):
        if SECOND in {pod["spec"]["nodeName"] for pod in pods(lab)}:
            return
        lab.kube("-n", lab.serving, "delete", "pod", name_of(pods(lab)[0]))
        settle(lab, 3, seconds=240)


def _lose_power(lab: Lab) -> None:
    with watched(lab, "node fail") as client:
        began = time.monotonic()
        cluster("node", "fail", SECOND)
        until(lambda: all(pod["spec"].get("nodeName") != SECOND for pod in ready(lab)), seconds=120)
        keep("node fail", no_ready_pod_there_s=time.monotonic() - began)
        until(lambda: len(ready(lab)) == 3, seconds=240)
        keep("node fail", three_ready_again_s=time.monotonic() - began)
        cluster("node", "heal", SECOND)
        settle(lab, 3, seconds=240)
    assert client.outage_s < 60


@pytest.mark.slow
def test_over_all_of_these_faults_the_status_was_honest(model: str) -> None:
    """After the other tests of this file, and about them."""
    (prober,) = watches
    seen = prober.seen()
    print(f"over all faults: {seen}\n{prober.log()}")
    keep(
        "all of these",
        watched_s=seen.watched_s,
        down_s=seen.down_s,
        ready_while_not_serving_percent=seen.percent[0],
        not_ready_while_serving_percent=seen.percent[1],
    )
    assert max(seen.percent) < _DISHONEST_PERCENT
