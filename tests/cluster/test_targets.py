"""Targets on a real cluster: pods run on the nodes that match, and a release fails where none does.

The tests label the cluster's first node for a while. On a single node, a taint would keep out the rest of the release
too, so tolerations are checked in the pods' specs.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import httpx
import pytest

from shiplift.runtime.store.registry.terms import CHALLENGER, CHAMPION
from tests.cluster.conftest import Kube, Lab, stage_runs, until
from tests.cluster.test_release import ended, pod_of, promoted, rerun, serving, tag, traffic, workflow_of
from tests.integration.conftest import FAST

MODEL = "placed"
SLOT = "shiplift.dev/test-slot"
TOLERATION = {"key": "shiplift.dev/test", "operator": "Exists", "effect": "NoSchedule"}
ROLLOUT = "rollout: {canary_percent: [], hold_s: 0}\n"


def spec(*targets: dict[str, Any]) -> str:
    return f"{FAST}{ROLLOUT}targets: {json.dumps([{'precisions': ['fp32'], **target} for target in targets])}\n"


OTHER = "shiplift.dev/test-other"  # a second label, so that one node can be two targets
SLOW_NODE = {"name": "slow", "node_selector": {OTHER: "slow"}}
FAST_NODE = {"name": "fast", "node_selector": {SLOT: "fast"}, "tolerations": [TOLERATION]}


def first_node(kube: Kube) -> str:
    return str(json.loads(kube("get", "nodes", "-o", "json"))["items"][0]["metadata"]["name"])


@contextmanager
def labelled(kube: Kube, slot: str, label: str = SLOT) -> Iterator[str]:
    """Labels the first node, and gives its name; removes the label at the end."""
    node = first_node(kube)
    kube("label", "node", node, f"{label}={slot}", "--overwrite")
    try:
        yield node
    finally:
        kube("label", "node", node, f"{label}-")


def pods_on_targets(lab: Lab, name: str) -> dict[tuple[str, str], Any]:
    """The pods of a Workflow's stages that run once per target, by stage and target."""
    pods: dict[tuple[str, str], Any] = {}
    for pod in lab.kube.get("pod", lab.namespace, selector=f"workflows.argoproj.io/workflow={name}"):
        main = next(container for container in pod["spec"]["containers"] if container["name"] == "main")
        arguments = main["args"]
        if "--target" in arguments:
            target = json.loads(arguments[arguments.index("--target") + 1])
            pods |= {(stage, target["name"]): pod for stage in arguments[0].split("+")}
    return pods


def tolerated(pod_spec: dict[str, Any]) -> bool:
    return any(TOLERATION.items() <= toleration.items() for toleration in pod_spec["tolerations"])


def seconds_between(first: str, last: str) -> float:
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()


@pytest.mark.slow
def test_stages_of_a_target_run_on_its_nodes_and_so_does_what_serves_it(lab: Lab) -> None:
    with labelled(lab.kube, "fast") as node:
        version = lab.log_classifier(MODEL, spec=spec(FAST_NODE, {"name": "anywhere"}))
        promoted(lab, MODEL, version)
        name = workflow_of(lab, MODEL, version)
        workflow = ended(lab, name)
        placed = pods_on_targets(lab, name)
    assert workflow["status"]["phase"] == "Succeeded"
    assert tag(lab, MODEL, version, "reason") == "every check passed"
    names = {node["displayName"] for node in workflow["status"]["nodes"].values()}
    assert {"each-target(0:fast)", "each-target(1:anywhere)"} <= names
    for stage in ("quantize", "tune"):
        fast, anywhere = placed[stage, "fast"]["spec"], placed[stage, "anywhere"]["spec"]
        assert (fast["nodeSelector"], fast["nodeName"]) == ({SLOT: "fast"}, node)
        assert tolerated(fast)
        assert SLOT not in anywhere.get("nodeSelector", {})
        assert not any(toleration.get("key") == TOLERATION["key"] for toleration in anywhere["tolerations"])
    served = group_pods(lab, MODEL)
    assert set(served) == {"fast", "anywhere"}
    assert (served["fast"]["spec"]["nodeSelector"], served["fast"]["spec"]["nodeName"]) == ({SLOT: "fast"}, node)
    assert tolerated(served["fast"]["spec"])
    assert SLOT not in served["anywhere"]["spec"].get("nodeSelector", {})
    assert not tolerated(served["anywhere"]["spec"])


