"""Measures what a decision asks for: golden answers, who answers through the front, and servers' counters.

A measurement that fails leaves the evidence as it is, and is asked for again.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from shiplift.runtime.base.errors import (
    ArtifactCorrupt,
    GoldenMismatch,
    NotFound,
    ServerFailed,
    ShipliftError,
)
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.model.tensors import Arrays, first_requests, inputs_in
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.kubernetes.objects.names import GRPC
from shiplift.runtime.serving.kubernetes.workloads import golden_of
from shiplift.runtime.serving.operator.cluster.counters import counters_of, requests_between
from shiplift.runtime.serving.operator.cluster.front_clients import CLIENTS, answer_of, first_right, sample_of
from shiplift.runtime.serving.operator.cluster.golden import GoldenRequests
from shiplift.runtime.serving.operator.cluster.latencies import demand_of, latencies_of
from shiplift.runtime.serving.operator.cluster.sleeping import asleep_on
from shiplift.runtime.serving.operator.evidence import Evidence, Protocol, Route, TrafficSample
from shiplift.runtime.serving.operator.measurements import (
    AskFront,
    AskPods,
    AskRoutes,
    CheckAnswers,
    CheckServer,
    Measurement,
    ReadCounters,
    ReadDemand,
    ReadLatency,
    ReadTraffic,
    with_answers,
    with_beat,
    with_counters,
    with_demand,
    with_move,
    with_routes,
    with_share,
    with_traffic,
)
from shiplift.runtime.serving.operator.observed import Observed, TargetPods
from shiplift.runtime.serving.operator.upkeep import latency
from shiplift.runtime.serving.triton.client import OWN_REQUESTS, TritonClient, check_package

_BEAT_S = 5.0  # for a pod to answer
_REQUEST_S = 60.0  # for each request of a sample
_THREADS = 8
_PROTOCOLS: tuple[Protocol, ...] = ("gRPC", "HTTP")
_STREAMING: tuple[Protocol, ...] = ("gRPC",)  # Triton answers in pieces


class Measurer:
    """Measures services. See `operator.measurements` for what each measurement means."""

    def __init__(self, *, golden: "Callable[[Package, str], Arrays] | None" = None) -> None:
        self._golden = GoldenRequests(golden or golden_of)

    def measure(self, observed: Observed, wanted: Measurement, evidence: Evidence) -> Evidence:
        """The evidence with what was measured."""
        if isinstance(wanted, CheckAnswers):
            return self._check(observed, wanted, evidence)
        if isinstance(wanted, AskFront):
            return self._ask_front(observed, wanted, evidence)
        if isinstance(wanted, ReadCounters | ReadTraffic | ReadLatency | ReadDemand):
            return _read(observed, wanted, evidence)
        if isinstance(wanted, CheckServer):
            return self._check_server(observed, wanted, evidence)
        if isinstance(wanted, AskRoutes):
            return self._ask_routes(observed, wanted, evidence)
        return self._ask_pods(observed, wanted, evidence)

    def _check(self, observed: Observed, wanted: CheckAnswers, evidence: Evidence) -> Evidence:
        groups = observed.groups(wanted.revision)
        if not groups:
            return evidence
        try:
            for group in groups:
                golden, name = self._golden.of(group), serving_name(group.package.model)
                with TritonClient(f"{group.name}.{observed.namespace}.svc:{GRPC}", request_id=OWN_REQUESTS) as client:
                    check_package(client, name, group.package, golden)
        except (GoldenMismatch, ServerFailed, ArtifactCorrupt, NotFound) as error:
            return with_answers(evidence, wanted.revision, f"{str(error).rstrip('.')}.")
        except ShipliftError:  # nothing answers yet
            return evidence
        return with_answers(evidence, wanted.revision, "")

    def _check_server(self, observed: Observed, wanted: CheckServer, evidence: Evidence) -> Evidence:
        group = next((each for each in observed.groups(wanted.revision) if each.name == wanted.group), None)
        if group is None:
            return evidence
        try:
            golden = self._golden.of(group)
        except (ArtifactCorrupt, NotFound) as error:
            return with_move(evidence, wanted, str(error))
        answers = (_beat(group.package, golden, address) for address in wanted.addresses)
        return with_move(evidence, wanted, next((message for _, message in answers if message), ""))

    def _ask_front(self, observed: Observed, wanted: AskFront, evidence: Evidence) -> Evidence:
        groups = observed.groups(wanted.target)
        if not groups:
            return evidence
        package = groups[0].package
        row = _row(package, self._golden.of(groups[0]))
        grew: dict[str, int] = dict.fromkeys(wanted.weights, 0)
        samples: dict[Protocol, TrafficSample] = {}
        for protocol in _STREAMING if package.signature.streamed else _PROTOCOLS:
            before = {name: counters_of(observed, name) for name in wanted.weights}
            with CLIENTS[protocol](observed, package, row, _REQUEST_S) as send:
                sample = sample_of(send, package.version, wanted.requests)
            more = {name: requests_between(before[name], counters_of(observed, name)) for name in wanted.weights}
            grew = {name: grew[name] + more[name] for name in grew}
            samples[protocol] = sample if _tells(observed, wanted, package) else _bycounters_of(sample, more, wanted)
        return with_share(evidence, wanted, samples, grew, time.time())

    def _ask_pods(self, observed: Observed, wanted: AskPods, evidence: Evidence) -> Evidence:
        group = next((each for each in observed.groups(wanted.revision) if each.name == wanted.group), None)
        if group is None:
            return evidence
        golden = first_requests(self._golden.of(group), 1)
        with ThreadPoolExecutor(min(_THREADS, len(wanted.pods))) as pool:
            beats = list(pool.map(lambda pod: _beat(group.package, golden, pod[1]), wanted.pods))
        for (pod, _), (wrong, message) in zip(wanted.pods, beats, strict=True):
            evidence = with_beat(evidence, pod, wrong, f"{pod} {message}" if message else "")
        return evidence

    def _ask_routes(self, observed: Observed, wanted: AskRoutes, evidence: Evidence) -> Evidence:
        groups = observed.groups(wanted.revision)
        if not groups:
            return evidence
        package = groups[0].package
        row = None if wanted.asleep else self._row_of(groups[0], at_once=wanted.patience_s > 0)

        def once(route: Route) -> str:
            with CLIENTS[route](observed, package, row, _BEAT_S) as send:
                return answer_of(send, wanted.versions)

        def ask(route: Route) -> str:
            if wanted.asleep:
                return asleep_on(observed, route, _BEAT_S)
            return first_right(lambda: once(route), wanted.patience_s)

        routes: list[Route] = list(CLIENTS) if observed.cluster.gateway else list(_PROTOCOLS)
        with ThreadPoolExecutor(len(routes)) as pool:
            return with_routes(evidence, dict(zip(routes, pool.map(ask, routes), strict=True)))

    def _row_of(self, group: TargetPods, *, at_once: bool) -> Arrays | None:
        """The inputs of the first golden request; None if they can't be had: routes must be asked all the same.

        `at_once`: doesn't wait for them, because a route is expected back, which must be reported at once.
        """
        try:
            return _row(group.package, self._golden.of(group, at_once=at_once))
        except ShipliftError:
            return None


def _read(
    observed: Observed, wanted: ReadCounters | ReadTraffic | ReadLatency | ReadDemand, evidence: Evidence
) -> Evidence:
    """The evidence after reading the servers' own counters."""
    if isinstance(wanted, ReadDemand):
        reading = demand_of(observed, wanted.revision)
        return with_demand(evidence, reading) if reading else evidence
    if isinstance(wanted, ReadCounters):
        counters = {name: counters_of(observed, name) for name in wanted.revisions}
        return with_counters(evidence, wanted, counters, time.time())
    if isinstance(wanted, ReadTraffic):
        return with_traffic(evidence, wanted, counters_of(observed, wanted.revision), time.time())
    requests, p99_ms = latencies_of(observed, wanted.revision)
    read = latency.after(evidence.latency, requests, p99_ms, wanted, time.time())
    return replace(evidence, latency=read)


