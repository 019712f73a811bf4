"""The requests that an author logged, written for a load generator.

The author's file is untrusted data, so only a sandbox reads it.
"""

from pathlib import Path

from shiplift.runtime.confinement.policy import PARSE, Entry, SandboxLimits
from shiplift.runtime.confinement.workplace import workplace
from shiplift.runtime.host.outputs import require_regular
from shiplift.runtime.measure.requests import REQUESTS
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.model import RecordedRequests
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.measurement import Load
from shiplift.runtime.store.artifacts import ArtifactStore

_READ = Entry("shiplift.runtime.measure.requests:write_logged", PARSE)
_LIMITS = SandboxLimits(memory_mb=4096, timeout_s=300, task="reading the logged requests", settings="")


def write_recorded(
    site: Site, store: ArtifactStore, package: Package, recorded: RecordedRequests, load: Load, path: Path
) -> tuple[int, ...]:
    """Writes recorded requests for a package to `path`. `recorded` must have a file.

    Returns the lengths from which buckets are chosen, if the package pads requests. For texts, only a server knows
    them.

    Raises:
        DataInvalid: the requests can't be read, or do not fit the model.
        SandboxLimit: reading them takes too much memory or time.
    """
    assert recorded.file is not None  # noqa: S101 - callers check it
    with workplace(_READ, path.parent, site.sandbox) as place:
        order = {
            "site": site.model_dump(mode="json"),
            "protocol": load.protocol,
            "package": package.model_dump(mode="json"),
            "file": str(store.fetch(recorded.file, place.folder / "logged")),
            "name": recorded.name,
            "sequence_length": load.sequence_length,
            "out": str(place.sandbox.work),
        }
        result, _ = place.sandbox.run(order, _LIMITS)
        require_regular(place.sandbox.work, REQUESTS)
        (place.sandbox.work / REQUESTS).rename(path)
    return tuple(map(int, result["lengths"]))
