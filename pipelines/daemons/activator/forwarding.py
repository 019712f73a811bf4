"""Shared by both protocols of the activator: which service a request is for, and where its Services are."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from shiplift.pipelines.daemons.activator.holding import AskedService
from shiplift.runtime.base.plain_http import NO_AUTHORITIES
from shiplift.runtime.serving.kubernetes.objects.activator import BACKENDS_HEADER, SERVICE_HEADER
from shiplift.runtime.serving.kubernetes.objects.names import GRPC, HTTP

OWN_PREFIX = "shiplift-"  # of the headers that routes add
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SERVICE_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_MOST_BACKENDS = 16
_ANSWER_S = 1.0


@dataclass(frozen=True)
class Addresses:
    """Where the Services of a namespace are, as `host:port`."""

    namespace: str

    def http(self, name: str) -> str:
        """The HTTP address of a Service."""
        return f"{name}.{self.namespace}.svc:{HTTP}"

    def grpc(self, name: str) -> str:
        """The gRPC address of a Service."""
        return f"{name}.{self.namespace}.svc:{GRPC}"


def target_of(headers: Mapping[str, str]) -> AskedService | None:
    """The service and backends that a route wrote into a request's headers; None if they are missing or not names."""
    service, backends = headers.get(SERVICE_HEADER, ""), headers.get(BACKENDS_HEADER, "").split(",")
    if not _SERVICE_NAME.fullmatch(service) or len(backends) > _MOST_BACKENDS:
        return None
    # A backend is a single DNS label, without dots: a forged header can't send a request out of the namespace.
    return AskedService(service=service, backends=tuple(backends)) if all(map(_NAME.fullmatch, backends)) else None


class Readiness:
    """Asks a Service whether a pod behind it is ready. If none is, the Service has no endpoints, so no one answers."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        limits = httpx.Limits(max_keepalive_connections=0)  # a new connection reaches a pod that is an endpoint now
        self._client = httpx.AsyncClient(timeout=_ANSWER_S, trust_env=False, verify=NO_AUTHORITIES, limits=limits)

    async def __call__(self, name: str) -> bool:
        """Whether the server behind a Service takes requests."""
        try:
            answer = await self._client.get(f"http://{self._addresses.http(name)}/v2/health/ready")
        except httpx.HTTPError:
            return False
        return answer.status_code == 200

    async def close(self) -> None:
        """Closes the client."""
        await self._client.aclose()
