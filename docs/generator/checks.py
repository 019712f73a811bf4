"""The kinds of the gates' checks, and what to do about each."""

from docs.generator.markdown import table
from shiplift.runtime.gates.remedies import REMEDIES


def checks() -> str:
    """A table of all kinds of checks."""
    rows = [[f"`{kind}`", each.failed, each.undecided] for kind, each in REMEDIES.items()]
    return table(["Check", "If it fails", "If it is undecided"], rows)
