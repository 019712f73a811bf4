"""What a served model may use by default: tuning has seen what it needs."""

import math

from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.limits import Limits

_TIMES = 2  # of the peak: other requests may be larger than those of tuning
_LEAST_MB = 1024  # a model that needs little is given this, so that an unusual request does not end it


def tuned_limits(package: Package, asked: Limits, peak_mb: float) -> Limits:
    """The limits of a package whose server used at most `peak_mb` while it was measured; `asked` are the spec's.

    Nothing is added where no server would enforce it.
    """
    if asked.memory_mb is not None or not peak_mb or not _enforced(package):
        return package.limits
    memory = max(_LEAST_MB, math.ceil(_TIMES * peak_mb))
    highest = package.limits.memory_mb  # the site's: the spec says nothing
    return package.limits.model_copy(update={"memory_mb": memory if highest is None else min(memory, highest)})


def _enforced(package: Package) -> bool:
    """Whether the package's model has a process of its own, whose memory is limited."""
    if not package.tunable:
        return False
    if package.python_environment is not None:
        return not package.member_models
    return package.server == "bundled" and not package.member_models
