"""What production's requests to a package are compared with, as its spec says."""

from shiplift.runtime.records.drift import Drifting
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import SitePolicy
from shiplift.runtime.spec.groups import Delivery


def with_drift(package: Package, delivery: Delivery, policy: SitePolicy) -> Package:
    """The package with what its captured requests are compared with; with nothing, if its spec has no `drift`."""
    drift, data = delivery.drift, delivery.datasets
    if drift is None or not delivery.capture.share:
        return package.model_copy(update={"drifting": None})
    drifting = Drifting(
        every_s=drift.every,
        window_s=drift.window,
        threshold=drift.threshold,
        confidence=drift.confidence_percent / 100,
        min_requests=drift.min_requests,
        columns=drift.columns,
        hook=drift.hook,
        reference=data.validation,
        reference_name=data.validation_name,
        label=delivery.data.label,
        extra=delivery.data.slices,
        unpacked_mb=policy.unpacked_mb,
        samples=policy.samples,
    )
    return package.model_copy(update={"drifting": drifting})
