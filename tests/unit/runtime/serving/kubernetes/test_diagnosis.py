"""Why pods don't run: a recorded pod for each reason, and all code that waits for pods."""

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shiplift.pipelines.daemons import stuck
from shiplift.pipelines.installation import readiness
from shiplift.pipelines.triggers.settings import Reconciling
from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.serving.kubernetes import diagnosis
from shiplift.runtime.serving.kubernetes.diagnosis import REASONS, Diagnosis, Prospect
from shiplift.runtime.serving.kubernetes.objects.names import LABEL
from shiplift.runtime.serving.kubernetes.workloads import Workloads
from tests.unit.api_server import ApiServer, running
from tests.unit.examples import site
from tests.unit.runtime.serving.kubernetes.test_objects import CLUSTER

RECORDED = yaml.safe_load((Path(__file__).parent / "pods.yaml").read_text())
PODS: dict[str, Any] = {pod["metadata"]["name"]: pod for pod in RECORDED["pods"]}
DEPLOYMENTS: dict[str, Any] = {body["metadata"]["name"]: body for body in RECORDED["deployments"]}

WELL = ("runs", "succeeded")
# By pod: what could still make it run, how the sentence begins, and what to do.
EXPECTED: dict[str, tuple[Prospect, str, str]] = {
    "image-missing": (Prospect.RETRY, "image localhost/nobody-has-this:1 of container main can't be pulled", "Fix"),
    "image-name-invalid": (Prospect.NOTHING, "image UPPER//case of container main has an invalid name", "Fix"),
    "image-never-pulled": (
        Prospect.NOTHING,
        "image localhost/nobody-has-this:1 of container main is not on the node",
        "Load it",
    ),
    "secret-missing": (
        Prospect.NOTHING,
        'container main can\'t be configured (CreateContainerConfigError): secret "nowhere"',
        "Create that Secret",
    ),
    "config-map-missing": (Prospect.NOTHING, "container main can't be configured", "Create that ConfigMap"),
    "key-missing": (Prospect.NOTHING, "container main can't be configured", "Fix what"),
    "root-image": (Prospect.NOTHING, "container main can't be configured", "Fix what"),
    "command-missing": (Prospect.NOTHING, "container main can't be started (StartError)", "Fix what"),
    "command-missing-once": (Prospect.RESTART, "container main can't be started (StartError)", "Fix what"),
    "volume-secret-missing": (Prospect.TIME, "container main is waiting for its image, volumes", "See `kubectl"),
    "claim-missing": (
        Prospect.NODE,
        "no node can take the pod (Unschedulable): 0/1 nodes are available: persistentvolumeclaim",
        "Create the volume",
    ),
    "selector": (
        Prospect.NODE,
        "no node can take the pod (Unschedulable): the pod asks for a node with shiplift.dev/none=such: ",
        "Label or add a node",
    ),
    "too-large": (Prospect.ROOM, "no node can take the pod (Unschedulable)", "Wait for room"),
    "no-gpu": (Prospect.ROOM, "no node can take the pod (Unschedulable)", "Wait for room"),
    "gated": (Prospect.TIME, "the pod is held back by its scheduling gates", "See who"),
    "crash": (Prospect.NOTHING, "main ended with exit code 3: model digits is broken", "See the container's log"),
    "guard": (Prospect.NOTHING, "main ended with exit code 40: digits: the plan was built", "See the container's log"),
    "init-crash": (Prospect.NOTHING, "fetch ended with exit code 35: artifact corrupt", "See the container's log"),
    "init-running": (Prospect.TIME, "container fetch is running but not ready", "See the container's log"),
    "out-of-memory": (Prospect.NOTHING, "main was killed at its memory limit, 32Mi (OOMKilled)", "Raise its memory"),
    "ends-well": (Prospect.NOTHING, "container main keeps exiting (CrashLoopBackOff)", "See the"),
    "not-ready": (Prospect.TIME, "container main is running but not ready", "See the container's log"),
    "deadline": (Prospect.RESTART, "the pod exceeded its deadline", "Raise the deadline"),
    "wrong-node": (Prospect.RESTART, "the pod's node does not match its node selector", "Label a node"),
    "out-of-cpu": (Prospect.RESTART, "the pod's node could not provide what it requests (OutOfcpu)", "If it happens"),
    "evicted": (Prospect.RESTART, "the pod's node ran out of a resource and evicted it", "If it happens"),
}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with running() as api_server:
        yield api_server


