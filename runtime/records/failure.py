"""An error as a record: what ended a stage."""

from typing import Literal, Self

from shiplift.runtime.base.errors import Aborted, AwaitingApproval, Cancelled, Rejected, ShipliftError, by_exit_code
from shiplift.runtime.base.text import printable
from shiplift.runtime.records.base import Record

_MAX_BUG_CHARACTERS = 1000  # a record passes through a Workflow's status, but an exception's text has no limit


class Failure(Record):
    """The error that ended a stage and its release: one of ours, or a bug named after its exception."""

    kind: str
    exit_code: int
    what: str
    do: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Turns an exception into a record. Any exception that is not ours is a bug."""
        kind = type(error).__name__
        if isinstance(error, ShipliftError):
            return cls(kind=kind, exit_code=error.exit_code, what=error.what, do=error.do)
        what = printable(" ".join(f"a bug in Shiplift: {kind}: {error}".split()))
        do = "Report it with the traceback from the release's log."
        return cls(kind=kind, exit_code=ShipliftError.exit_code, what=what[:_MAX_BUG_CHARACTERS], do=do)

    def error(self) -> ShipliftError:
        """The exception this record stands for; a bug comes back as a `ShipliftError`."""
        return by_exit_code(self.exit_code)(self.what, do=self.do)

    @property
    def message(self) -> str:
        """What happened and what to do, in the exception's words."""
        return str(self.error())

    @property
    def about_model(self) -> bool:
        """Whether the model itself is at fault, so that trying again won't help."""
        return by_exit_code(self.exit_code).about_model

    @property
    def outcome(self) -> Literal["aborted", "cancelled", "failed", "rejected", "waiting"]:
        """The outcome of a stage that ends with this failure."""
        match self.exit_code:
            case Aborted.exit_code:
                return "aborted"
            case AwaitingApproval.exit_code:
                return "waiting"
            case Cancelled.exit_code:
                return "cancelled"
            case Rejected.exit_code:
                return "rejected"
        return "failed"
