"""What a load test's points say: where the knee of the curve is, and which rate to try next."""

from collections.abc import Iterator

from shiplift.runtime.records.measurement import LoadPoint

_SETTLED = 1.05  # the search for the highest rate ends when its bounds are this close


def knee(points: tuple[LoadPoint, ...]) -> int:
    """The concurrency with the highest power, throughput over latency: past it, waiting grows faster than work done.

    (Kleinrock, "Power and deterministic rules of thumb for probabilistic problems in computer communications", 1979.)
    """
    return max(points, key=lambda point: point.throughput_per_s / max(point.p50_ms, 1e-6)).concurrency


def rates_to_try(most: float, limit: float | None, found: list[LoadPoint]) -> Iterator[float]:
    """The next rate, given what was `found` by then: half and 80 % of the most without a limit, else the bisection."""
    if limit is None:
        yield from (round(most * 0.5, 1), round(most * 0.8, 1))
        return
    low, high = 0.0, most
    while high > 1 and (not low or high / low > _SETTLED):
        rate = round((low + high) / 2 if found else 0.7 * most, 1)
        yield rate
        if holds(found[-1], limit):
            low = rate
        else:
            high = rate


def holds(point: LoadPoint, limit: float) -> bool:
    """Whether a point is within the p99 limit, and shows the server and not the client."""
    return point.p99_ms <= limit and not point.client_saturated
