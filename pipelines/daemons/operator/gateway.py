"""Notices at once when the gateway stops accepting connections, and when it accepts them again.

All services share the gateway, so a heartbeat every few seconds is too slow for it: while its proxies restart, no
request is answered, and each status that still says Ready is wrong. Opening a connection costs next to nothing.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from shiplift.runtime.serving.kubernetes.objects.names import GRPC, HTTP
from shiplift.runtime.serving.operator.observed import GatewaySeen

POLL_S, _POLL_AWAY_S = 0.1, 0.05  # the latter while the gateway is away, so that its return is noticed at once
_AGAIN_S = 0.05  # a failed connection is tried once more: one lost packet is not an outage
_CONNECT_S, _LONGER_S = 0.25, 0.3


class GatewayWatch:
    """Connects to the gateway's ports from time to time; `address` returns "" while the gateway has no address."""

    def __init__(self, address: Callable[[], str], *, ports: tuple[int, ...] = (GRPC, HTTP)) -> None:
        self._address, self._ports = address, ports
        self._seen = GatewaySeen()

    def seen(self) -> GatewaySeen:
        """The last observation."""
        return self._seen

    def run(self, stop: threading.Event, wake: Callable[[], object]) -> None:
        """Watches until `stop` is set; calls `wake` on every change."""
        while not stop.wait(POLL_S if self._seen.accepts else _POLL_AWAY_S):
            if self.look():
                wake()

    def look(self) -> bool:
        """Checks once; returns whether anything has changed."""
        address = self._address()
        if not address:
            return False
        accepts = self._accepts(address)
        if accepts == self._seen.accepts:
            return False
        self._seen = GatewaySeen(accepts=accepts, changed_at=time.time())
        return True

    def _accepts(self, address: str) -> bool:
        if all(_connects(address, port, _CONNECT_S) for port in self._ports):
            return True
        if not self._seen.accepts:
            return False
        time.sleep(_AGAIN_S)
        return all(_connects(address, port, _LONGER_S) for port in self._ports)


def _connects(address: str, port: int, timeout_s: float) -> bool:
    with suppress(OSError), socket.create_connection((address, port), timeout=timeout_s):
        return True
    return False
