"""The family of pipelines of models."""

from shiplift.runtime.admission.inspection import InspectedVersion
from shiplift.runtime.base.errors import PolicyRefused, SpecInvalid
from shiplift.runtime.families import spec_checks
from shiplift.runtime.families.as_logged import as_logged
from shiplift.runtime.families.pipeline.package import package_pipeline
from shiplift.runtime.families.work import Exporting, Packaging, Quantizing
from shiplift.runtime.measure.requests import Requests, split, whole
from shiplift.runtime.model.tensors import Arrays, inputs_in
from shiplift.runtime.records.kinds.contract import DeclaredPipeline
from shiplift.runtime.records.kinds.exported import Exported, ExportedPipeline
from shiplift.runtime.records.kinds.package import PipelinePackage
from shiplift.runtime.records.model import PIPELINE
from shiplift.runtime.records.precision import Candidate, Candidates
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.measurement import Load
from shiplift.runtime.spec.target import Target


class PipelineFamily:
    """Pipelines of models, as `shiplift pipeline release` logs them. They are not converted."""

    kind = "pipeline"
    takes_images = False

    def recognises(self, inspected: InspectedVersion) -> bool:
        """Whether it was logged as a pipeline."""
        return bool(inspected.flavor == PIPELINE)

    def check(self, site: Site, spec: ReleaseSpec, inspected: InspectedVersion) -> None:
        """Checks that the site lets its Python files run, and that the spec asks for nothing that only models have."""
        if inspected.code and "sandbox" not in site.policy.python:
            raise PolicyRefused(
                f"the pipeline runs its author's code ({', '.join(inspected.code)}), and `policy.python` does not "
                "allow `sandbox`",
                do="Do without Python steps, or ask the owner of this site to change its policy.",
            )
        asked = spec_checks.of_graphs(spec) | {
            "serving.lengths": spec.serving.lengths,
            "serving.tensors": spec.serving.tensors,
            "serving.version_policy": spec.serving.keeps_versions,
        }
        spec_checks.refuse(asked, "a pipeline has no graph of its own")
        if len(spec.targets) > 1:
            raise SpecInvalid(
                f"the spec has {len(spec.targets)} targets, and a pipeline is released for one: that of its members",
                do="Name one target.",
            )
        for target in spec_checks.targets_of(spec):
            spec_checks.require_tensor_engine(target)

    def check_target(self, _target: Target) -> None:
        """Allows any: the members' target is checked when they are put together."""

    def contract(self, _site: Site, _spec: ReleaseSpec, inspected: InspectedVersion) -> DeclaredPipeline:
        """The requests."""
        return DeclaredPipeline(signature=inspected.signature, example=inspected.example, notes=inspected.notes)

    def export(self, work: Exporting[DeclaredPipeline]) -> Exported:
        """The logged files with their requests. Nothing is converted, so there is no parity to prove."""
        return as_logged(work, ExportedPipeline)

    def candidates(self, work: Quantizing[ExportedPipeline]) -> Candidates:
        """Its only candidate. It is scored once its members are put together, in the precisions as promoted."""
        model = work.exported.model
        candidate = Candidate(precision="fp32", method="as its members were promoted", model=model)
        return Candidates(target=work.target.name, metric=None, candidates=(candidate,))

    def packages(self, work: Packaging[ExportedPipeline]) -> Packages:
        """The bundle of its members, unless its score keeps it from passing."""
        return package_pipeline(work)

    def requests(self, package: PipelinePackage, golden: Arrays, _load: Load) -> Requests:
        """The example's own requests, unchanged: a pipeline's work depends on its inputs."""
        return Requests(samples=whole(split(inputs_in(golden, package.signature))))

    def export_summary(self, _exported: ExportedPipeline) -> str:
        """Says that it is not a single model."""
        return (
            "It is a pipeline of models: nothing was converted, and its members are as they were promoted. The stage "
            "package says which they are."
        )
