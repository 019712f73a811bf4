"""The rule of `signal.py` as PromQL over Triton's own metrics, for KEDA's `prometheus` trigger.

Two recording rules keep the arrival rate and its spread, so that the trigger's query can look back at them. The query's
value is the number of replicas, so the trigger's threshold is 1 (metricType AverageValue), with `ignoreNullValues:
"false"`: a query without a result is an error, on which the HPA keeps what it has. NaN is filtered out by `>= 0`.

The PromQL differs from `decide` in three ways. Minimum and maximum are the ScaledObject's. The latest rate is computed
when KEDA asks, the others when Prometheus last evaluated the rules. And while any target of the service does not answer
a scrape, whether it is starting or lost, the query's value is at least the number of targets: a replica must not be
scaled away because Prometheus can't see it.
"""

from collections.abc import Mapping

from shiplift.runtime.serving.scaling.signal import SECOND_DIFFERENCE, Scaling

ARRIVALS = "shiplift:arrivals:rate"
SPREAD = "shiplift:arrivals:spread"
THRESHOLD = "1"


Labels = Mapping[str, str | tuple[str, ...]]  # a tuple: any of these values


def selector(labels: Labels) -> str:
    """Label matchers, quoted: `{model="digits",namespace="shiplift"}`."""
    return f"{{{','.join(_matcher(name, value) for name, value in sorted(labels.items()))}}}"


def _matcher(name: str, value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return f"{name}={_quoted(value)}"
    return f"{name}=~{_quoted('|'.join(each.replace('.', '[.]') for each in value))}"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def arrivals(labels: Labels, scaling: Scaling) -> str:
    """Requests that arrive per second: those that end, and the growth of the queue; no result if that is NaN.

    Triton counts a request when it ends, so the counters of an overloaded server show its capacity, not the demand.
    `rate` does not work here: it sees a new server's requests only from its second scrape on, spread over the whole
    range, so each scale-up looks like a trough and then a rise. Triton's counters start at 0, so a new server's value
    is its increase.
    """
    where = selector(labels)
    ended = f"sum({_increase(f'nv_inference_request_success{where}', scaling)})"
    failed = f"(sum({_increase(f'nv_inference_request_failure{where}', scaling)}) or vector(0))"
    queued = f"sum({_change(f'nv_inference_pending_request_count{where}', scaling)})"
    return f"(clamp_min(({ended} + {failed} + {queued}) / {scaling.window_s}, 0) >= 0)"


def _increase(series: str, scaling: Scaling) -> str:
    return f"clamp_min({_change(series, scaling)}, 0)"  # a counter that falls was reset


def _change(series: str, scaling: Scaling) -> str:
    """How much each series grew within the window; a series that is new grew from 0."""
    return f"({series} - ({series} offset {scaling.window_s}s or {series} * 0))"


def recording_rules(labels: Labels, service: Mapping[str, str], scaling: Scaling) -> list[dict[str, object]]:
    """The rules of a PrometheusRule group whose interval must be `step_s`; `service` labels what is recorded."""
    recorded, lag = ARRIVALS + selector(service), scaling.window_s
    second = f"{recorded} - 2 * {recorded} offset {lag}s + {recorded} offset {2 * lag}s"
    median = f"max(quantile_over_time(0.5, abs({second})[{scaling.spread_s}s:{scaling.step_s}s]))"
    parts = {
        "measured": f"{median} / {_number(SECOND_DIFFERENCE)}",
        "poisson": f"sqrt({_mean(service, scaling)} / {scaling.window_s})",
    }
    return [
        {"record": ARRIVALS, "expr": arrivals(labels, scaling), "labels": dict(service)},
        {"record": SPREAD, "expr": _largest(parts), "labels": dict(service)},
    ]


def wanted(labels: Labels, service: Mapping[str, str], scaling: Scaling, *, targets: Labels | None = None) -> str:
    """The trigger's query: the replicas wanted now, or while a target can't be scraped, at least all of them.

    `targets` are the labels of the replicas that are scaled, if `labels` match more than those.
    """
    views = {
        "mean": _mean(service, scaling),
        "recent": f"{arrivals(labels, scaling)} - {_number(scaling.chance)} * {_spread_of(service)}",
        **_trends(service, scaling),
        "held": _held(service, scaling),
    }
    spare = {"headroom": _headroom(service, scaling), "backlog": _backlog(labels, scaling)}
    peak = _number(scaling.capacity.peak_per_s)
    demand = f"ceil(({_largest(views)} + {_largest(spare)}) / {peak} - 1e-9)"
    return f"{_largest({'demand': demand, 'unseen': _unseen(labels if targets is None else targets)})} >= 0"


def trigger(
    server: str, labels: Labels, service: Mapping[str, str], scaling: Scaling, *, targets: Labels | None = None
) -> dict[str, object]:
    """The ScaledObject's trigger, with Prometheus at `server`."""
    query = wanted(labels, service, scaling, targets=targets)
    metadata = {
        "serverAddress": server,
        "query": query,
        "threshold": THRESHOLD,
        "ignoreNullValues": "false",
    }
    return {"type": "prometheus", "metricType": "AverageValue", "metadata": metadata}


def fallback(scaling: Scaling) -> dict[str, object]:
    """The ScaledObject's fallback while Prometheus gives no value: the current replicas, and at least the minimum.

    Without a fallback the HPA keeps its replicas too; with one, the conditions say so. `behavior` needs KEDA 2.17.
    """
    return {"failureThreshold": 3, "replicas": scaling.minimum, "behavior": "currentReplicasIfHigher"}


def behavior() -> dict[str, object]:
    """The HPA's behavior. The query already delays scale-down, so the controller adds no window of its own."""
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "selectPolicy": "Max",
            "policies": [
                {"type": "Percent", "value": 100, "periodSeconds": 15},
                {"type": "Pods", "value": 4, "periodSeconds": 15},
            ],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": 0,
            "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
        },
    }


