"""What a load test of a pipeline records per member: how often it was called, and how long it queued and computed.

The server itself counts this per model, whether the caller is a client, an ensemble or BLS.
"""

from collections.abc import Mapping

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.records.kinds.package import Package, PipelinePackage
from shiplift.runtime.records.measurement import MemberLoad, Timings
from shiplift.runtime.serving.triton.client import TritonClient


def timings_of(client: TritonClient, package: Package) -> dict[str, Timings]:
    """The counters of a pipeline and its members on a server, by their names there; none if it is not a pipeline."""
    if not isinstance(package, PipelinePackage):
        return {}
    names = [serving_name(package.model), *(member.served for member in package.members)]
    return {name: client.timings(name) for name in names}


def member_loads(
    package: Package, before: Mapping[str, Timings], after: Mapping[str, Timings]
) -> tuple[MemberLoad, ...]:
    """Each member's share between two readings of the counters; none if no request reached the pipeline in between."""
    grew = {name: after[name].since(before[name]) for name in after if name in before}
    whole = grew.get(serving_name(package.model))
    if whole is None or not whole.requests or not isinstance(package, PipelinePackage):
        return ()
    return tuple(
        MemberLoad(
            name=member.name,
            model=member.model,
            version=member.version,
            requests_per_request=grew[member.served].requests / whole.requests,
            batch=grew[member.served].rows / max(1, grew[member.served].executions),
            queue_ms=grew[member.served].queue_ms / max(1, grew[member.served].requests),
            compute_ms=grew[member.served].compute_ms / max(1, grew[member.served].requests),
        )
        for member in package.members
    )
