"""The family of models that take images."""

from shiplift.runtime.admission.inspection import Inspected
from shiplift.runtime.families import spec_checks
from shiplift.runtime.families.export_summary import converted
from shiplift.runtime.families.graph.candidates import build_candidates
from shiplift.runtime.families.graph.export import export_graph
from shiplift.runtime.families.image.package import ImageMaker
from shiplift.runtime.families.packaging.packages import judged_packages
from shiplift.runtime.families.work import Exporting, Packaging, Quantizing
from shiplift.runtime.measure.requests import Requests, synthetic
from shiplift.runtime.model.tensors import Arrays, inputs_in
from shiplift.runtime.model.text.tasks import IMAGE_TASKS, TEXT_FLAVORS
from shiplift.runtime.records.kinds.contract import DeclaredImage
from shiplift.runtime.records.kinds.exported import Exported, ExportedImage
from shiplift.runtime.records.precision import Candidates
from shiplift.runtime.records.serving import ImagePackage
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.measurement import Load
from shiplift.runtime.spec.target import Target


class ImageFamily:
    """Hugging Face's models whose task is about images, and graphs of pixels whose spec says how files are decoded.

    The latter are declared as graphs, and exported as images.
    """

    kind = "image"
    takes_images = True

    def recognises(self, inspected: Inspected) -> bool:
        """Whether its task is about images."""
        return inspected.flavor in TEXT_FLAVORS and inspected.task in IMAGE_TASKS

    def check(self, _site: Site, spec: ReleaseSpec, _inspected: Inspected) -> None:
        """Only what its targets say."""
        for target in spec_checks.targets_of(spec):
            self.check_target(target)

    def check_target(self, target: Target) -> None:
        """Every target, but for those whose engine generates text."""
        spec_checks.require_tensor_engine(target)

    def contract(self, inspected: Inspected) -> DeclaredImage:
        """The images that its task names, and the example."""
        return DeclaredImage(signature=inspected.signature, example=inspected.example, notes=inspected.notes)

    def export(self, work: Exporting[DeclaredImage]) -> Exported:
        """The graph of pixels, and the decoding before it."""
        return export_graph(work)

    def candidates(self, work: Quantizing[ExportedImage]) -> Candidates:
        """Every precision that the target allows, scored on images."""
        return build_candidates(work, work.exported.front)

    def packages(self, work: Packaging[ExportedImage]) -> Packages:
        """Each with the graph and the decoding."""
        return judged_packages(work, ImageMaker(work))

    def requests(self, package: ImagePackage, golden: Arrays, load: Load) -> Requests:
        """The example's images."""
        return Requests(samples=synthetic(inputs_in(golden, package.signature), package.signature, load))

    def export_summary(self, exported: ExportedImage) -> str:
        """How it was converted."""
        return converted(exported, f", opset {exported.opset}")
