"""What every delivery passes before anybody looks into it: its source's rate, its size and the time it takes.

Each is counted for Prometheus and logged with its source and its answer, never with its content or its headers.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

import structlog
from fastapi import Request, Response
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from shiplift.pipelines.triggers.intake import Answer
from shiplift.pipelines.triggers.settings import Limits

Decide = Callable[[Mapping[str, str], bytes], Answer]


class Metrics:
    """What the receiver tells Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.deliveries = Counter(
            "shiplift_deliveries", "Webhook deliveries, by HTTP status.", ("kind", "answer"), registry=self.registry
        )
        self.seconds = Histogram(
            "shiplift_delivery_seconds", "From a delivery's first byte to its answer.", ("kind",),
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10), registry=self.registry,
        )  # fmt: skip


class RequestLimiter:
    """What every delivery passes: its source's rate, its size and its time; counted, and logged without its content."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._rate = RateLimitItemPerMinute(limits.deliveries_per_minute)
        self._limiter = FixedWindowRateLimiter(MemoryStorage())
        self._log = structlog.get_logger()

    async def take(self, kind: str, request: Request, most_bytes: int, decide: Decide) -> Response:
        """Reads a delivery and answers it with what `decide` makes of it, in a thread."""
        began = time.monotonic()
        status, said = 500, "internal error"
        try:
            status, said, headers = await self._decided(request, most_bytes, decide)
            return answer(status, said, headers)
        finally:
            source = request.client.host if request.client else ""
            self._metrics.deliveries.labels(kind, str(status)).inc()
            self._metrics.seconds.labels(kind).observe(time.monotonic() - began)
            self._log.info("delivery", kind=kind, source=source, status=status, said=said)

    async def _decided(self, request: Request, most_bytes: int, decide: Decide) -> tuple[int, str, dict[str, str]]:
        source = request.client.host if request.client else ""
        if not self._limiter.hit(self._rate, source):
            wait = max(1, round(self._limiter.get_window_stats(self._rate, source).reset_time - time.time()))
            return 429, f"over {self._limits.deliveries_per_minute} deliveries a minute", {"Retry-After": str(wait)}
        close = {"Connection": "close"}  # the rest of the body is not read
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                body = await read_body(request, most_bytes)
        except TimeoutError:
            return 408, f"the body took longer than {self._limits.body_timeout_s:g} s", close
        except ClientDisconnect:
            return 400, "the sender hung up", close
        if body is None:
            return 413, f"the body is over {most_bytes} bytes", close
        status, said = await run_in_threadpool(decide, request.headers, body)
        return status, said, {"Retry-After": "2"} if status == 503 else {}


async def read_body(request: Request, most_bytes: int) -> bytes | None:
    """The body; None if it is too large, whatever its length header says."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most_bytes:
            return None
    return bytes(body)


def answer(status: int, said: str, headers: Mapping[str, str] | None = None) -> Response:
    """A sentence as a response."""
    return Response(said + "\n", status_code=status, media_type="text/plain", headers=dict(headers or {}))