@pytest.fixture
def workloads(server: ApiServer, tmp_path: Path) -> Workloads:
    workloads = Workloads(site(tmp_path, place=CLUSTER), CLUSTER)
    workloads.api = server.api(CLUSTER.serving_namespace)
    return workloads


def test_every_recorded_pod_is_in_the_table() -> None:
    assert set(PODS) == {*EXPECTED, *WELL}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_pod_is_explained(name: str) -> None:
    why = diagnosis.of_pod(PODS[name])
    assert why is not None
    prospect, sentence, do = EXPECTED[name]
    assert why.prospect is prospect
    assert why.sentence.startswith(sentence)
    assert why.do.startswith(do)


@pytest.mark.parametrize("name", WELL)
def test_a_pod_that_runs_or_has_succeeded_has_no_problem(name: str) -> None:
    assert diagnosis.of_pod(PODS[name]) is None


def test_a_pod_that_is_being_ended_has_no_problem() -> None:
    meta = {"name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert diagnosis.of_pod({**PODS["crash"], "metadata": meta}) is None


def test_a_busy_node_that_has_not_fetched_a_secret_yet_tries_again() -> None:
    """Seen on a node under load: the kubelet's next attempt, seconds later, found the Secret."""
    pod = copy.deepcopy(PODS["secret-missing"])
    (container,) = pod["status"]["containerStatuses"]
    container["state"]["waiting"]["message"] = "failed to sync secret cache: timed out waiting for the condition"
    why = diagnosis.of_pod(pod)
    assert why is not None
    assert why.prospect is Prospect.RETRY
    assert diagnosis.patience_s(why, 600) > 0


def test_a_container_that_crashed_but_is_ready_now_is_not_a_problem() -> None:
    (status,) = PODS["crash"]["status"]["containerStatuses"]
    again = {**status, "ready": True, "state": {"running": {}}}
    assert diagnosis.of_pod({"status": {"phase": "Running", "containerStatuses": [again]}}) is None


@pytest.mark.parametrize(
    ("restarts", "prospect"), [(0, Prospect.RESTART), (1, Prospect.RESTART), (2, Prospect.NOTHING)]
)
def test_a_container_is_started_three_times_before_it_is_given_up(restarts: int, prospect: Prospect) -> None:
    (status,) = PODS["crash"]["status"]["containerStatuses"]
    why = diagnosis.of_pod(
        {"status": {"phase": "Running", "containerStatuses": [{**status, "restartCount": restarts}]}}
    )
    assert why is not None
    assert why.prospect is prospect


def test_the_worst_of_several_reasons_is_reported() -> None:
    waits = {"name": "wait", "state": {"waiting": {"reason": "PodInitializing"}}}
    image = {"name": "main", "image": "img", "state": {"waiting": {"reason": "ErrImagePull"}}}
    why = diagnosis.of_pod({"status": {"containerStatuses": [waits, image]}})
    assert str(why) == "ErrImagePull: image img of container main can't be pulled"


@pytest.mark.parametrize(
    ("name", "prospect", "do"),
    [
        ("quota", Prospect.RETRY, "Raise the quota"),
        ("privileged", Prospect.NOTHING, "Lower the namespace's Pod Security level"),
        ("no-account", Prospect.RETRY, "Run `shiplift install`"),
    ],
)
def test_a_deployment_whose_pods_may_not_be_made_says_so(name: str, prospect: Prospect, do: str) -> None:
    why = diagnosis.of_deployment(DEPLOYMENTS[name])
    assert why is not None
    assert why.prospect is prospect
    assert why.sentence.startswith("its pods can't be created (FailedCreate): pods ")
    assert why.do.startswith(do)
    assert diagnosis.of_deployment({"status": {"conditions": DEPLOYMENTS[name]["status"]["conditions"][:1]}}) is None


# --- all code that waits knows every reason ---


_OF_SCHEDULING = ("Unschedulable", "SchedulerError", "SchedulingGated")
_OF_ENDED_CONTAINERS = ("Error", "OOMKilled", "ContainerCannotRun", "StartError")
_OF_PODS = (
    "Evicted",
    "Preempting",
    "NodeLost",
    "NodeShutdown",
    "Terminated",
    "UnexpectedAdmissionError",
    "NodeAffinity",
    "DeadlineExceeded",
)


def pod_with(reason: str) -> Any:
    """A pod that does not run for a reason of the table, wherever Kubernetes puts that word."""
    container: Any = {"name": "main", "image": "img", "restartCount": 0}
    where: Any = {"containerStatuses": [container]}
    if reason in _OF_SCHEDULING:
        where = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": reason}]}
    elif reason in _OF_PODS:
        where = {"reason": reason}
    elif reason in _OF_ENDED_CONTAINERS:
        container["lastState"] = {"terminated": {"exitCode": 1, "reason": reason}}
    else:
        container["state"] = {"running": {}} if reason == "NotReady" else {"waiting": {"reason": reason}}
    labels = {stuck.OF_WORKFLOW: "w", "app.kubernetes.io/name": "x", f"{LABEL}package": "x"}
    meta = {"name": "x-1", "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": meta, "spec": {}, "status": {"phase": "Pending", **where}}


DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "x", "namespace": "models", "generation": 1},
    "spec": {"replicas": 1},
}


