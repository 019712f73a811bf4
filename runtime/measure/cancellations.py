"""Requests that the measuring client cancelled. Triton counts them as failed, but no client was refused an answer.

A load generator ends while requests are still in flight, and a slow machine has more of them. Triton's statistics have
one number for all failures; its metrics also give the reasons.
"""

import httpx

from shiplift.runtime.base.exposition import samples_of
from shiplift.runtime.base.plain_http import NO_AUTHORITIES

_ANSWER_S = 10.0
_FAILED, _CANCELLED = "nv_inference_request_failure", 'reason="CANCELED"'


def cancelled(metrics: str, model: str) -> int:
    """How many requests for a model their clients cancelled, according to the metrics at a URL.

    0 if the metrics can't be read: then every failure counts as one.
    """
    try:
        text = httpx.get(metrics, timeout=_ANSWER_S, trust_env=False, verify=NO_AUTHORITIES).raise_for_status().text
    except (httpx.HTTPError, httpx.InvalidURL):
        return 0
    failures = ((labels, count) for name, labels, count in samples_of(text, model) if name == _FAILED)
    return sum(int(count) for labels, count in failures if _CANCELLED in labels)
