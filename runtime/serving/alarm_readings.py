"""Reads what a bake's alarms need: a model's requests and latency from a server's metrics, and PromQL queries."""

import json
import math
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from shiplift.runtime.base.exposition import samples_of
from shiplift.runtime.records.baking import Alarm, BakeReading

_QUERY_S = 2.0
_MOST_BYTES = 1 << 20
_THREADS = 8
_QUANTILE = re.compile(r'quantile="([0-9.]+)"')
_ANSWERED, _FAILED = "nv_inference_request_success", "nv_inference_request_failure"
_LATENCY = "nv_inference_request_summary_us"


def reading_of(page: str | None, name: str, version: int, at_s: float) -> BakeReading:
    """What a server's metrics say of a version under its served name; None: they could not be read.

    Requests that a client cancelled did not fail.
    """
    if page is None:
        return BakeReading(at_s=at_s)
    answered = failed = 0.0
    latency: dict[float, float] = {}
    for sample, labels, value in samples_of(page, name):
        if f'version="{version}"' not in labels:
            continue
        if sample == _ANSWERED:
            answered += value
        elif sample == _FAILED and 'reason="CANCELED"' not in labels:
            failed += value
        elif sample == _LATENCY and (found := _QUANTILE.search(labels)) and not math.isnan(value):
            latency[float(found.group(1))] = value / 1000
    return BakeReading(at_s=at_s, answered=int(answered), failed=int(failed), latency_ms=latency)


def values_of(prometheus: str, alarms: Iterable[Alarm], client: httpx.Client) -> dict[str, float | None]:
    """The value of each alarm's query; None for one that gave no number, or that nobody answered."""
    queries = [alarm for alarm in alarms if alarm.query]
    if not queries:
        return {}
    with ThreadPoolExecutor(_THREADS) as pool:
        values = list(pool.map(lambda alarm: _value(prometheus, alarm, client), queries))
    return {alarm.query: value for alarm, value in zip(queries, values, strict=True)}


def _value(prometheus: str, alarm: Alarm, client: httpx.Client) -> float | None:
    if not prometheus:
        return None
    url = f"{prometheus.rstrip('/')}/api/v1/query"
    try:
        with client.stream("GET", url, params={"query": alarm.query}, timeout=_QUERY_S) as answer:
            answer.raise_for_status()
            body = bytearray()
            for part in answer.iter_bytes():
                body += part
                if len(body) > _MOST_BYTES:
                    return None
        return worst_of(json.loads(body), below=alarm.below)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError):
        return None


def worst_of(answer: Any, *, below: bool) -> float | None:
    """The value in Prometheus' answer to an instant query that is nearest to raising the alarm.

    None if there is none, or if one of them is not a number: that is never good.
    """
    try:
        data = answer["data"]
        kind, result = data["resultType"], data["result"]
        samples = [result] if kind == "scalar" else [each["value"] for each in result] if kind == "vector" else []
        values = [float(value) for _, value in samples]
    except (KeyError, TypeError, ValueError):
        return None
    if not values or not all(map(math.isfinite, values)):
        return None
    return min(values) if below else max(values)
