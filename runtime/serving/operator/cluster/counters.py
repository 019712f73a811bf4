"""The counters of a revision's servers."""

from contextlib import suppress

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.records.measurement import Counts
from shiplift.runtime.serving.kubernetes.objects.names import GRPC
from shiplift.runtime.serving.operator.evidence import Counters
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.triton.client import TritonClient

_ANSWER_S = 5.0  # for a pod to answer


def counters_of(observed: Observed, revision: str) -> Counters:
    """The counters of a revision's ready pods; a pod that does not answer has none."""
    counters: dict[str, Counts] = {}
    for pod in observed.ready(revision):
        with TritonClient(f"{pod.address}:{GRPC}", timeout_s=_ANSWER_S) as client, suppress(ShipliftError):
            counters[pod.name] = client.counts(serving_name(observed.spec.model if observed.spec else ""))
    return counters


def requests_between(before: Counters, after: Counters) -> int:
    """How many requests were counted in between by the pods that answered both times."""
    return sum(max(0, after[pod].total - before[pod].total) for pod in after if pod in before)
