"""Which targets serve models that generate text."""

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.spec.target import Target


def check_generating(target: Target) -> None:
    """Whether a target serves models that generate text.

    Raises:
        SpecInvalid: it does not.
    """
    if target.writes:
        return
    fits = not target.gpu and target.server == "bundled" and "fp32" in target.precisions
    if not fits or target.engine not in ("auto", "openvino") or target.accelerator == "cpu-arm64":
        raise SpecInvalid(
            f"target {target.name} can't serve a model that generates text: the bundled server on an x86 CPU does, in "
            "fp32, with `engine: auto` or `openvino`, and NVIDIA's on a GPU with `engine: vllm` or `tensorrt-llm`",
            do="Choose such a target.",
        )


def check_not_generating(target: Target) -> None:
    """Whether a target serves models that do not generate text.

    Raises:
        SpecInvalid: it does not.
    """
    if target.writes:
        raise SpecInvalid(
            f"target {target.name} has `engine: {target.engine}`, which is for models that generate text; this one "
            "does not",
            do="Choose another engine.",
        )
