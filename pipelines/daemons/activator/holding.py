"""Holds requests until a pod of their service is ready: how many, how many bytes, and for how long is bounded.

It is told nothing: it asks the Services that a request names whether a pod behind them is ready.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum

_POLL_S = 0.1
_FRESH_S = 1.0  # how long a backend that was ready counts as ready
_SERVICES = 1000


class Limit(Enum):
    """Which bound a request exceeded."""

    FULL = "full"
    LATE = "late"


class NotHeld(Exception):
    """A request that is not held, or not any longer; the message is for the client."""

    def __init__(self, limit: Limit, message: str) -> None:
        super().__init__(message)
        self.limit = limit


@dataclass(frozen=True, kw_only=True)
class HoldingLimits:
    """How many requests of one service are held, how many bytes of all services, and for how many seconds."""

    requests: int = 100
    size_bytes: int = 64 << 20
    seconds: float = 60.0


@dataclass(frozen=True, kw_only=True)
class AskedService:
    """The service that a request is for, and the names of the Services that may answer it."""

    service: str
    backends: tuple[str, ...]


class Holding:
    """The requests that wait. `is_ready` asks a Service, by name, whether a pod answers there."""

    def __init__(self, bounds: HoldingLimits, is_ready: Callable[[str], Awaitable[bool]]) -> None:
        self.bounds = bounds
        self.held, self.arrived, self.refused = Counter[str](), Counter[str](), Counter[str]()
        self._is_ready, self._size_bytes = is_ready, 0
        self._ready: dict[tuple[str, ...], tuple[str, float]] = {}
        self._waits: dict[tuple[str, ...], asyncio.Task[str]] = {}

    @asynccontextmanager
    async def place(self, target: AskedService, size_bytes: int) -> AsyncIterator[float]:
        """A place for a request; yields the deadline, on the loop's clock.

        Raises:
            Refused: there is no room.
        """
        self._admit(target.service, size_bytes)
        try:
            yield asyncio.get_running_loop().time() + self.bounds.seconds
        finally:
            self.held[target.service] -= 1
            self._size_bytes -= size_bytes

    async def ready(self, target: AskedService, deadline: float) -> str:
        """The name of a Service with a ready pod, as soon as there is one.

        Raises:
            Refused: there was none before the deadline.
        """
        name, asked_at = self._ready.get(target.backends, ("", 0.0))
        if name and time.monotonic() - asked_at < _FRESH_S:
            return name
        wait = self._waits.get(target.backends)
        if wait is None or wait.done():
            wait = self._waits[target.backends] = asyncio.create_task(self._wait(target))
        try:
            return await asyncio.wait_for(asyncio.shield(wait), deadline - asyncio.get_running_loop().time())
        except TimeoutError:
            raise self.late(target) from None

    def late(self, target: AskedService) -> NotHeld:
        """The refusal of a request for which no pod was ready in time."""
        self.refused[target.service] += 1
        do = f"See `kubectl describe tritonservice {target.service}`."
        message = f"{target.service} had no pod, and none was ready within {self.bounds.seconds:g} s. {do}"
        return NotHeld(Limit.LATE, message)

    def _admit(self, service: str, size_bytes: int) -> None:
        if service not in self.arrived and len(self.arrived) >= _SERVICES:
            raise NotHeld(Limit.FULL, f"requests of {_SERVICES} services were held already: restart the activator")
        self.arrived[service] += 1
        if self.held[service] >= self.bounds.requests:
            why = f"{self.bounds.requests} requests wait for a pod of {service}, as many as are held"
        elif self._size_bytes + size_bytes > self.bounds.size_bytes:
            why = f"the requests that wait would have {self._size_bytes + size_bytes} bytes, more than the limit"
            why += f" of {self.bounds.size_bytes}"
        else:
            self.held[service] += 1
            self._size_bytes += size_bytes
            return
        self.refused[service] += 1
        raise NotHeld(Limit.FULL, f"{why}: try again when one is ready")

    async def _wait(self, target: AskedService) -> str:
        """Asks as long as a request waits."""
        while self.held[target.service]:
            if name := await self._first(target.backends):
                self._ready[target.backends] = name, time.monotonic()
                return name
            await asyncio.sleep(_POLL_S)
        return ""

    async def _first(self, backends: Sequence[str]) -> str:
        ready = await asyncio.gather(*map(self._is_ready, backends))
        return next((name for name, is_ready in zip(backends, ready, strict=True) if is_ready), "")
