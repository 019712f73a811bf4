"""Reads from servers' metrics how many requests they answered and hold, and their latency in the last minute."""

import math
import time

from shiplift.runtime.base.exposition import samples_of
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.serving.kubernetes.metrics_pages import metrics_pages
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.scaling.burst import QueueReading

_ANSWER_S = 5.0
_SOON_S = 1.0  # for a reading of queues: a later one is useless
_COUNTED = ("nv_inference_request_success", "nv_inference_request_failure")


def latencies_of(observed: Observed, revision: str) -> tuple[dict[str, float], float | None]:
    """The requests so far of each ready pod that answers, and the slowest one's 99th percentile in ms."""
    model = _model(observed)
    told = {pod: read(page, model) for _, pod, page in pages_of(observed, revision, _ANSWER_S)}
    slowest = max((p99_ms for _, p99_ms in told.values() if p99_ms), default=None)
    return {pod: requests for pod, (requests, _) in told.items()}, slowest


def demand_of(observed: Observed, revision: str) -> QueueReading | None:
    """The requests that have ended and that wait at a revision's pods now; None if no pod of a group answers.

    `ready` counts sets of one pod of each group, as everywhere in scaling.
    """
    model, pages = _model(observed), pages_of(observed, revision, _SOON_S)
    groups = [group for group, _, _ in pages]
    ready = min((groups.count(group) for group in observed.names(revision)), default=0)
    if not ready:
        return None
    queues = [queue_of(page, model) for _, _, page in pages]
    ended, waiting = (sum(queue[at] for queue in queues) for at in (0, 1))
    return QueueReading(at=time.time(), ended=ended, waiting=waiting, ready=ready)


def _model(observed: Observed) -> str:
    return serving_name(observed.spec.model if observed.spec else "")


def pages_of(observed: Observed, revision: str, timeout_s: float) -> list[tuple[str, str, str]]:
    """The group, the name and the metrics page of each ready pod that answers in time."""
    pods = [(group, pod) for group in observed.names(revision) for pod in observed.ready_in(group)]
    pages = metrics_pages({pod.name: pod.address for _, pod in pods}, timeout_s)
    return [(group, pod.name, pages[pod.name]) for group, pod in pods if pod.name in pages]


def queue_of(metrics: str, model: str) -> tuple[float, float]:
    """How many of a model's requests a server has finished so far, and how many wait now."""
    ended = waiting = 0.0
    for name, _, value in samples_of(metrics, model):
        ended += value if name in _COUNTED else 0
        waiting += value if name == "nv_inference_pending_request_count" else 0
    return ended, waiting


def read(metrics: str, model: str) -> tuple[float, float | None]:
    """A model's requests so far and the 99th percentile of their latency in ms; None without recent requests."""
    requests, p99_us = 0.0, math.nan
    for name, labels, value in samples_of(metrics, model):
        if name in _COUNTED:
            requests += value
        if name == "nv_inference_request_summary_us" and 'quantile="0.99"' in labels:
            p99_us = max(value, p99_us) if not math.isnan(p99_us) else value
    return requests, None if math.isnan(p99_us) else p99_us / 1000
