"""What the families of texts and of images share: their model is a graph, behind a front that makes its tensors."""

from typing import Any

from shiplift.runtime.admission.inspection import InspectedVersion
from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.families import spec_checks
from shiplift.runtime.families.export_summary import converted
from shiplift.runtime.families.fronts import FrontMaker
from shiplift.runtime.families.graph.candidates import build_candidates
from shiplift.runtime.families.graph.export import export_graph
from shiplift.runtime.families.packaging.packages import judged_packages
from shiplift.runtime.families.work import Exporting, Packaging, Quantizing
from shiplift.runtime.measure.requests import Requests, synthetic
from shiplift.runtime.model.tensors import Arrays, inputs_in
from shiplift.runtime.records.kinds.contract import DeclaredImage, DeclaredText
from shiplift.runtime.records.kinds.exported import Exported, ExportedImage, ExportedText
from shiplift.runtime.records.kinds.package import ImagePackage, TextPackage
from shiplift.runtime.records.precision import Candidates
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.measurement import Load
from shiplift.runtime.spec.target import Target


class FrontFamily:
    """A family whose graph has a front. `maker` makes its packages."""

    maker: type[FrontMaker[Any]]

    def check(self, _site: Site, spec: ReleaseSpec, _inspected: InspectedVersion) -> None:
        """Only what its targets say."""
        for target in spec_checks.targets_of(spec):
            self.check_target(target)

    def check_target(self, target: Target) -> None:
        """Allows every target except those with PyTorch or an engine that generates text, and NVIDIA's server on Arm.

        On NVIDIA's server, the front runs with the interpreter and libraries of the machine that packaged it: x86.

        Raises:
            SpecInvalid: it is another target.
        """
        spec_checks.require_tensor_engine(target)
        arm = target.server == "nvidia" and target.accelerator == "cpu-arm64"
        if target.engine == "pytorch" or arm:
            why = "Arm" if arm else "`engine: pytorch`"
            raise SpecInvalid(
                f"target {target.name} has {why}; models that take text or images need x86, and one of ONNX Runtime, "
                "OpenVINO and TensorRT",
                do="Choose such a target, or log the model itself as pt2 or ONNX: clients then send tensors.",
            )

    def export(self, work: Exporting[DeclaredText] | Exporting[DeclaredImage]) -> Exported:
        """The graph, and the front before it."""
        return export_graph(work)

    def candidates(self, work: Quantizing[ExportedText] | Quantizing[ExportedImage]) -> Candidates:
        """Every precision that the target allows, scored through the front."""
        return build_candidates(work, work.exported.front)

    def packages(self, work: Packaging[ExportedText] | Packaging[ExportedImage]) -> Packages:
        """Each with the graph and the front."""
        return judged_packages(work, self.maker(work))

    def requests(self, package: TextPackage | ImagePackage, golden: Arrays, load: Load) -> Requests:
        """The example's texts or images."""
        return Requests(samples=synthetic(inputs_in(golden, package.signature), package.signature, load))

    def export_summary(self, exported: ExportedText | ExportedImage) -> str:
        """How it was converted."""
        return converted(exported, f", opset {exported.opset}")
