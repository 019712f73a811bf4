"""The activator: holds requests to services that are scaled to zero, and forwards them once a pod is ready.

    python -m shiplift.pipelines.daemons.activator --namespace shiplift-serving

It has no permissions in the cluster. The operator asks it how many requests wait, and starts the pods.
"""

import argparse
import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc.aio
import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from shiplift.pipelines.daemons.activator.forwarding import Addresses, Readiness
from shiplift.pipelines.daemons.activator.holding import Holding, HoldingLimits
from shiplift.pipelines.daemons.activator.over_grpc import GrpcFront
from shiplift.pipelines.daemons.activator.over_http import HttpFront
from shiplift.runtime.base.daemon import log_as_json
from shiplift.runtime.host.listeners import ConnectionLimits, listener
from shiplift.runtime.serving.kubernetes.objects.activator import ADMIN
from shiplift.runtime.serving.kubernetes.objects.names import GRPC, HTTP

_HEADER_BYTES = 64 << 10
_LIMITS = ConnectionLimits(connections=8192, header_timeout_s=10)
_CALLS = 1000  # gRPC calls at once: the library refuses more
Application = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


class _Server(uvicorn.Server):
    """One of several servers in an event loop. The process handles signals for all of them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signal handlers alone."""
        yield


class _Metrics(Collector):
    def __init__(self, holding: Holding) -> None:
        self._holding = holding

    def collect(self) -> Iterator[Metric]:
        """The numbers of requests held, arrived and refused, by service."""
        held = GaugeMetricFamily("shiplift_activator_held", "Requests held or being forwarded.", labels=["service"])
        arrived = CounterMetricFamily("shiplift_activator_arrived", "Requests that arrived.", labels=["service"])
        refused = CounterMetricFamily("shiplift_activator_refused", "Requests that were refused.", labels=["service"])
        for family, values in (
            (held, self._holding.held),
            (arrived, self._holding.arrived),
            (refused, self._holding.refused),
        ):
            for service, count in sorted(values.items()):
                family.add_metric([service], count)
            yield family


def _admin(holding: Holding) -> Application:
    """`/held` for the operator, `/metrics` for Prometheus, and `/healthz`."""
    registry = CollectorRegistry()
    registry.register(_Metrics(holding))

    def body_of(path: str) -> bytes | None:
        if path == "/held":
            counts = {name: {"held": holding.held[name], "arrived": count} for name, count in holding.arrived.items()}
            return json.dumps(counts).encode()
        return {"/metrics": lambda: generate_latest(registry), "/healthz": lambda: b"ok\n"}.get(path, lambda: None)()

    async def answer(scope: dict[str, Any], _: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = body_of(scope["path"])
        status = 404 if body is None else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body or b""})

    return answer


def _uvicorn(app: Application, port: int, grace_s: float) -> _Server:
    # Gateways stand for many clients, so sources have no limit of their own.
    configuration = listener(
        app,
        "",
        port,
        _LIMITS,
        exempt=lambda _: True,
        grace_s=grace_s,
        keep_alive_s=75,
        lifespan="off",
        date_header=False,
        h11_max_incomplete_event_size=_HEADER_BYTES,
    )
    return _Server(configuration)


async def serve(
    bounds: HoldingLimits,
    addresses: Addresses,
    stop: asyncio.Event,
    *,
    ports: tuple[int, int, int] = (HTTP, GRPC, ADMIN),
) -> None:
    """Serves on these ports (HTTP, gRPC, admin) until `stop` is set, and finishes the requests that it holds."""
    readiness = Readiness(addresses)
    holding = Holding(bounds, readiness)
    over_http, over_grpc = HttpFront(holding, addresses), GrpcFront(holding, addresses)
    options = [("grpc.max_receive_message_length", bounds.size_bytes), ("grpc.max_send_message_length", -1)]
    calls = grpc.aio.server(handlers=(over_grpc,), options=options, maximum_concurrent_rpcs=_CALLS)
    calls.add_insecure_port(f"[::]:{ports[1]}")
    await calls.start()
    servers = [_uvicorn(over_http, ports[0], bounds.seconds), _uvicorn(_admin(holding), ports[2], 1)]
    running = [asyncio.create_task(server.serve()) for server in servers]
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({stopping, *running}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    for server in servers:
        server.should_exit = True
    await asyncio.gather(calls.stop(bounds.seconds), *running)
    for each in (over_http, over_grpc, readiness):
        await each.close()


def main() -> None:
    """Holds the requests of a namespace's services until SIGTERM."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--namespace", required=True, help="the namespace in which models serve")
    parser.add_argument(
        "--requests", type=int, default=HoldingLimits.requests, help="the most requests that wait for one service"
    )
    parser.add_argument("--bytes", type=int, default=HoldingLimits.size_bytes, help="the most bytes that wait in all")
    parser.add_argument("--seconds", type=float, default=HoldingLimits.seconds, help="the longest that a request waits")
    arguments = parser.parse_args()
    log_as_json()
    bounds = HoldingLimits(requests=arguments.requests, size_bytes=arguments.bytes, seconds=arguments.seconds)
    asyncio.run(_until_stopped(bounds, Addresses(arguments.namespace)))


async def _until_stopped(bounds: HoldingLimits, addresses: Addresses) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(bounds, addresses, stop)
