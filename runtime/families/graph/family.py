"""The family of graphs."""

from shiplift.runtime.admission.inspection import InspectedVersion
from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.families import spec_checks
from shiplift.runtime.families.export_summary import summary
from shiplift.runtime.families.graph.candidates import build_candidates, without_graph
from shiplift.runtime.families.graph.ladder import export_first, no_python, rungs_of
from shiplift.runtime.families.graph.package import GraphMaker
from shiplift.runtime.families.packaging.packages import judged_packages
from shiplift.runtime.families.python.checks import check_python
from shiplift.runtime.families.work import Exporting, Packaging, Quantizing
from shiplift.runtime.measure.requests import Requests, synthetic, synthetic_sequences, within
from shiplift.runtime.model.tensors import Arrays, inputs_in
from shiplift.runtime.records.kinds.contract import DeclaredGraph
from shiplift.runtime.records.kinds.exported import Exported, ExportedGraph
from shiplift.runtime.records.kinds.package import GraphPackage
from shiplift.runtime.records.model import FALL_BACK
from shiplift.runtime.records.precision import Candidates
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.measurement import Load
from shiplift.runtime.spec.target import Target


class GraphFamily:
    """Models that become an ONNX graph. One that has no right graph is served by the library that wrote it."""

    kind = "graph"
    takes_images = False

    def recognises(self, inspected: InspectedVersion) -> bool:
        """Whether MLflow's flavor is one of a graph."""
        return inspected.flavor == "onnx" or inspected.flavor in FALL_BACK

    def check(self, site: Site, spec: ReleaseSpec, inspected: InspectedVersion) -> None:
        """Checks the spec. A model that has to be possible as a Python model is checked as one, too."""
        if spec.export.fallback == "python" and inspected.flavor in FALL_BACK:
            check_python(site, spec)
            if obstacle := no_python(site, spec, inspected.own_code, inspected.no_python):
                raise NotAdmitted(f"{obstacle.what.rstrip('.')}, and `export.fallback` is python", do=obstacle.do)
        for target in spec_checks.targets_of(spec):
            self.check_target(target)

    def check_target(self, target: Target) -> None:
        """Allows every target, except those whose engine generates text."""
        spec_checks.require_tensor_engine(target)

    def contract(self, site: Site, spec: ReleaseSpec, inspected: InspectedVersion) -> DeclaredGraph:
        """The signature and the example; the packages of its own library, and why that can't serve it, if it can't."""
        return DeclaredGraph(
            signature=inspected.signature,
            example=inspected.example,
            tabular=inspected.tabular,
            requirements=inspected.requirements,
            no_python=no_python(site, spec, inspected.own_code, inspected.no_python),
            notes=inspected.notes,
        )

    def export(self, work: Exporting[DeclaredGraph]) -> Exported:
        """The first form that is proved right: a graph, or the model as it was logged."""
        return export_first(work, rungs_of(work))

    def candidates(self, work: Quantizing[ExportedGraph]) -> Candidates:
        """Every precision that the target allows; exact trees alone where the graph is not the model."""
        return without_graph(build_candidates(work), work.exported.differs)

    def packages(self, work: Packaging[ExportedGraph]) -> Packages:
        """One package per candidate, each with its graph."""
        return judged_packages(work, GraphMaker(work))

    def requests(self, package: GraphPackage, golden: Arrays, load: Load) -> Requests:
        """Samples like the example's, or sequences of them for a model with states."""
        example, signature = inputs_in(golden, package.signature), package.signature
        if package.sequences:
            return Requests(sequences=synthetic_sequences(example, signature, load))
        return Requests(samples=within(package.guards, synthetic(example, signature, load), example))

    def export_summary(self, exported: ExportedGraph) -> str:
        """How it was converted, and what was asked of both models."""
        return summary(exported, f", opset {exported.opset}", proof=exported.proof)