@pytest.mark.parametrize("reason", [reason for reason in REASONS if reason != "FailedCreate"])
def test_every_reason_is_known_to_all_code_that_waits(workloads: Workloads, server: ApiServer, reason: str) -> None:
    pod = pod_with(reason)
    server.objects["pods"]["x-1"] = pod
    why = diagnosis.of_pod(pod)
    assert why is not None
    assert why.reason == reason
    assert workloads._problem("x", None) == ("pod x-1: ", why)
    assert why.sentence in readiness._reasons(server.api(), DEPLOYMENT)
    obstacle = stuck.of_pod(pod)
    assert (obstacle.why if obstacle else None) == (why if why.prospect < Prospect.RESTART else None)


def test_a_refused_creation_is_known_to_all_code_that_waits(workloads: Workloads, server: ApiServer) -> None:
    body = {**DEPLOYMENT, **DEPLOYMENTS["quota"], "metadata": DEPLOYMENT["metadata"]}
    _, why = workloads._problem("x", body)
    assert why is not None
    assert why.reason == "FailedCreate"
    assert why.sentence in readiness._reasons(server.api(), body)
    assert str(why).startswith("FailedCreate: pods ")


@pytest.mark.parametrize(
    ("prospect", "staging_s", "reconciler_s"),
    [
        (Prospect.NOTHING, 0, 1),
        (Prospect.RETRY, 20, 1),
        (Prospect.NODE, 180, 2),
        (Prospect.ROOM, 180, 3),
        (Prospect.RESTART, 180, None),
        (Prospect.TIME, 180, None),
    ],
)
def test_who_waits_decides_by_the_prospect(prospect: Prospect, staging_s: float, reconciler_s: float | None) -> None:
    why = Diagnosis(reason="x", message="", means="", prospect=prospect, do="")
    assert CLUSTER.ready_timeout_s == 180
    assert diagnosis.patience_s(why, CLUSTER.ready_timeout_s) == staging_s
    bench_s = 0 if prospect is Prospect.RESTART else staging_s
    assert diagnosis.patience_s(why, CLUSTER.ready_timeout_s, restarts=False) == bench_s
    if reconciler_s is not None:
        settings = Reconciling(stuck_s=1, unschedulable_s=2, full_s=3)
        assert stuck.Stuck(workflow="w", why=why, since=0).limit_s(settings) == reconciler_s


