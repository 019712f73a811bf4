"""Why a release stopped, as types: each class has its own exit code, a message and a next step.

Callers decide by type (`Temporary` may be retried, a refusal may not), pods and shells by exit code.
Codes below 64 are about a release, 64 to 78 follow BSD's `sysexits.h`, 130 is the shell's code for Ctrl-C.
"""

from collections.abc import Iterator
from typing import ClassVar

from shiplift.runtime.base.text import printable


class ShipliftError(Exception):
    """An error that the user can act on: `what` went wrong, with the value against its limit, and what to `do` next."""

    exit_code: ClassVar[int] = 70
    title: ClassVar[str] = "internal error"
    about_model: ClassVar[bool] = False  # the model is at fault, so a retry fails the same way

    def __init__(self, what: str, *, do: str) -> None:
        self.what = printable(what, lines=True)
        self.do = printable(do, lines=True)
        super().__init__(f"{self.what.rstrip('.')}{'' if self.what.endswith('?') else '.'} {self.do}")


class Refused(ShipliftError):
    """A gate failed: the model works, but not well enough."""

    exit_code = 20
    title = "refused by a gate"
    about_model = True


class Inconclusive(ShipliftError):
    """A gate could not decide: too few samples, unstable measurements, or no data."""

    exit_code = 21
    title = "inconclusive"
    about_model = True


class Aborted(ShipliftError):
    """A person ended a release: the champion has all the traffic."""

    exit_code = 22
    title = "aborted"


class AwaitingApproval(ShipliftError):
    """Every check passed, and the spec asks for a person's approval, which is not there yet."""

    exit_code = 23
    title = "waiting for approval"


class Rejected(ShipliftError):
    """A person decided that the version is not promoted."""

    exit_code = 24
    title = "rejected"
    about_model = True


class NotAdmitted(ShipliftError):
    """The version lacks something a release needs, or its files are unsafe."""

    exit_code = 30
    title = "not admitted"
    about_model = True


class ExportFailed(ShipliftError):
    """The model could not be converted to ONNX."""

    exit_code = 31
    title = "export failed"
    about_model = True


class SandboxLimit(ShipliftError):
    """Loading or converting the model exceeded the sandbox's memory or time limit."""

    exit_code = 32
    title = "sandbox limit"
    about_model = True


class NotConfined(ShipliftError):
    """The kernel refuses a mechanism that confines hostile code, and the site does not accept its absence."""

    exit_code = 50
    title = "not confined"


class DataInvalid(ShipliftError):
    """The validation or calibration data do not match the model."""

    exit_code = 33
    title = "data not usable"
    about_model = True


class QuantizeFailed(ShipliftError):
    """None of the target's precisions could be built."""

    exit_code = 34
    title = "quantization failed"
    about_model = True


class ArtifactCorrupt(ShipliftError):
    """An artifact is missing, or its content does not match its digest."""

    exit_code = 35
    title = "artifact corrupt"


class PartsFailed(ShipliftError):
    """Parts of a dataset could not be scored; the others were."""

    exit_code = 37
    title = "parts not scored"


class OutputTaken(ShipliftError):
    """The output of scoring has files already, of something else than what is to be scored."""

    exit_code = 38
    title = "output taken"


class ServerFailed(ShipliftError):
    """Triton did not start, or did not load a model."""

    exit_code = 40
    title = "server failed"


class PortTaken(ShipliftError):
    """Another process listens on a port that the stack needs."""

    exit_code = 41
    title = "port taken"


class MeasurementFailed(ShipliftError):
    """The load generator died, or measured nothing."""

    exit_code = 42
    title = "measurement failed"


class GoldenMismatch(ShipliftError):
    """A loaded model gives a wrong answer to a known request."""

    exit_code = 43
    title = "golden request answered wrongly"
    about_model = True


class CanaryFailed(ShipliftError):
    """The new version failed requests from its share of production traffic."""

    exit_code = 47
    title = "canary failed"
    about_model = True


class RecordTooLarge(ShipliftError):
    """A record is too large to be passed between pods."""

    exit_code = 36
    title = "record too large"


class ClusterRefused(ShipliftError):
    """The cluster rejected a request as forbidden or invalid."""

    exit_code = 48
    title = "cluster refused"


class ClusterUnreachable(ShipliftError):
    """No cluster can be reached."""

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
    """No available machine matches any of the release's targets."""

    exit_code = 49
    title = "no matching target"


class RegistryHeld(ShipliftError):
    """Another installation of Shiplift releases from this registry."""

    exit_code = 53
    title = "registry held"


class HomeNotPrivate(ShipliftError):
    """Others can write to the folder that holds the state."""

    exit_code = 54
    title = "home not private"


class PolicyRefused(ShipliftError):
    """The release spec asks for more than this site's policy allows."""

    exit_code = 52
    title = "beyond the site's policy"
    about_model = True


class NoPlan(ShipliftError):
    """No settings of a pipeline's members were found that hold the limit."""

    exit_code = 56
    title = "no plan"


class NothingToAbort(ShipliftError):
    """No release of the model is under way."""

    exit_code = 58
    title = "nothing to abort"


class NothingToDecide(ShipliftError):
    """The version does not wait for approval."""

    exit_code = 59
    title = "nothing to decide"


class AlreadyDecided(ShipliftError):
    """Another person decided about the version before."""

    exit_code = 60
    title = "already decided"


class StillInUse(ShipliftError):
    """The model has traffic or dependents, or the version serves."""

    exit_code = 61
    title = "still in use"


class UsageError(ShipliftError):
    """The command line is wrong."""

    exit_code = 64
    title = "usage"


class SpecInvalid(ShipliftError):
    """The release spec is invalid; the message names each field."""

    exit_code = 65
    title = "spec not valid"
    about_model = True


class NotFound(ShipliftError):
    """The registry, or this machine, has nothing by that name."""

    exit_code = 66
    title = "not found"


class VersionReplaced(NotFound):
    """The registry's version is not the one that was judged, though it has the same name and number."""

    exit_code = 57
    title = "version replaced"


class StackDown(ShipliftError):
    """The embedded stack is not running."""

    exit_code = 69
    title = "stack is down"


class StorageFull(ShipliftError):
    """The disk that holds the state is full."""

    exit_code = 73
    title = "storage full"


class Temporary(ShipliftError):
    """An outside service did not respond: the same command may succeed later. Only this class is retried."""

    exit_code = 75
    title = "temporary failure"


class RegistryDenied(Temporary):
    """The registry wants other credentials. A daemon retries, since passwords change; a stage's pod does not."""

    exit_code = 55
    title = "registry access denied"


class MissingTool(ShipliftError):
    """A program or library that this machine needs is missing."""

    exit_code = 78
    title = "tool missing"


class Cancelled(ShipliftError):
    """The user stopped the release: Ctrl-C, SIGTERM or `shiplift cancel`."""

    exit_code = 130
    title = "cancelled"


def every_error(root: type[ShipliftError] = ShipliftError) -> Iterator[type[ShipliftError]]:
    """Yields each error class that has its own exit code, the root included."""
    if "exit_code" in vars(root):
        yield root
    for subclass in root.__subclasses__():
        yield from every_error(subclass)


def by_exit_code(code: int) -> type[ShipliftError]:
    """The error class for a process's exit code, or `ShipliftError` if no class has it."""
    return next((error_class for error_class in every_error() if error_class.exit_code == code), ShipliftError)