def group_pods(lab: Lab, model: str) -> dict[str, Any]:
    """A pod of each group that serves a model, by its target."""
    groups = lab.kube.get("tritonservice", lab.serving, model)["status"]["groups"]
    return {
        group["target"]: pod
        for group in groups
        for pod in lab.kube.get("pod", lab.serving, selector=f"shiplift.dev/package={group['name']}")
        if "deletionTimestamp" not in pod["metadata"]
    }


def answered(pod: Any) -> int:
    """The requests that a pod's Triton has answered."""
    text = httpx.get(f"http://{pod['status']['podIP']}:8002/metrics", trust_env=False).text
    lines = [line for line in text.splitlines() if line.startswith("nv_inference_request_success{")]
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines)


def percents(lab: Lab, model: str) -> dict[str, float]:
    groups = lab.kube.get("tritonservice", lab.serving, model)["status"]["groups"]
    return {group["target"]: group["percent"] for group in groups}


SHARED = "shared"


@pytest.mark.slow
def test_two_targets_share_the_traffic_by_what_they_can_take_and_one_s_pod_may_die(lab: Lab) -> None:
    with labelled(lab.kube, "fast"), labelled(lab.kube, "slow", OTHER):
        version = lab.log_classifier(SHARED, spec=spec(FAST_NODE, SLOW_NODE))
        promoted(lab, SHARED, version)
        service = lab.kube.get("tritonservice", lab.serving, SHARED)
        revision = lab.kube.get("tritonrevision", lab.serving, service["spec"]["revision"])
        capacities = [
            each["capacity"]["withinSloPerSecond"] for each in (revision["spec"], *revision["spec"]["otherGroups"])
        ]
        until(lambda: lab.condition(SHARED, "Verified")["status"] == "True", seconds=60)
        parts, pods = percents(lab, SHARED), group_pods(lab, SHARED)
        assert parts["fast"] == pytest.approx(100 * capacities[0] / sum(capacities), abs=0.2)
        before = {target: answered(pod) for target, pod in pods.items()}
        with traffic(lab, SHARED) as client:
            until(lambda: client.sent >= 800, seconds=180)
        after = {target: answered(pod) - before[target] for target, pod in pods.items()}
        print(f"parts {parts}, answered {after}, {client.sent} sent")
        assert client.failures == []
        assert 100 * after["fast"] / sum(after.values()) == pytest.approx(parts["fast"], abs=8)

        with traffic(lab, SHARED) as client:
            lab.kube("-n", lab.serving, "delete", "pod", pods["slow"]["metadata"]["name"], "--wait=false")
            until(lambda: percents(lab, SHARED)["slow"] == 0, seconds=60)
            assert lab.condition(SHARED, "Ready")["status"] == "True"
            until(lambda: percents(lab, SHARED)["slow"] > 0, seconds=120)
            until(lambda: answered(group_pods(lab, SHARED)["slow"]) > 50, seconds=60)
        print(f"a pod deleted: {client.sent} sent, {len(client.failures)} failed {client.failures[:3]}")
        assert client.failures == []

        shown = lab.kube("-n", lab.serving, "get", "ts", SHARED, "-o", "wide")
        assert "fast" in shown
        status = lab.kube.shiplift("status", SHARED, "--engine", "argo", "--namespace", lab.namespace, "--json").stdout
        assert json.loads(status)["services"][0]["targets"].startswith("fast ")


