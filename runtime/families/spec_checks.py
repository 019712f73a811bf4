"""Whether a spec asks for something that a kind of model lacks."""

from collections.abc import Iterator

from shiplift.runtime.base.errors import ExportFailed, SpecInvalid
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.model import Conversion
from shiplift.runtime.spec.target import Target


def refuse(asked: dict[str, object], why: str) -> None:
    """Refuses a spec that sets one of these sections.

    Raises:
        SpecInvalid: one is set.
    """
    if name := next((name for name, value in asked.items() if value), ""):
        raise SpecInvalid(f"`{name}` is set, but {why}", do="Leave it out.")


def of_graphs(spec: ReleaseSpec) -> dict[str, object]:
    """The sections that concern a graph."""
    return {
        "export.outputs": spec.export.outputs,
        "export.postprocess": spec.export.postprocess,
        "export.torchscript": spec.export.torchscript,
        "serving.sequence_batching": spec.serving.sequence_batching,
    }


def targets_of(spec: ReleaseSpec) -> Iterator[Target]:
    """The targets that the spec itself describes; named targets are checked once they are found."""
    return (target for target in spec.targets if isinstance(target, Target))


def require_tensor_engine(target: Target) -> None:
    """Checks that a target serves models that do not generate text.

    Raises:
        SpecInvalid: it does not.
    """
    if target.writes:
        raise SpecInvalid(
            f"target {target.name} has `engine: {target.engine}`, which is for models that generate text; this one "
            "does not",
            do="Choose another engine.",
        )


def require_no_pixels(conversion: Conversion) -> None:
    """Refuses to decode images for a model that does not become a graph of pixels.

    Raises:
        ExportFailed: the spec asks for it.
    """
    if conversion.preprocess:
        raise ExportFailed(
            "`export.preprocess` is for a model that becomes a graph of pixels, and this one does not",
            do="Leave it out; a pipeline's decoder is a member: `{image: ...}`.",
        )
