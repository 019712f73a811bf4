"""Packaging: a Triton model repository per kept precision, with golden requests that verify it wherever it is loaded.

The contents depend on the kind of model, so the model's family writes them. Precisions that can't pass are not
packaged.
"""

from shiplift.runtime.composition.incumbents import Incumbents
from shiplift.runtime.families import table
from shiplift.runtime.families.work import Packaging
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.model import ModelVersion
from shiplift.runtime.records.precision import Candidates
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.spec.groups import Acceptance, ServingSpace
from shiplift.runtime.spec.target import Target


def package(
    site: Site,
    target: Target,
    model_version: ModelVersion,
    exported: Exported,
    candidates: Candidates,
    acceptance: Acceptance,
    serving_space: ServingSpace,
    incumbents: Incumbents,
) -> Packages:
    """Writes one package per kept candidate that can pass, in order, with the configuration that tuning starts from.

    Raises:
        StorageFull: no space is left.
        ArtifactCorrupt: a model is missing or altered.
        QuantizeFailed: a TensorRT plan is for another target.
        SandboxLimit: answering the golden requests takes more memory or time than the spec allows.
        MissingTool: the model takes text, and the library that tokenizes it or generates is not installed here.
        SpecInvalid: the target needs TorchScript, which was not exported; or the spec's states or lengths are not the
            model's; or a pipeline's members do not fit it, or can't be members.
        ServerFailed: a pipeline's bundle can't be loaded, or does not answer.
    """
    work = Packaging(
        site=site,
        target=target,
        version=model_version,
        exported=exported,
        candidates=candidates,
        datasets=acceptance.datasets,
        data=acceptance.data,
        quality=acceptance.quality,
        score_target=acceptance.score_target,
        quantization=acceptance.quantization,
        search_space=serving_space.search_space,
        serving=serving_space.serving,
        champion=incumbents.champion,
        members=incumbents.members,
    )
    return table.of(exported).packages(work)
