"""Rows of a proof that were asked again, outside of a release."""

from shiplift.runtime.records.base import Record


class RowAsked(Record):
    """A row and the answers to it: the original's in the release (`recorded`) and now (`original`), and the form's.

    `served` is the form's answer to the row alone, `among` that beside the other rows; empty if there are none.
    `inputs` are those of a request. `difference` says how an answer of the form differs from the recorded one; empty:
    none does.
    """

    row: int
    origin: str
    inputs: str
    recorded: str
    original: str
    served: str
    among: str = ""
    difference: str = ""


class AskedAgain(Record):
    """Rows that a release of a version asked, asked again of its original and of a `form` of it.

    `judge` says who answered for the original. Not `compared`: its answer to a given row has another form than what is
    served (labels alone, say), or there is none, so both are only shown.
    """

    model: str
    version: int
    form: str
    judge: str
    compared: bool = True
    rows: tuple[RowAsked, ...]

    @property
    def same(self) -> bool:
        """Whether the form answers each row as the original did in the release."""
        return not any(row.difference for row in self.rows)
