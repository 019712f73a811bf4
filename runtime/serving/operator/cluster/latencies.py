"""Reads from servers' metrics how many requests they answered and hold, and their latency in the last minute."""

import math
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from shiplift.runtime.base.exposition import samples_of
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.serving.kubernetes.objects.names import METRICS
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.scaling.burst import Reading

_ANSWER_S = 5.0
_SOON_S = 1.0  # a reading of queues that takes longer is of no use
_THREADS = 8
_COUNTED = ("nv_inference_request_success", "nv_inference_request_failure")


def latencies_of(observed: Observed, revision: str) -> tuple[dict[str, float], float | None]:
    """The requests of each ready pod so far, and the slowest one's 99th percentile in ms; pods may not answer."""
    model, requests, slowest = serving_name(observed.spec.model if observed.spec else ""), dict[str, float](), None
    with httpx.Client(timeout=_ANSWER_S, trust_env=False) as client:
        for pod in observed.ready(revision):
            try:
                text = client.get(f"http://{pod.address}:{METRICS}/metrics").raise_for_status().text
            except httpx.HTTPError:
                continue
            requests[pod.name], p99_ms = read(text, model)
            slowest = max(filter(None, (slowest, p99_ms)), default=None)
    return requests, slowest


def demand_of(observed: Observed, revision: str) -> Reading | None:
    """The requests that ended and wait at a revision's pods now; None if none of a group answers.

    `ready` counts sets of one pod of each group, as everywhere in scaling.
    """
    model = serving_name(observed.spec.model if observed.spec else "")
    pods = [(name, pod.address) for name in observed.names(revision) for pod in observed.ready_in(name) if pod.address]
    with httpx.Client(timeout=_SOON_S, trust_env=False, verify=False) as client, ThreadPoolExecutor(_THREADS) as pool:  # noqa: S501 - http

        def ask(address: str) -> tuple[float, float] | None:
            try:
                page = client.get(f"http://{address}:{METRICS}/metrics").raise_for_status().text
            except httpx.HTTPError:
                return None
            return queue_of(page, model)

        answers = list(pool.map(ask, (address for _, address in pods)))
    told = [group for (group, _), answer in zip(pods, answers, strict=True) if answer]
    ready = min((told.count(group) for group in observed.names(revision)), default=0)
    if not ready:
        return None
    ended, waiting = (sum(answer[at] for answer in answers if answer) for at in (0, 1))
    return Reading(at=time.time(), ended=ended, waiting=waiting, ready=ready)


def queue_of(metrics: str, model: str) -> tuple[float, float]:
    """How many of a model's requests a server has ended so far, and how many wait for it now."""
    ended = waiting = 0.0
    for name, _, value in samples_of(metrics, model):
        ended += value if name in _COUNTED else 0
        waiting += value if name == "nv_inference_pending_request_count" else 0
    return ended, waiting


def read(metrics: str, model: str) -> tuple[float, float | None]:
    """A model's requests so far and the 99th percentile of their latency in ms; None if there were none lately."""
    requests, p99_us = 0.0, math.nan
    for name, labels, value in samples_of(metrics, model):
        if name in _COUNTED:
            requests += value
        if name == "nv_inference_request_summary_us" and 'quantile="0.99"' in labels:
            p99_us = max(value, p99_us) if not math.isnan(p99_us) else value
    return requests, None if math.isnan(p99_us) else p99_us / 1000
