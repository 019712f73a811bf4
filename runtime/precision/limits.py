"""Limits of the sandboxes that run a model: the spec's, but no more memory than this machine can spare."""

from shiplift.runtime.confinement.policy import SandboxLimits
from shiplift.runtime.host.processes import free_memory_mb
from shiplift.runtime.records.site import SitePolicy
from shiplift.runtime.spec.model import Quantization


def limits_of(settings: Quantization, task: str, policy: SitePolicy) -> SandboxLimits:
    """The limits of a `task`, from its section of the spec, and at most what the site's policy allows."""
    free, allowed = free_memory_mb(), min(settings.memory_mb, policy.memory_mb)
    return SandboxLimits(
        memory_mb=min(allowed, free),
        timeout_s=min(settings.timeout_s, policy.timeout_s),
        task=task,
        settings="quantization",
        all_memory=free < allowed,
    )
