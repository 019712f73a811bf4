"""Whether a spec, a target and this machine allow models that generate text."""

from importlib.util import find_spec

from shiplift.runtime.base.errors import MissingTool, SpecInvalid
from shiplift.runtime.families import spec_checks
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.target import Target

_EXTRA = "Install the `generation` extra: pip install 'shiplift[generation]'."


def check_generation(spec: ReleaseSpec) -> None:
    """Checks, before time is spent on it, that a spec lets a model that generates text be released.

    Raises:
        SpecInvalid: the spec asks for something that such a model lacks.
        MissingTool: OpenVINO GenAI is not installed here.
    """
    serving = spec.serving
    asked = spec_checks.of_graphs(spec) | {
        "serving.response_cache": serving.response_cache,
        "serving.preferred_batch_size": serving.preferred_batch_size,
        "serving.tensors": serving.tensors,
        "load.shapes": spec.load.shapes,
        "serving.version_policy": serving.keeps_versions,
    }
    spec_checks.refuse(asked, "a model that generates text has none of that")
    if spec.load.protocol != "grpc":
        raise SpecInvalid("`load.protocol` is http, but text is streamed over gRPC", do="Leave it out.")
    for target in spec_checks.targets_of(spec):
        check_target(target)
    missing = [name for name in ("openvino_genai", "openvino_tokenizers") if find_spec(name) is None]
    if missing:
        raise MissingTool(f"the model generates text, and {missing[0]} is not installed here", do=_EXTRA)


def check_target(target: Target) -> None:
    """Checks that a target serves models that generate text.

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