def test_staging_ends_at_once_where_no_waiting_helps(workloads: Workloads, server: ApiServer) -> None:
    labels = {f"{LABEL}package": "x"}
    server.objects["deployments"]["x"] = {**DEPLOYMENT, "status": {"observedGeneration": 1}}
    server.objects["pods"]["x-1"] = {**PODS["secret-missing"], "metadata": {"name": "x-1", "labels": labels}}
    started = time.monotonic()
    with pytest.raises(ServerFailed) as error:
        workloads._wait("x", 1)
    assert time.monotonic() - started < 100
    assert error.value.what == (
        "x did not become ready in 0 s: pod x-1: container main can't be configured (CreateContainerConfigError): "
        'secret "nowhere" not found'
    )
    assert error.value.do.startswith("Create that Secret in the pod's namespace. Then rerun the release")


def test_a_stage_that_ended_is_never_stuck_whatever_its_exit_code() -> None:
    """Its container has exit code 40 as the guard's refusal has, while the one beside it still saves its outputs."""
    ended = {"name": "main", "restartCount": 0, "state": {"terminated": {"exitCode": 40, "reason": "Error"}}}
    saves = {"name": "wait", "restartCount": 0, "ready": True, "state": {"running": {}}}
    meta = {"name": "x", "labels": {stuck.OF_WORKFLOW: "w"}, "creationTimestamp": "2026-01-01T00:00:00Z"}
    pod = {"metadata": meta, "status": {"phase": "Running", "containerStatuses": [ended, saves]}}
    assert stuck.of_pod(pod) is None


# --- any pod ---

_words = st.one_of(st.none(), st.sampled_from([*REASONS, "OutOfpods", "SomethingNew"]))
_messages = st.one_of(st.none(), st.sampled_from(["", "a {b} \n c", "Insufficient cpu", "exceeded quota: x"]))
_ended = st.fixed_dictionaries(
    {"exitCode": st.sampled_from([0, 1, 40, 137])}, optional={"reason": _words, "message": _messages}
)
_waiting = st.fixed_dictionaries({}, optional={"reason": _words, "message": _messages})
_state = st.fixed_dictionaries(
    {}, optional={"waiting": _waiting, "terminated": _ended, "running": st.just({"startedAt": "x"})}
)
_container = st.fixed_dictionaries(
    {"name": st.sampled_from(["main", "wait"])},
    optional={
        "image": st.just("img"),
        "ready": st.booleans(),
        "restartCount": st.integers(0, 5),
        "state": st.one_of(st.none(), _state),
        "lastState": st.one_of(st.none(), _state),
    },
)
_containers = st.one_of(st.none(), st.lists(_container, max_size=3))
_condition = st.fixed_dictionaries(
    {"type": st.sampled_from(["PodScheduled", "Ready"]), "status": st.sampled_from(["True", "False"])},
    optional={"reason": _words, "message": _messages},
)
_status = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(["Pending", "Running", "Failed", "Succeeded", "Unknown"]),
        "reason": _words,
        "message": _messages,
        "conditions": st.one_of(st.none(), st.lists(_condition, max_size=2)),
        "initContainerStatuses": _containers,
        "containerStatuses": _containers,
    },
)


@given(status=st.one_of(st.none(), _status), selector=st.one_of(st.none(), st.just({"a": "b"})))
def test_any_pod_is_explained_in_one_line_or_has_no_problem(status: Any, selector: Any) -> None:
    why = diagnosis.of_pod({"metadata": {"name": "x"}, "spec": {"nodeSelector": selector}, "status": status})
    if why is not None:
        assert "\n" not in why.sentence
        assert "{container}" not in why.sentence
        assert why.do.endswith(".")
        assert str(why).startswith(why.reason)