def _row(package: Package, golden: Arrays) -> Arrays:
    """The inputs of the first golden request."""
    return {name: array[:1] for name, array in inputs_in(golden, package.signature).items()}


def _beat(package: Package, golden: Arrays, address: str) -> tuple[bool, str]:
    """Whether a pod's answer was wrong, and what the problem is; an empty message if there is none."""
    try:
        with TritonClient(f"{address}:{GRPC}", timeout_s=_BEAT_S, request_id=OWN_REQUESTS) as client:
            check_package(client, serving_name(package.model), package, golden)
    except GoldenMismatch as error:
        return True, f"answers wrongly: {error}"
    except ShipliftError as error:
        return False, f"does not answer golden requests: {error}"
    return False, ""


def _tells(observed: Observed, wanted: AskFront, package: Package) -> bool:
    """Whether the version in an answer identifies the target: two revisions may serve the same version."""
    others = [observed.package(name) for name in wanted.weights if name != wanted.target]
    return all(other is None or other.version != package.version for other in others)


def _bycounters_of(sample: TrafficSample, more: dict[str, int], wanted: AskFront) -> TrafficSample:
    """The same sample, judged by which revision's servers counted requests meanwhile."""
    if sample.failure:
        return sample
    return TrafficSample(asked=sum(more.values()), answered=more[wanted.target])
