"""Records as Shiplift 0.1 wrote them: one for all kinds of model, with the fields of every kind."""

from typing import Any

from shiplift.runtime.records.kinds.package import Package

_OF_OTHER_KINDS: dict[str, Any] = {
    "companions": [],
    "environment": None,
    "jpegs": [],
    "members": [],
    "sequences": False,
    "tensors": None,
}


def package_of_0_1(package: Package) -> dict[str, Any]:
    """A package as 0.1 wrote it, as JSON."""
    written = package.model_dump(mode="json")
    for later in ("kind", "questions", "proof", "constant_score", "guards", "limits"):
        written.pop(later, None)
    return _OF_OTHER_KINDS | written
