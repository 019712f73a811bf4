"""Which targets serve Python models."""

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.spec.target import Target


def check_target(target: Target) -> None:
    """Whether a target serves Python models.

    Raises:
        SpecInvalid: it does not.
    """
    if target.gpu or target.engine != "auto":
        raise SpecInvalid(
            f"target {target.name} can't serve a Python model: only a CPU with `engine: auto` does",
            do="Choose such a target, or log the model as pt2, skops or ONNX.",
        )
