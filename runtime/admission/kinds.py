"""What a site and a spec allow for versions of special kinds, before time is spent on one.

Models that are Python, models that generate text, and pipelines of models.
"""

from importlib.util import find_spec

from shiplift.runtime.base.errors import MissingTool, NotAdmitted, PolicyRefused, SpecInvalid
from shiplift.runtime.model.generation.targets import check_generating, check_not_generating
from shiplift.runtime.model.python.targets import check_target
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.target import Target

_EXTRA = "Install the `generation` extra: pip install 'shiplift[generation]'."


def check_python(site: Site, spec: ReleaseSpec) -> None:
    """Whether a site and a spec let a Python model be released, before time is spent on it.

    Raises:
        NotAdmitted: the site has no index to get packages from.
        SpecInvalid: the spec asks for something that only graphs have.
    """
    if site.place.layers and not site.policy.package_index:
        raise NotAdmitted(
            "a Python model's packages come from the index that `policy.package_index` names, and it names none",
            do="Ask whoever runs this site to set it; or log the model as pt2, skops or ONNX.",
        )
    conversion = spec.export
    asked = {
        "export.outputs": conversion.outputs, "export.postprocess": conversion.postprocess,
        "export.torchscript": conversion.torchscript, "serving.sequence_batching": spec.serving.sequence_batching,
    }  # fmt: skip
    if name := next((name for name, value in asked.items() if value), ""):
        raise SpecInvalid(f"`{name}` is set, but a Python model has no graph", do="Leave it out.")
    for target in spec.targets:
        if isinstance(target, Target):
            check_target(target)


def check_generation(spec: ReleaseSpec) -> None:
    """Whether a spec lets a model that generates text be released, before time is spent on it.

    Raises:
        SpecInvalid: the spec asks for something that such a model has not.
        MissingTool: OpenVINO GenAI is not installed here.
    """
    conversion, serving = spec.export, spec.serving
    asked = {
        "export.outputs": conversion.outputs, "export.postprocess": conversion.postprocess,
        "export.torchscript": conversion.torchscript, "serving.sequence_batching": serving.sequence_batching,
        "serving.response_cache": serving.response_cache, "serving.preferred_batch_size": serving.preferred_batch_size,
        "serving.tensors": serving.tensors, "load.shapes": spec.load.shapes,
        "serving.version_policy": serving.keeps_versions,
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


def check_answers(spec: ReleaseSpec) -> None:
    """Whether a spec lets a model be released that answers, and does not generate text.

    Raises:
        SpecInvalid: a target is only for models that generate text.
    """
    for target in spec.targets:
        if isinstance(target, Target):
            check_not_generating(target)


def check_pipeline(site: Site, spec: ReleaseSpec, code: tuple[str, ...]) -> None:
    """Whether a site and a release's spec let a pipeline with these Python files be released.

    Raises:
        PolicyRefused: the site lets no author's Python run.
        SpecInvalid: the spec asks for something that only a model has.
    """
    if code and "sandbox" not in site.policy.python:
        raise PolicyRefused(
            f"the pipeline runs its author's code ({', '.join(code)}), and `policy.python` does not allow `sandbox`",
            do="Do without Python steps, or ask whoever runs this site to change its policy.",
        )
    asked = {
        "export.outputs": spec.export.outputs, "export.postprocess": spec.export.postprocess,
        "export.torchscript": spec.export.torchscript, "serving.sequence_batching": spec.serving.sequence_batching,
        "serving.lengths": spec.serving.lengths, "serving.tensors": spec.serving.tensors,
        "serving.version_policy": spec.serving.keeps_versions,
    }  # fmt: skip
    if name := next((name for name, value in asked.items() if value), ""):
        raise SpecInvalid(f"`{name}` is set, but a pipeline has no graph of its own", do="Leave it out.")
    if len(spec.targets) > 1:
        raise SpecInvalid(
            f"the spec has {len(spec.targets)} targets, and a pipeline is released for one: that of its members",
            do="Name one target.",
        )