@pytest.mark.slow
def test_where_no_node_matches_the_release_ends_soon_and_says_what_it_asked_for(lab: Lab) -> None:
    nowhere = {"name": "nowhere", "node_selector": {SLOT: "nowhere"}}
    champion = lab.registry.alias(MODEL, CHAMPION)
    version = lab.log_classifier(MODEL, samples=1100, spec=spec(nowhere))
    name = until(lambda: of_version(lab, version), seconds=90)
    workflow = ended(lab, name)
    assert workflow["status"]["phase"] == "Failed"
    assert tag(lab, MODEL, version, "outcome") == "failed"
    reason = tag(lab, MODEL, version, "reason")
    assert f"Unschedulable: quantize asks for a node with {SLOT}=nowhere" in reason
    assert "nodes are available" in reason  # and the scheduler's own words
    pods = lab.kube.get("pod", lab.namespace, selector=f"workflows.argoproj.io/workflow={name}")
    assert [
        pod for pod in pods if pod["status"]["phase"] == "Pending" and "deletionTimestamp" not in pod["metadata"]
    ] == []
    optimize = next(n for n in workflow["status"]["nodes"].values() if n.get("templateName") == "optimize")
    waited = seconds_between(optimize["startedAt"], workflow["metadata"]["annotations"]["shiplift.dev/stopped-at"])
    assert lab.values.reconciler.unschedulable_s <= waited < lab.values.reconciler.unschedulable_s + 60
    assert lab.registry.alias(MODEL, CHAMPION) == champion
    assert lab.registry.alias(MODEL, CHALLENGER) == 0


@pytest.mark.slow
def test_a_target_that_vanishes_on_the_way_is_reported_and_nothing_is_lost(lab: Lab) -> None:
    champion = lab.registry.alias(MODEL, CHAMPION)
    with traffic(lab, MODEL) as client:
        with labelled(lab.kube, "fast"):
            version = lab.log_classifier(MODEL, samples=1150, spec=spec(FAST_NODE))
            name = until(lambda: of_version(lab, version), seconds=90)
            pod_of(lab, name, "export")
        workflow = ended(lab, name)
        assert workflow["status"]["phase"] == "Failed"
        assert f"quantize asks for a node with {SLOT}=fast" in tag(lab, MODEL, version, "reason")
        assert (lab.registry.alias(MODEL, CHAMPION), serving(lab, MODEL)) == (champion, {str(champion)})
        with labelled(lab.kube, "fast"):
            again = json.loads(rerun(lab, f"{MODEL}/{version}"))["name"]
            finished = ended(lab, again)
            promoted(lab, MODEL, version)
    assert client.failures == []
    runs = stage_runs(finished)
    assert (finished["status"]["phase"], again) == ("Succeeded", f"{name}-2")
    assert [runs[stage]["cached"] for stage in ("admit", "export")] == [True, True]
    assert runs["tune"]["outcome"] == "ok"


SEARCHED = "searched"
SEARCH = """
search: {time_budget_s: %d, max_batch: [1, 8], queue_delay_us: [0], instances: [1, 2], threads: [1], window_ms: 200}
load: {concurrency: [1, 4], window_ms: 100, attempts: 1, comparison_rounds: 1, open_loop_s: 0}
slo: {regression: {p99_percent: 1000, throughput_percent: 1000, score: 1}}
"""


def nvidia_spec(image: str, *, seconds: int) -> str:
    target = {
        "name": "gpu",
        "server": "nvidia",
        "image": image,
        "precisions": ["fp32"],
        "node_selector": {SLOT: "gpu"},
        "tolerations": [TOLERATION],
    }
    return f"{SEARCH % seconds}{ROLLOUT}targets: {json.dumps([target])}\n"


def benches(lab: Lab) -> list[Any]:
    """The pods on which configurations are measured."""
    return list(lab.kube.get("pod", lab.serving, selector="shiplift.dev/bench"))


def a_running_bench(lab: Lab, except_uid: str = "") -> Any:
    """Waits for a bench pod whose server is ready, other than the one with this uid."""

    def look() -> Any:
        for pod in benches(lab):
            conditions = pod.get("status", {}).get("conditions", [])
            ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
            if ready and pod["metadata"]["uid"] != except_uid:
                return pod
        return None

    return until(look, seconds=240)


