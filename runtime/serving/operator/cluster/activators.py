"""Asks the activator how many requests of each service it holds, for all services at once."""

import socket
import threading
import time
from collections.abc import Callable, Iterable

import httpx
import structlog

from shiplift.runtime.base.names import bracketed
from shiplift.runtime.base.plain_http import NO_AUTHORITIES
from shiplift.runtime.serving.kubernetes.objects.activator import ADMIN, HEADLESS
from shiplift.runtime.serving.operator.observed import HeldRequests

POLL_S = 0.5
_ANSWER_S = 2.0
_LOG_S = 60.0
Counts = dict[str, dict[str, int]]  # by service: `held` now, and `arrived` since the activator began


class Activators:
    """The reports of the activator's pods.

    `addresses` are those of all pods. If one does not answer, it may hold requests, so nothing is known then.
    """

    def __init__(self, addresses: Callable[[], Iterable[str]]) -> None:
        self._addresses = addresses
        self._client = httpx.Client(timeout=_ANSWER_S, trust_env=False, verify=NO_AUTHORITIES)
        self._arrived: dict[tuple[str, str], int] = {}  # by address and service
        self._known: dict[str, HeldRequests] = {}
        self._answered_at, self._logged_at = 0.0, 0.0

    def of(self, service: str) -> HeldRequests:
        """What is known about a service."""
        known = self._known.get(service, HeldRequests())
        return HeldRequests(held=known.held, came_at=known.came_at, answered_at=self._answered_at)

    def run(self, stop: threading.Event, wake: Callable[[str], object]) -> None:
        """Asks until `stop` is set; calls `wake` with each service for which a request has come or waits."""
        while not stop.wait(POLL_S):
            try:
                for service in self.poll():
                    wake(service)
            except (OSError, httpx.HTTPError, ValueError) as error:
                if time.monotonic() - self._logged_at > _LOG_S:
                    structlog.get_logger().warning("failed", part="activator", error=str(error) or repr(error))
                    self._logged_at = time.monotonic()

    def poll(self) -> list[str]:
        """Asks once; returns the services for which a request has come or waits.

        Raises:
            OSError, HTTPError, ValueError: a pod did not answer, or the activator has no pod.
        """
        answers = {address: self._ask(address) for address in sorted(self._addresses())}
        now, called = time.time(), []
        for service in {service for counts in answers.values() for service in counts} | self._known.keys():
            held = sum(counts[service]["held"] for counts in answers.values() if service in counts)
            news = [self._came(address, service, counts) for address, counts in answers.items()]
            came = any(news)
            before = self._known.get(service, HeldRequests()).came_at
            self._known[service] = HeldRequests(held=held, came_at=now if came else before)
            if came or held:
                called.append(service)
        self._arrived = {key: count for key, count in self._arrived.items() if key[0] in answers}
        self._answered_at = now if answers else self._answered_at
        return called

    def _came(self, address: str, service: str, counts: Counts) -> bool:
        """Whether more requests have come to a pod; one that is new, or has restarted, has counted from 0.

        What a pod had counted before this process asked for the first time does not matter.
        """
        arrived = counts.get(service, {}).get("arrived", 0)
        last = self._arrived.get((address, service), 0 if self._answered_at else arrived)
        self._arrived[address, service] = arrived
        return arrived > (last if arrived >= last else 0)

    def _ask(self, address: str) -> Counts:
        counts: Counts = self._client.get(f"http://{address}/held").raise_for_status().json()
        return counts


def activator_pods(namespace: str) -> Callable[[], list[str]]:
    """Looks up the addresses of the activator's pods, as `host:port`."""
    host = f"{HEADLESS}.{namespace}.svc"

    def look_up() -> list[str]:
        known = {str(entry[4][0]) for entry in socket.getaddrinfo(host, ADMIN, type=socket.SOCK_STREAM)}
        return [f"{bracketed(address)}:{ADMIN}" for address in sorted(known)]

    return look_up
