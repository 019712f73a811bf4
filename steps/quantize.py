"""Quantization: builds and judges every candidate of the model that the target allows.

The candidates depend on the kind of model, so the model's family builds them. Only a sandbox opens the fetched files.
"""

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.families import table
from shiplift.runtime.families.work import Quantizing
from shiplift.runtime.precision.scoring import jpegs
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.model import Datasets
from shiplift.runtime.records.precision import Candidates
from shiplift.runtime.records.proof import served_by
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.model import Data, Quantization
from shiplift.runtime.spec.target import Target


def quantize(
    site: Site, target: Target, exported: Exported, datasets: Datasets, data: Data, quantization: Quantization
) -> Candidates:
    """Builds, scores and times each candidate of the target.

    Raises:
        DataInvalid: the logged data do not match the model.
        ExportFailed: fp32 does not load, or needs a newer ONNX Runtime than the target has.
        SandboxLimit: building takes more memory or time than the spec allows.
        Temporary: this machine is not the target: the target vanished, or a pod runs on the wrong node.
        MissingTool: the target is a GPU, and this environment can't run models on GPUs.
        SpecInvalid: the target can't serve such a model; or the spec has JPEG qualities for a model that takes no
        images.
    """
    family = table.of(exported)
    if data.jpeg_qualities and not family.takes_images:
        raise jpegs.no_images()
    _check_target(target, exported)
    return family.candidates(
        Quantizing(site=site, target=target, exported=exported, datasets=datasets, data=data, quantization=quantization)
    )


def _check_target(target: Target, exported: Exported) -> None:
    """Checks a target that the spec only names, with why the model is served in a form that may not run there.

    Raises:
        SpecInvalid: it does not serve such models.
    """
    try:
        table.of(exported).check_target(target)
    except SpecInvalid as error:
        why = served_by(exported.forms)
        raise SpecInvalid(f"{error.what.rstrip('.')}. {why}" if why else error.what, do=error.do) from error
