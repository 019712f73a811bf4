"""Which targets serve models that generate text."""

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.spec.target import Target


def check_generating(target: Target) -> None:
    """Whether a target serves models that generate text.

    Raises:
        SpecInvalid: it does not.
    """
    fits = not target.gpu and target.server == "bundled" and "fp32" in target.precisions
    if not fits or target.engine not in ("auto", "openvino") or target.accelerator == "cpu-arm64":
        raise SpecInvalid(
            f"target {target.name} can't serve a model that generates text: only the bundled server on an x86 CPU "
            "does, in fp32, with `engine: auto` or `openvino`",
            do="Choose such a target; or serve the model with Triton's vLLM or TensorRT-LLM backend.",
        )
