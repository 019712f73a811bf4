"""The alerts of a model. Each means that users are affected, or soon will be, and says what to do.

The error budget is watched as in Google's SRE workbook (chapter 5): a burn rate over a long window shows that the
problem matters, and the same rate over a short window that it still lasts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shiplift.runtime.serving.scaling.queries import Labels, selector

_BURNS = {"Fast": (14.4, "1h", "5m", 60), "Slow": (6.0, "6h", "30m", 900)}  # rate, long and short window, for (s)
_ERRORS, _FULL = 0.05, 0.9
_STUCK_S = 600.0  # on top of the time that a rollout holds its shares


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A service and what is expected of it.

    `requests` are the labels of Triton's series, `pods` those of its pods, `service` those of what the operator
    exports. `objective` is the percentage of requests to be answered without an error; `p99_ms` None: no limit.
    `pod_names` is a regular expression. `rollout_s`: how long a rollout holds its shares. `heartbeat`: answers are
    checked. `several`: more than one target serves.
    """

    requests: Labels
    pods: Labels
    service: Mapping[str, str]
    pod_names: str
    objective: float
    p99_ms: float | None
    rollout_s: float
    heartbeat: bool
    several: bool = False


@dataclass(frozen=True, kw_only=True)
class Alert:
    """An alert; it fires once `expr` has had a result for `for_s` seconds."""

    name: str
    expr: str
    for_s: float
    severity: str
    summary: str
    do: str

    def rule(self, labels: Mapping[str, str], patience: float) -> dict[str, object]:
        """The alert as a rule of Prometheus; `patience` scales how long it waits."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": f"{self.for_s * patience:.0f}s",
            "labels": {"severity": self.severity, **labels},
            "annotations": {"summary": self.summary, "description": self.do},
        }


def alerts(watched: Watched) -> Iterator[Alert]:
    """Every alert of a service."""
    yield from _budget(watched)
    yield from _requests(watched)
    if watched.heartbeat:
        yield from _heartbeat(watched)
    yield from _operated(watched)
    if watched.several:
        yield _target_down(watched)
    yield _memory(watched)


def _budget(watched: Watched) -> Iterator[Alert]:
    budget = 1 - watched.objective / 100
    for speed, (rate, long, short, for_s) in _BURNS.items():
        limit = f"{rate * budget:.6g}"
        yield Alert(
            name=f"ShipliftErrorBudgetBurns{speed}",
            expr=f"{_error_ratio(watched, long)} > {limit} and {_error_ratio(watched, short)} > {limit}",
            for_s=for_s,
            severity="critical" if speed == "Fast" else "warning",
            summary=f"Errors use up the budget of {watched.objective:g} % {rate:g} times too fast.",
            do="See the dashboard's errors by revision, and the pods' logs; `shiplift rollback` if a release did it.",
        )


def _requests(watched: Watched) -> Iterator[Alert]:
    where, pods = selector(watched.requests), selector(watched.pods)
    yield Alert(
        name="ShipliftErrors",
        expr=f"{_error_ratio(watched, '5m')} > {_ERRORS}",
        for_s=120,
        severity="critical",
        summary=f"More than {_ERRORS:.0%} of the requests fail.",
        do="See the pods' logs; `shiplift rollback` if a release did it.",
    )
    waiting = f"sum(nv_inference_pending_request_count{where})"
    yield Alert(
        name="ShipliftQueueGrows",
        expr=f"{waiting} > 10 * count(up{pods}) and deriv({waiting}[5m:15s]) > 0",
        for_s=120,
        severity="warning",
        summary="Requests arrive faster than they are answered: the queue grows.",
        do="Raise `spec.scaling.maxReplicas`, or `spec.replicas` without autoscaling; check that new pods start.",
    )
    if watched.p99_ms is None:
        return
    summary = selector({**watched.requests, "quantile": "0.99"})
    yield Alert(
        name="ShipliftAnswersLate",
        expr=f"max(nv_inference_request_summary_us{summary}) / 1000 > {watched.p99_ms:g}",
        for_s=300,
        severity="warning",
        summary=f"The 99th percentile of the servers' latency is over {watched.p99_ms:g} ms.",
        do="See the dashboard: a long queue needs more pods, a long computation another node or configuration.",
    )


def _heartbeat(watched: Watched) -> Iterator[Alert]:
    where = selector(watched.service)
    yield Alert(
        name="ShipliftHeartbeatFails",
        expr=f"sum(shiplift_heartbeat_failing_pods{where}) > 0",
        for_s=30,
        severity="critical",
        summary="Pods do not answer golden requests, or answer them wrongly.",
        do="See `kubectl describe tritonservice`: the condition Verified says which pod and how.",
    )
    yield Alert(
        name="ShipliftHeartbeatSilent",
        expr=f"absent(shiplift_heartbeat_failing_pods{where})",
        for_s=300,
        severity="warning",
        summary="The answers of this service are not being checked.",
        do="Check that the Deployment `operator` runs, and that Prometheus scrapes it.",
    )


def _operated(watched: Watched) -> Iterator[Alert]:
    """The alerts on what the operator reports."""
    where = selector(watched.service)
    yield Alert(
        name="ShipliftAtMaximum",
        expr=f"shiplift_service_replicas{where} >= shiplift_service_max_replicas{where}",
        for_s=900,
        severity="warning",
        summary="All pods that `spec.scaling.maxReplicas` allows are in use.",
        do="Raise it if the nodes have room: users will feel the next rise in load.",
    )
    share = f"shiplift_revision_weight_percent{where}"
    yield Alert(
        name="ShipliftCanaryStuck",
        expr=f"max({share} > 0 < 100)",
        for_s=watched.rollout_s + _STUCK_S,
        severity="warning",
        summary="A rollout has been between two revisions for too long.",
        do="See `kubectl describe tritonservice`: the conditions say what it waits for.",
    )
    stalled = selector({**watched.service, "condition": "Stalled"})
    yield Alert(
        name="ShipliftStalled",
        expr=f"shiplift_service_condition{stalled} == 1",
        for_s=60,
        severity="warning",
        summary="The operator can't do what the spec asks for; the previous revision still serves.",
        do="See `kubectl describe tritonservice`: the condition Stalled says why, and what to do.",
    )


def _target_down(watched: Watched) -> Alert:
    return Alert(
        name="ShipliftTargetDown",
        expr=f"min(shiplift_group_replicas{selector(watched.service)}) == 0",
        for_s=120,
        severity="warning",
        summary="A target of this service has no ready pod: the others take its traffic.",
        do="See `kubectl get tritonservice -o wide` for which one, and `kubectl describe pods` for why.",
    )


def _memory(watched: Watched) -> Alert:
    """Uses the kubelet's own metrics, which every Prometheus on Kubernetes scrapes."""
    namespace = watched.requests["namespace"]
    labels = selector({"namespace": namespace, "container": "triton"})[1:-1]
    where = f'{{{labels},pod=~"{watched.pod_names}"}}'
    used, limit = f"container_memory_working_set_bytes{where}", f"container_spec_memory_limit_bytes{where}"
    return Alert(
        name="ShipliftMemoryFull",
        expr=f"max(max by (pod) ({used}) / max by (pod) ({limit} > 0)) > {_FULL}",
        for_s=120,
        severity="warning",
        summary=f"A server uses more than {_FULL:.0%} of its memory limit, and is killed when it reaches it.",
        do="Raise `serving.memory_limit` in the installation's values, or serve a smaller precision.",
    )


def _error_ratio(watched: Watched, window: str) -> str:
    """The share of requests that failed; those that their client cancelled don't count. Without requests it is NaN."""
    where = selector(watched.requests)
    failed = f'sum(rate(nv_inference_request_failure{where[:-1]},reason!="CANCELED"}}[{window}]))'
    return f"({failed} / (sum(rate(nv_inference_request_success{where}[{window}])) + {failed}))"
