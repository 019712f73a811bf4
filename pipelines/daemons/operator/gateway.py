"""Notices at once that the gateway takes no connections any more, or takes them again.

A heartbeat every few seconds is too seldom for what all services share: while its proxies start again, nobody is
answered, and a status that still says Ready is wrong for as long. Opening a connection costs next to nothing.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from shiplift.runtime.serving.kubernetes.objects.names import GRPC, HTTP
from shiplift.runtime.serving.operator.observed import GatewaySeen

POLL_S, _POLL_AWAY_S = 0.1, 0.05  # the latter while it takes none: its return is to be told at once
_AGAIN_S = 0.05  # a connection that fails is tried once more: one lost packet is no outage
_CONNECT_S, _LONGER_S = 0.25, 0.3


class GatewayWatch:
    """Connects to the gateway's ports from time to time; `address` is empty while it has none."""

    def __init__(self, address: Callable[[], str], *, ports: tuple[int, ...] = (GRPC, HTTP)) -> None:
        self._address, self._ports = address, ports
        self._seen = GatewaySeen()

    def seen(self) -> GatewaySeen:
        """What was seen last."""
        return self._seen

    def run(self, stop: threading.Event, wake: Callable[[], object]) -> None:
        """Watches until `stop` is set; `wake` is called when something has changed."""
        while not stop.wait(POLL_S if self._seen.accepts else _POLL_AWAY_S):
            if self.look():
                wake()

    def look(self) -> bool:
        """Looks once; returns whether something has changed."""
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