def _mean(service: Mapping[str, str], scaling: Scaling) -> str:
    return f"max(avg_over_time({ARRIVALS}{selector(service)}[{scaling.mean_s}s]))"


def _spread_of(service: Mapping[str, str]) -> str:
    return f"max({SPREAD}{selector(service)})"


def _trends(service: Mapping[str, str], scaling: Scaling) -> dict[str, str]:
    recorded, spread = ARRIVALS + selector(service), _spread_of(service)
    return {
        f"trend{seconds}": f"max(predict_linear({recorded}[{seconds}s], {scaling.ready_in_s}))"
        f" - {_number(scaling.trend_chance(seconds))} * {spread}"
        for seconds in scaling.trends_s
    }


def _held(service: Mapping[str, str], scaling: Scaling) -> str:
    recorded = f"{ARRIVALS}{selector(service)}[{scaling.hold_s}s]"
    return f"max(quantile_over_time({_number(scaling.hold_quantile)}, {recorded})) - {_spread_of(service)}"


def _headroom(service: Mapping[str, str], scaling: Scaling) -> str:
    """The load test's headroom, times 1 + burst x the index of dispersion, window x spread^2 / mean."""
    dispersion = f"{scaling.window_s} * {_spread_of(service)} ^ 2 / clamp_min({_mean(service, scaling)}, 1e-9)"
    return f"{_number(scaling.capacity.headroom_per_s)} * (1 + {_number(scaling.burst)} * {dispersion})"


def _backlog(labels: Labels, scaling: Scaling) -> str:
    return f"sum(nv_inference_pending_request_count{selector(labels)}) / {scaling.drain_s}"


def _unseen(labels: Labels) -> str:
    """The number of targets if one of them does not answer, else no result."""
    targets = selector({name: value for name, value in labels.items() if name not in _METRIC_LABELS})
    return f"count(up{targets}) and on() (min(up{targets}) == 0)"


_METRIC_LABELS = ("model", "version")  # Triton's own: `up` has only those of the target


def _largest(parts: Mapping[str, str]) -> str:
    """The largest of several queries; those without a result don't count.

    Each gets a label of its own: `or` drops what has the same labels as a result to its left.
    """
    named = [f'label_replace({query}, "part", "{name}", "", "")' for name, query in parts.items()]
    return f"max({' or '.join(named)})"


def _number(value: float) -> str:
    return f"{value:.6g}"
