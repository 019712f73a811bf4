"""What production keeps of a package's requests, as its spec says."""

from shiplift.runtime.records.capturing import Capturing
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.spec.capturing import Capture


def with_capture(package: Package, capture: Capture) -> Package:
    """The package with what production keeps of its requests; none of them without a share."""
    if not capture.share:
        return package.model_copy(update={"capturing": None})
    capturing = Capturing(
        share=capture.share,
        limit_bytes=capture.limit_bytes,
        retention_s=capture.retention_s,
        hash=capture.hash,
        omit=capture.omit,
        key=capture.key,
    )
    return package.model_copy(update={"capturing": capturing})