@pytest.mark.slow
def test_a_target_with_nvidias_image_is_searched_in_a_pod_of_its_own(lab: Lab, nvidia_image: str) -> None:
    with labelled(lab.kube, "gpu") as node:
        version = lab.log_classifier(SEARCHED, spec=nvidia_spec(nvidia_image, seconds=20))
        bench = a_running_bench(lab)
        name = workflow_of(lab, SEARCHED, version)
        tune = pods_on_targets(lab, name)["tune", "gpu"]
        promoted(lab, SEARCHED, version)
        workflow = ended(lab, name)
        log = lab.kube("-n", lab.namespace, "logs", tune["metadata"]["name"], "-c", "main")
    assert workflow["status"]["phase"] == "Succeeded"
    # It runs on the target's nodes, in its image, without rights, and without a label that would attract traffic.
    spec = bench["spec"]
    assert (spec["nodeSelector"], spec["nodeName"]) == ({SLOT: "gpu"}, node)
    assert tolerated(spec)
    assert [container["image"] for container in spec["containers"]] == [nvidia_image]
    assert not any("serviceaccount" in mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"])
    assert "shiplift.dev/model" not in bench["metadata"]["labels"]
    # The measuring pod runs anywhere, and may create the bench pod and nothing else.
    assert tune["spec"]["serviceAccountName"] == "shiplift-tune"
    assert SLOT not in tune["spec"].get("nodeSelector", {})
    assert "trial 2: fp32 on ONNX Runtime, batch" in log
    assert "finals, round 1" in log
    assert "did not become ready" not in log
    assert benches(lab) == []
    (served,) = lab.kube.get("pod", lab.serving, selector=f"shiplift.dev/model={SEARCHED}")
    assert [container["image"] for container in served["spec"]["containers"]] == [nvidia_image]


@pytest.mark.slow
def test_a_search_whose_pod_is_killed_begins_anew_and_one_that_is_cancelled_leaves_nothing(
    lab: Lab, nvidia_image: str
) -> None:
    with labelled(lab.kube, "gpu"):
        version = lab.log_classifier(SEARCHED, samples=1100, spec=nvidia_spec(nvidia_image, seconds=600))
        first = a_running_bench(lab)["metadata"]
        name = workflow_of(lab, SEARCHED, version)
        tune = pods_on_targets(lab, name)["tune", "gpu"]["metadata"]["name"]
        lab.kube("-n", lab.namespace, "delete", "pod", tune, "--force", "--grace-period=0")
        second = a_running_bench(lab, except_uid=first["uid"])["metadata"]
        assert second["name"] == first["name"]
        lab.kube.shiplift("cancel", f"{SEARCHED}/{version}", "--engine", "argo", "--namespace", lab.namespace)
        assert ended(lab, name)["status"]["phase"] == "Failed"
        until(lambda: not benches(lab), seconds=60)
    assert tag(lab, SEARCHED, version, "outcome") == "cancelled"


def test_who_searches_may_make_pods_and_touch_nothing_that_serves(lab: Lab) -> None:
    who = f"--as=system:serviceaccount:{lab.namespace}:shiplift-tune"

    def may(verb: str, *resource: str) -> bool:
        return lab.kube.run("-n", lab.serving, "auth", "can-i", verb, *resource, who, check=False).returncode == 0

    assert all(may(verb, "pods") for verb in ("get", "create", "delete"))
    for right in (
        ("list", "pods"),
        ("patch", "deployments"),
        ("delete", "deployments"),
        ("get", "secrets"),
        ("patch", "httproutes.gateway.networking.k8s.io"),
        ("create", "pods", "--subresource=exec"),
    ):
        assert not may(*right), " ".join(right)


def of_version(lab: Lab, version: int) -> str:
    """The name of a version's Workflow; empty while there is none."""
    names = [workflow["metadata"]["name"] for workflow in lab.workflows(MODEL)]
    return next((name for name in names if name.startswith(f"release-{MODEL}-{version}-")), "")


@pytest.fixture(scope="module", autouse=True)
def no_label_left(kube: Kube) -> Iterator[None]:
    """Removes the labels, which an interrupted run may have left."""
    kube("label", "node", first_node(kube), f"{SLOT}-", f"{OTHER}-")
    yield
    kube("label", "node", first_node(kube), f"{SLOT}-", f"{OTHER}-")
