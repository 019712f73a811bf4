"""Limits that every delivery must pass before it is parsed: the rate of its source, its size, and how long it takes.

Each delivery is counted for Prometheus and logged with its source and its answer, never with its content or headers.
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
from shiplift.pipelines.triggers.settings import DeliveryLimits

Decide = Callable[[Mapping[str, str], bytes], Answer]


class DeliveryMetrics:
    """The receiver's Prometheus metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.deliveries = Counter(
            "shiplift_deliveries", "Webhook deliveries, by HTTP status.", ("kind", "answer"), registry=self.registry
        )
        self.seconds = Histogram(
            "shiplift_delivery_seconds",
            "Time from a delivery's first byte to its answer.",
            ("kind",),
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )


class RequestLimiter:
    """Applies the limits to each delivery, counts it, and logs it without its content."""

    def __init__(self, limits: DeliveryLimits, metrics: DeliveryMetrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._rate = RateLimitItemPerMinute(limits.deliveries_per_minute)
        self._limiter = FixedWindowRateLimiter(MemoryStorage())
        self._log = structlog.get_logger()

    async def handle(self, kind: str, request: Request, max_bytes: int, decide: Decide) -> Response:
        """Reads a delivery, calls `decide` in a thread, and sends the answer that it returns."""
        began = time.monotonic()
        status, message = 500, "internal error"
        try:
            status, message, headers = await self._decided(request, max_bytes, decide)
            return answer(status, message, headers)
        finally:
            source = request.client.host if request.client else ""
            self._metrics.deliveries.labels(kind, str(status)).inc()
            self._metrics.seconds.labels(kind).observe(time.monotonic() - began)
            self._log.info("delivery", kind=kind, source=source, status=status, answer=message)

    async def _decided(self, request: Request, max_bytes: int, decide: Decide) -> tuple[int, str, dict[str, str]]:
        source = request.client.host if request.client else ""
        if not self._limiter.hit(self._rate, source):
            wait = max(1, round(self._limiter.get_window_stats(self._rate, source).reset_time - time.time()))
            return (
                429,
                f"more than {self._limits.deliveries_per_minute} deliveries per minute",
                {"Retry-After": str(wait)},
            )
        close = {"Connection": "close"}  # the rest of the body is not read
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                body = await read_body(request, max_bytes)
        except TimeoutError:
            return 408, f"the body took longer than {self._limits.body_timeout_s:g} s", close
        except ClientDisconnect:
            return 400, "the sender closed the connection", close
        if body is None:
            return 413, f"the body exceeds {max_bytes} bytes", close
        status, message = await run_in_threadpool(decide, request.headers, body)
        return status, message, {"Retry-After": "2"} if status == 503 else {}


async def read_body(request: Request, max_bytes: int) -> bytes | None:
    """The body, or None if it is too large. Counts bytes as they arrive, because Content-Length can lie."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            return None
    return bytes(body)


def answer(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """A plain-text response."""
    return Response(message + "\n", status_code=status, media_type="text/plain", headers=dict(headers or {}))
