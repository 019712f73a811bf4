"""The family of models that take texts."""

from shiplift.runtime.admission.inspection import Inspected
from shiplift.runtime.families import spec_checks
from shiplift.runtime.families.export_summary import converted
from shiplift.runtime.families.graph.candidates import build_candidates
from shiplift.runtime.families.graph.export import export_graph
from shiplift.runtime.families.packaging.packages import judged_packages
from shiplift.runtime.families.text.package import TextMaker
from shiplift.runtime.families.work import Exporting, Packaging, Quantizing
from shiplift.runtime.measure.requests import Requests, synthetic
from shiplift.runtime.model.tensors import Arrays, inputs_in
from shiplift.runtime.model.text.tasks import GENERATION, IMAGE_TASKS, TEXT_FLAVORS
from shiplift.runtime.records.kinds.contract import DeclaredText
from shiplift.runtime.records.kinds.exported import Exported, ExportedText
from shiplift.runtime.records.precision import Candidates
from shiplift.runtime.records.serving import TextPackage
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.measurement import Load
from shiplift.runtime.spec.target import Target


class TextFamily:
    """Hugging Face's models whose task is about texts, but for those that generate some."""

    kind = "text"
    takes_images = False

    def recognises(self, inspected: Inspected) -> bool:
        """Whether its task is about texts."""
        return inspected.flavor in TEXT_FLAVORS and inspected.task not in (GENERATION, *IMAGE_TASKS)

    def check(self, _site: Site, spec: ReleaseSpec, _inspected: Inspected) -> None:
        """Only what its targets say."""
        for target in spec_checks.targets_of(spec):
            self.check_target(target)

    def check_target(self, target: Target) -> None:
        """Every target, but for those whose engine generates text."""
        spec_checks.require_tensor_engine(target)

    def contract(self, inspected: Inspected) -> DeclaredText:
        """The texts that its task names, and the example."""
        return DeclaredText(signature=inspected.signature, example=inspected.example, notes=inspected.notes)

    def export(self, work: Exporting[DeclaredText]) -> Exported:
        """The graph of tokens, and the tokenizer before it."""
        return export_graph(work)

    def candidates(self, work: Quantizing[ExportedText]) -> Candidates:
        """Every precision that the target allows, scored on texts."""
        return build_candidates(work, work.exported.front)

    def packages(self, work: Packaging[ExportedText]) -> Packages:
        """Each with the graph and the tokenizer."""
        return judged_packages(work, TextMaker(work))

    def requests(self, package: TextPackage, golden: Arrays, load: Load) -> Requests:
        """The example's texts."""
        return Requests(samples=synthetic(inputs_in(golden, package.signature), package.signature, load))

    def export_summary(self, exported: ExportedText) -> str:
        """How it was converted."""
        return converted(exported, f", opset {exported.opset}")
