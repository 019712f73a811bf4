"""Holds requests until a pod of their service is ready, within limits on their number, size and time.

No one notifies the activator of a ready pod: it asks the Services that a request names.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum

_POLL_S = 0.1
_FRESH_S = 1.0  # how long a backend counts as ready after the last check
_SERVICES = 1000


class HoldingLimit(Enum):
    """Which limit a request exceeded."""

    FULL = "full"
    LATE = "late"


class NotHeld(Exception):
    """A request that is not held, or no longer; the message is for the client."""

    def __init__(self, limit: HoldingLimit, message: str) -> None:
        super().__init__(message)
        self.limit = limit


@dataclass(frozen=True, kw_only=True)
class HoldingLimits:
    """Limits on the requests held: their number per service, their bytes over all services, and the seconds of each."""

    requests: int = 100
    size_bytes: int = 64 << 20
    seconds: float = 60.0


@dataclass(frozen=True, kw_only=True)
class AskedService:
    """The service that a request is for, and the names of the Services that may answer it."""

    service: str
    backends: tuple[str, ...]


class Holding:
    """The requests held. `is_ready` asks a Service, by name, whether one of its pods answers."""

    def __init__(self, bounds: HoldingLimits, is_ready: Callable[[str], Awaitable[bool]]) -> None:
        self.bounds = bounds
        self.held, self.arrived, self.refused = Counter[str](), Counter[str](), Counter[str]()
        self._is_ready, self._size_bytes = is_ready, 0
        self._ready: dict[tuple[str, ...], tuple[str, float]] = {}
        self._waits: dict[tuple[str, ...], asyncio.Task[str]] = {}

    @asynccontextmanager
    async def place(self, target: AskedService, size_bytes: int) -> AsyncIterator[float]:
        """Holds a place for a request; yields its deadline on the event loop's clock.

        Raises:
            NotHeld: a limit is reached.
        """
        self._admit(target.service, size_bytes)
        try:
            yield asyncio.get_running_loop().time() + self.bounds.seconds
        finally:
            self.held[target.service] -= 1
            self._size_bytes -= size_bytes

    async def ready(self, target: AskedService, deadline: float) -> str:
        """Waits for a ready pod; returns the name of its Service. Requests for the same backends share one wait.

        Raises:
            NotHeld: no pod was ready before the deadline.
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
        """The error for a request for which no pod was ready in time."""
        self.refused[target.service] += 1
        do = f"See `kubectl describe tritonservice {target.service}`."
        message = f"{target.service} had no pod, and none was ready within {self.bounds.seconds:g} s. {do}"
        return NotHeld(HoldingLimit.LATE, message)

    def _admit(self, service: str, size_bytes: int) -> None:
        if service not in self.arrived and len(self.arrived) >= _SERVICES:
            raise NotHeld(HoldingLimit.FULL, f"requests of {_SERVICES} services have been held: restart the activator")
        self.arrived[service] += 1
        if self.held[service] >= self.bounds.requests:
            why = f"{self.bounds.requests} requests already wait for a pod of {service}, which is the limit"
        elif self._size_bytes + size_bytes > self.bounds.size_bytes:
            why = f"the waiting requests would have {self._size_bytes + size_bytes} bytes, more than the limit"
            why += f" of {self.bounds.size_bytes}"
        else:
            self.held[service] += 1
            self._size_bytes += size_bytes
            return
        self.refused[service] += 1
        raise NotHeld(HoldingLimit.FULL, f"{why}: try again when a pod is ready")

    async def _wait(self, target: AskedService) -> str:
        """Polls the backends as long as a request waits."""
        while self.held[target.service]:
            if name := await self._first(target.backends):
                self._ready[target.backends] = name, time.monotonic()
                return name
            await asyncio.sleep(_POLL_S)
        return ""

    async def _first(self, backends: Sequence[str]) -> str:
        ready = await asyncio.gather(*map(self._is_ready, backends))
        return next((name for name, is_ready in zip(backends, ready, strict=True) if is_ready), "")
