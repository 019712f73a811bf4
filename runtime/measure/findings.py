"""What a load test found, for people: every run as a table, and notes on what the figures don't show."""

import csv
import io
from collections.abc import Iterator
from typing import Any

from shiplift.runtime.records.measurement import LoadReport
from shiplift.runtime.records.model import RecordedRequests


def table_of(runs: list[dict[str, Any]]) -> bytes:
    """Every run as CSV: its phase, side and demand, then the columns that the load generator wrote."""
    rows = [{"phase": run["phase"], "side": run["side"], **run["demand"], **run["row"]} for run in runs]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def notes_of(report: LoadReport, uncompared: str, recorded_requests: RecordedRequests, shortened: str) -> Iterator[str]:
    """What a reader should know about the figures: what was not compared, what was sent, and where clients waited."""
    if uncompared:
        yield uncompared
    if recorded_requests.file:
        yield f"the requests were those logged at {recorded_requests.name}"
    elif shortened:
        yield shortened
    if any(point.client_saturated for point in (*report.points, *report.open_points)):
        yield "at the marked points the client was the bottleneck: the server can do more than they show"
    for point in report.open_points:
        faster = [closed for closed in report.points if closed.throughput_per_s >= point.throughput_per_s]
        closed = min(faster, key=lambda closed: closed.throughput_per_s, default=None)
        if closed and point.p99_ms > 2 * closed.p99_ms:
            yield (
                f"at {point.rate_per_s:.0f} requests/s the p99 is {point.p99_ms:.1f} ms when arrivals don't wait for "
                f"answers; clients that wait saw {closed.p99_ms:.1f} ms (coordinated omission)"
            )
