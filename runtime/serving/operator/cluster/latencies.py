"""Reads from servers' metrics how many requests they answered, and the 99th percentile of the last minute."""

import math

import httpx

from shiplift.runtime.base.exposition import samples_of
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.serving.kubernetes.objects.names import METRICS
from shiplift.runtime.serving.operator.observed import Observed

_ANSWER_S = 5.0
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


def read(metrics: str, model: str) -> tuple[float, float | None]:
    """A model's requests so far and the 99th percentile of their latency in ms; None if there were none lately."""
    requests, p99_us = 0.0, math.nan
    for name, labels, value in samples_of(metrics, model):
        if name in _COUNTED:
            requests += value
        if name == "nv_inference_request_summary_us" and 'quantile="0.99"' in labels:
            p99_us = max(value, p99_us) if not math.isnan(p99_us) else value
    return requests, None if math.isnan(p99_us) else p99_us / 1000
