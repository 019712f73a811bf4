"""Sends requests through a model's front, on each of its routes, as clients do.

Without a golden request, a server is asked which version it serves: that shows the route just as well. It is also what
HTTP routes are asked for a model that answers in pieces, because Triton streams over gRPC alone.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager

import httpx
from tritonclient.utils import InferenceServerException

from shiplift.runtime.base.errors import NotFound, ShipliftError, Temporary
from shiplift.runtime.base.names import bracketed, serving_name
from shiplift.runtime.base.plain_http import NO_AUTHORITIES
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.kubernetes.objects.front import hostnames
from shiplift.runtime.serving.kubernetes.objects.names import GRPC, HTTP
from shiplift.runtime.serving.operator.evidence import Route, TrafficSample
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.triton.client import OWN_REQUESTS, TritonClient
from shiplift.runtime.serving.triton.http_client import TritonHttpClient

_AGAIN_S = 0.05  # pause after a wrong answer
_HANGS_S = 0.25  # how long to wait before the next request is sent; doubled each time
_SAMPLE_S = 20.0  # for all requests of a sample: a slow model gets fewer
_STARTING = ("StatusCode.UNIMPLEMENTED", "StatusCode.UNAVAILABLE", "StatusCode.NOT_FOUND")  # a proxy without the route
Connecting = Callable[[Observed, Package, Arrays | None, float], AbstractContextManager[Callable[[], int]]]


@contextmanager
def _over_grpc(
    observed: Observed, package: Package, row: Arrays | None, timeout_s: float
) -> Iterator[Callable[[], int]]:
    host = hostnames(package.model, observed.cluster)[2]
    gateway = observed.cluster.gateway is not None
    address, authority = (observed.address, host) if gateway else (host, "")
    at = f"{bracketed(address)}:{GRPC}"
    with TritonClient(at, authority=authority, timeout_s=timeout_s, request_id=OWN_REQUESTS) as client:
        yield _asking(client, package, row)


@contextmanager
def _over_http(
    observed: Observed, package: Package, row: Arrays | None, timeout_s: float, *, by_path: bool = False
) -> Iterator[Callable[[], int]]:
    host = hostnames(package.model, observed.cluster)[2]
    address = observed.address if observed.cluster.gateway else host
    headers = {} if by_path else {"Host": host}
    url = f"http://{bracketed(address)}:{HTTP}"
    with httpx.Client(base_url=url, headers=headers, timeout=timeout_s, trust_env=False, verify=NO_AUTHORITIES) as http:
        yield _asking(
            TritonHttpClient(http, request_id=OWN_REQUESTS), package, None if package.signature.streamed else row
        )


@contextmanager
def _by_path(observed: Observed, package: Package, row: Arrays | None, timeout_s: float) -> Iterator[Callable[[], int]]:
    with _over_http(observed, package, row, timeout_s, by_path=True) as send:
        yield send


def _asking(client: TritonClient | TritonHttpClient, package: Package, row: Arrays | None) -> Callable[[], int]:
    if row is None:
        return lambda: client.default_version(serving_name(package.model))
    return lambda: client.answering_version(package, row)


CLIENTS: dict[Route, Connecting] = {"gRPC": _over_grpc, "HTTP": _over_http, "HTTP by path": _by_path}


def sample_of(send: Callable[[], int], version: int, requests: int) -> TrafficSample:
    """Sends requests one by one and counts which version answers, until one fails."""
    deadline, answered, asked = time.monotonic() + _SAMPLE_S, 0, 0
    while asked < requests and time.monotonic() < deadline:
        asked += 1
        try:
            answered += send() == version
        except (InferenceServerException, ShipliftError) as error:
            return TrafficSample(asked=asked, answered=answered, failure=_line(error), unreachable=_is_starting(error))
    return TrafficSample(asked=asked, answered=answered)


def answer_of(send: Callable[[], int], versions: Sequence[int]) -> str:
    """What is wrong with the answer to one request; empty if one of these versions gave it."""
    try:
        version = send()
    except (InferenceServerException, ShipliftError, httpx.HTTPError) as error:
        return f"does not answer: {_line(error)}"
    wanted = " or ".join(map(str, versions))
    return "" if version in versions else f"is answered by version {version} instead of {wanted}"


def first_right(ask: Callable[[], str], patience_s: float) -> str:
    """Asks until an answer is right, at most for `patience_s`; returns what was wrong with the last one, or empty.

    A request that hangs, for example on a connection to a proxy that has just ended, does not hold up the next one.
    """
    if not patience_s:
        return ask()
    ends, pause_s, last = time.monotonic() + patience_s, _HANGS_S, ""
    pool = ThreadPoolExecutor(thread_name_prefix="ask")
    asked: set[Future[str]] = set()
    try:
        while True:
            asked.add(pool.submit(ask))
            answered, asked = wait(asked, timeout=pause_s, return_when=FIRST_COMPLETED)
            pause_s *= 1 if answered else 2  # hanging requests stay few
            for answer in answered:
                last = answer.result()
                if not last:
                    return ""
            if answered and time.monotonic() > ends:
                return last
            if answered:
                time.sleep(_AGAIN_S)
    finally:
        pool.shutdown(wait=False)


def _is_starting(error: Exception) -> bool:
    """Whether the front may not know the model yet, because a new route takes a moment to reach the proxies."""
    if isinstance(error, InferenceServerException):
        return error.status() in _STARTING
    return isinstance(error, (Temporary, NotFound))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
