"""The family of models that continue texts."""

from shiplift.runtime.admission.inspection import InspectedVersion
from shiplift.runtime.families import spec_checks
from shiplift.runtime.families.export_summary import converted
from shiplift.runtime.families.generation.checks import check_generation, check_target
from shiplift.runtime.families.generation.export import export_generation
from shiplift.runtime.families.generation.package import GenerationMaker
from shiplift.runtime.families.packaging.packages import judged_packages
from shiplift.runtime.families.work import Exporting, Packaging, Quantizing
from shiplift.runtime.measure.requests import Requests, prompts, shortened
from shiplift.runtime.model.generation.signature import ROOM
from shiplift.runtime.model.tensors import Arrays, inputs_in
from shiplift.runtime.model.text.tasks import GENERATION
from shiplift.runtime.records.kinds.contract import DeclaredGeneration
from shiplift.runtime.records.kinds.exported import Exported, ExportedGeneration
from shiplift.runtime.records.kinds.package import GenerationPackage
from shiplift.runtime.records.precision import Candidate, Candidates
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.measurement import Load
from shiplift.runtime.spec.target import Target

_UNSCORED = "Validation data are not used: the tokens that a model generates have no metric yet."


class GenerationFamily:
    """Causal language models. One becomes a stateful OpenVINO model, and the tokens of both are compared."""

    kind = "generation"
    takes_images = False

    def recognises(self, inspected: InspectedVersion) -> bool:
        """Whether its task is to generate text."""
        return inspected.task == GENERATION

    def check(self, _site: Site, spec: ReleaseSpec, _inspected: InspectedVersion) -> None:
        """Checks that the spec asks for no graph, and that the libraries are installed."""
        check_generation(spec)

    def check_target(self, target: Target) -> None:
        """Allows x86 CPUs with OpenVINO, and GPUs whose engine generates text."""
        check_target(target)

    def contract(self, _site: Site, _spec: ReleaseSpec, inspected: InspectedVersion) -> DeclaredGeneration:
        """The prompts."""
        return DeclaredGeneration(signature=inspected.signature, example=inspected.example, notes=inspected.notes)

    def export(self, work: Exporting[DeclaredGeneration]) -> Exported:
        """The model for OpenVINO GenAI, with its tokenizer."""
        spec_checks.require_no_pixels(work.conversion)
        return export_generation(work)

    def candidates(self, work: Quantizing[ExportedGeneration]) -> Candidates:
        """Its only candidate. Its tokens were compared at export, and there is no other score.

        OpenVINO runs what was exported, in fp32; another engine reads the model's own weights.
        """
        target, model = work.target, work.exported.model
        candidate = Candidate(
            engine=target.engine if target.writes and target.engine != "auto" else "openvino",
            precision=target.precisions[0] if target.writes else "fp32",
            method="as logged" if target.writes else "as exported",
            model=model,
            size_bytes=model.size_bytes,
        )
        notes = (_UNSCORED,) if work.datasets.validation else ()
        return Candidates(target=target.name, metric=None, candidates=(candidate,), notes=notes)

    def packages(self, work: Packaging[ExportedGeneration]) -> Packages:
        """One package, with the engine and the weights."""
        return judged_packages(work, GenerationMaker(work))

    def requests(self, package: GenerationPackage, golden: Arrays, load: Load) -> Requests:
        """The example's prompts; each asks for the spec's number of tokens, or as many as the context has room for."""
        samples = prompts(inputs_in(golden, package.signature), load, golden.get(ROOM))
        return Requests(samples=samples, note=shortened(golden, load))

    def export_summary(self, exported: ExportedGeneration) -> str:
        """How it was converted."""
        return converted(exported)
