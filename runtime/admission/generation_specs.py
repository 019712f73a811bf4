"""What a site and a spec allow for models that generate text, before time is spent on one."""

from importlib.util import find_spec

from shiplift.runtime.base.errors import MissingTool, NotAdmitted, SpecInvalid
from shiplift.runtime.model.generation.targets import check_generating
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.target import Target

_EXTRA = "Install the `generation` extra: pip install 'shiplift[generation]'."


def check_generation(site: Site, spec: ReleaseSpec) -> None:
    """Whether a site and a spec let a model that generates text be released, before time is spent on it.

    Raises:
        NotAdmitted: the site serves none.
        SpecInvalid: the spec asks for something that such a model has not.
        MissingTool: OpenVINO GenAI is not installed here.
    """
    if not site.place.generation:
        raise NotAdmitted(
            "models that generate text are served on one machine, not on a cluster yet",
            do="Release it with the local engine; or serve it with Triton's vLLM or TensorRT-LLM backend.",
        )
    conversion, serving = spec.export, spec.serving
    asked = {
        "export.outputs": conversion.outputs, "export.postprocess": conversion.postprocess,
        "export.torchscript": conversion.torchscript, "serving.sequence_batching": serving.sequence_batching,
        "serving.response_cache": serving.response_cache, "serving.preferred_batch_size": serving.preferred_batch_size,
        "serving.tensors": serving.tensors, "load.shapes": spec.load.shapes,
    }  # fmt: skip
    if name := next((name for name, value in asked.items() if value), ""):
        raise SpecInvalid(f"`{name}` is set, but a model that generates text has none of that", do="Leave it out.")
    if spec.load.protocol != "grpc":
        raise SpecInvalid("`load.protocol` is http, but text is streamed over gRPC", do="Leave it out.")
    for target in spec.targets:
        if isinstance(target, Target):
            check_generating(target)
    missing = [name for name in ("openvino_genai", "openvino_tokenizers") if find_spec(name) is None]
    if missing:
        raise MissingTool(f"the model generates text, and {missing[0]} is not installed here", do=_EXTRA)
