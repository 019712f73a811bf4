"""Why a release stopped, as types: every class has one exit code of its own, a message and a next step.

Callers decide by type (`Temporary` may be tried again, a refusal may not), pods and shells by the exit code.
Codes below 64 are verdicts about a model, 64 to 78 follow BSD's `sysexits.h`, the rest are about serving it.
"""

from collections.abc import Iterator
from typing import ClassVar


class ShipliftError(Exception):
    """An error a user can act on: `what` went wrong, with the value against its limit, and what to `do` next."""

    exit_code: ClassVar[int] = 70
    title: ClassVar[str] = "internal error"
    about_model: ClassVar[bool] = False  # it says something of the model itself: trying again won't change that

    def __init__(self, what: str, *, do: str) -> None:
        super().__init__(f"{what.rstrip('.')}. {do}")
        self.what = what
        self.do = do


class Refused(ShipliftError):
    """A gate failed: the model works, but not well enough."""

    exit_code = 20
    title = "refused by a gate"
    about_model = True


class Inconclusive(ShipliftError):
    """A gate could not decide: too few samples, unstable measurements or no data."""

    exit_code = 21
    title = "inconclusive"
    about_model = True


class NotAdmitted(ShipliftError):
    """The version lacks what a release needs, or its files are not safe."""

    exit_code = 30
    title = "not admitted"
    about_model = True


class ExportFailed(ShipliftError):
    """The model could not be converted to ONNX."""

    exit_code = 31
    title = "export failed"
    about_model = True


class SandboxLimit(ShipliftError):
    """Loading or converting the model needed more memory or time than the sandbox gives."""

    exit_code = 32
    title = "sandbox limit"
    about_model = True


class DataInvalid(ShipliftError):
    """Validation or calibration data do not fit the model."""

    exit_code = 33
    title = "data not usable"
    about_model = True


class QuantizeFailed(ShipliftError):
    """No precision of the target could be built."""

    exit_code = 34
    title = "quantization failed"
    about_model = True


class ArtifactCorrupt(ShipliftError):
    """Bytes are missing or do not have the digest that names them."""

    exit_code = 35
    title = "artifact corrupt"


class ServerFailed(ShipliftError):
    """Triton did not start, or did not load a model."""

    exit_code = 40
    title = "server failed"


class PortTaken(ShipliftError):
    """Another process listens where the stack should."""

    exit_code = 41
    title = "port taken"


class MeasurementFailed(ShipliftError):
    """The load generator died, or measured nothing."""

    exit_code = 42
    title = "measurement failed"


class GoldenMismatch(ShipliftError):
    """A loaded model answers a known request wrongly."""

    exit_code = 43
    title = "golden request answered wrongly"
    about_model = True


class CanaryFailed(ShipliftError):
    """The new version failed requests of its share of production's traffic."""

    exit_code = 47
    title = "canary failed"
    about_model = True


class RecordTooLarge(ShipliftError):
    """A record is larger than what may pass from pod to pod."""

    exit_code = 36
    title = "record too large"


class ClusterRefused(ShipliftError):
    """The cluster forbids what was asked of it, or finds it invalid."""

    exit_code = 48
    title = "cluster refused"


class ClusterUnreachable(ShipliftError):
    """There is no cluster to talk to."""

    exit_code = 68
    title = "no cluster"


class PromotionConflict(ShipliftError):
    """Another promotion came first."""

    exit_code = 44
    title = "promotion conflict"


class NothingToRollBack(ShipliftError):
    """The model has no previous champion."""

    exit_code = 45
    title = "nothing to roll back"


class DeadlineExceeded(ShipliftError):
    """A stage took longer than its placement allows."""

    exit_code = 46
    title = "deadline exceeded"


class NoMatchingTarget(ShipliftError):
    """No machine at hand is one of the release's targets."""

    exit_code = 49
    title = "no matching target"


class UsageError(ShipliftError):
    """The command line is wrong."""

    exit_code = 64
    title = "usage"


class SpecInvalid(ShipliftError):
    """The release spec is wrong; the message names each field."""

    exit_code = 65
    title = "spec not valid"
    about_model = True


class NotFound(ShipliftError):
    """The registry, or this machine, has nothing of that name."""

    exit_code = 66
    title = "not found"


class StackDown(ShipliftError):
    """The embedded stack is not running."""

    exit_code = 69
    title = "stack is down"


class StorageFull(ShipliftError):
    """No space is left where state is kept."""

    exit_code = 73
    title = "storage full"


class Temporary(ShipliftError):
    """Something outside did not answer: the same command may succeed later. The only class that is retried."""

    exit_code = 75
    title = "temporary failure"


class MissingTool(ShipliftError):
    """A program or library this machine needs is not there."""

    exit_code = 78
    title = "tool missing"


class Cancelled(ShipliftError):
    """Somebody stopped the release: Ctrl-C, SIGTERM or `shiplift cancel`."""

    exit_code = 130
    title = "cancelled"


def every_error(root: type[ShipliftError] = ShipliftError) -> Iterator[type[ShipliftError]]:
    """Each error class with an exit code of its own, the root included."""
    if "exit_code" in vars(root):
        yield root
    for kind in root.__subclasses__():
        yield from every_error(kind)


def by_exit_code(code: int) -> type[ShipliftError]:
    """The class a process ended with; `ShipliftError` for a code that is no class's own."""
    return next((kind for kind in every_error() if kind.exit_code == code), ShipliftError)
