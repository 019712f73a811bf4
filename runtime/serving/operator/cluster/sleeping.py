"""Checks that the activator answers on each route of a service without pods, with requests that it does not pass on."""

import grpc
import httpx

from shiplift.runtime.base.names import bracketed, serving_name
from shiplift.runtime.base.plain_http import NO_AUTHORITIES
from shiplift.runtime.serving.kubernetes.objects.activator import ANSWERED_HEADER, PROBE_HEADER
from shiplift.runtime.serving.kubernetes.objects.front import hostnames
from shiplift.runtime.serving.kubernetes.objects.names import GRPC, HTTP
from shiplift.runtime.serving.operator.evidence import Route
from shiplift.runtime.serving.operator.observed import Observed

_LIVE = "/inference.GRPCInferenceService/ServerLive"
_PROBE = {PROBE_HEADER: "1"}


def asleep_on(observed: Observed, route: Route, timeout_s: float) -> str:
    """What is wrong with a route that should lead to the activator; empty if it answers."""
    try:
        by = _over_grpc(observed, timeout_s) if route == "gRPC" else _over_http(observed, route, timeout_s)
    except grpc.RpcError as error:
        return f"does not answer: {' '.join(str(error.details()).split())[:300]}"
    except httpx.HTTPError as error:
        return f"does not answer: {str(error) or type(error).__name__}"
    return "" if by == observed.name else "does not lead to the activator"


def _over_grpc(observed: Observed, timeout_s: float) -> str:
    """The service that the activator names."""
    host = _host(observed)
    with grpc.insecure_channel(f"{bracketed(observed.address)}:{GRPC}", [("grpc.default_authority", host)]) as channel:
        _, call = channel.unary_unary(_LIVE).with_call(b"", metadata=tuple(_PROBE.items()), timeout=timeout_s)
        return str(dict(call.initial_metadata()).get(ANSWERED_HEADER, ""))


def _over_http(observed: Observed, route: Route, timeout_s: float) -> str:
    model = observed.spec.model if observed.spec else ""
    url = f"http://{bracketed(observed.address)}:{HTTP}/v2/models/{serving_name(model)}"
    headers = _PROBE | ({} if route == "HTTP by path" else {"Host": _host(observed)})
    with httpx.Client(timeout=timeout_s, trust_env=False, verify=NO_AUTHORITIES) as client:
        return str(client.get(url, headers=headers).headers.get(ANSWERED_HEADER, ""))


def _host(observed: Observed) -> str:
    return hostnames(observed.spec.model if observed.spec else "", observed.cluster)[2]
