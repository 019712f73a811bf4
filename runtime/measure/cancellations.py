"""Requests that the measuring client itself gave up: Triton counts them as failed, but nobody was refused an answer.

A load generator ends with requests on their way, more of them the slower the machine. Triton's statistics have one
number for all failures; its metrics tell their reasons.
"""

import httpx

from shiplift.runtime.base.exposition import samples_of

_ANSWER_S = 10.0
_FAILED, _CANCELLED = "nv_inference_request_failure", 'reason="CANCELED"'


def cancelled(metrics: str, model: str) -> int:
    """How many requests of a model their clients cancelled, by the metrics at a URL.

    0 if they can't be read: then whatever failed counts as failed.
    """
    try:
        text = httpx.get(metrics, timeout=_ANSWER_S, trust_env=False).raise_for_status().text
    except (httpx.HTTPError, httpx.InvalidURL):
        return 0
    failures = ((labels, count) for name, labels, count in samples_of(text, model) if name == _FAILED)
    return sum(int(count) for labels, count in failures if _CANCELLED in labels)
