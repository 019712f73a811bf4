"""What a site and a spec allow for Python models, before time is spent on one."""

from shiplift.runtime.base.errors import NotAdmitted, SpecInvalid
from shiplift.runtime.model.python.targets import check_target
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.target import Target


def check_python(site: Site, spec: ReleaseSpec) -> None:
    """Whether a site and a spec let a Python model be released, before time is spent on it.

    Raises:
        NotAdmitted: the site serves none.
        SpecInvalid: the spec asks for something that only graphs have.
    """
    if not site.place.python_models:
        raise NotAdmitted(
            "Python models are served on one machine, not on a cluster yet",
            do="Release it with the local engine; or log the model as pt2, skops or ONNX.",
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
