"""What a load test of a pipeline says of its members: how often each was asked, and how long it queued and computed.

The server counts that itself, per model, whoever asks: clients, an ensemble, or BLS.
"""

from collections.abc import Mapping

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.records.kinds.package import Package, PipelinePackage
from shiplift.runtime.records.measurement import MemberLoad, Timings
from shiplift.runtime.serving.triton.client import TritonClient


def timings_of(client: TritonClient, package: Package) -> dict[str, Timings]:
    """The counters of a pipeline and its members on a server, by name there; none if the package is no pipeline."""
    if not isinstance(package, PipelinePackage):
        return {}
    names = [serving_name(package.model), *(member.served for member in package.members)]
    return {name: client.timings(name) for name in names}


def member_loads(
    package: Package, before: Mapping[str, Timings], after: Mapping[str, Timings]
) -> tuple[MemberLoad, ...]:
    """Each member's part between two looks at the counters; none if nobody asked the pipeline meanwhile."""
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
