"""The family of graphs."""

from shiplift.runtime.admission.inspection import Inspected
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.base.progress import progress
from shiplift.runtime.families import spec_checks
from shiplift.runtime.families.export_summary import converted, proved
from shiplift.runtime.families.graph.candidates import build_candidates, without_graph
from shiplift.runtime.families.graph.export import export_graph
from shiplift.runtime.families.graph.package import GraphMaker
from shiplift.runtime.families.packaging.packages import judged_packages
from shiplift.runtime.families.python.checks import check_python
from shiplift.runtime.families.python.export import export_python
from shiplift.runtime.families.work import Exporting, Packaging, Quantizing
from shiplift.runtime.measure.requests import Requests, synthetic, synthetic_sequences
from shiplift.runtime.model.tensors import Arrays, inputs_in
from shiplift.runtime.records.kinds.contract import DeclaredGraph
from shiplift.runtime.records.kinds.exported import Exported, ExportedGraph, ExportedPython
from shiplift.runtime.records.kinds.package import GraphPackage
from shiplift.runtime.records.model import FALL_BACK
from shiplift.runtime.records.precision import Candidates
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.measurement import Load
from shiplift.runtime.spec.target import Target

_FELL_BACK = (
    "Warning: the model could not be exported to ONNX, so its own code serves it, as fast as mlflow.pyfunc and without "
    "lower precisions (export.fallback). Why: {why}."
)


class GraphFamily:
    """Models that become an ONNX graph. One that does not convert is a Python model, if its spec says so."""

    kind = "graph"
    takes_images = False

    def recognises(self, inspected: Inspected) -> bool:
        """Whether MLflow's flavor is one of a graph."""
        return inspected.flavor == "onnx" or inspected.flavor in FALL_BACK

    def check(self, site: Site, spec: ReleaseSpec, inspected: Inspected) -> None:
        """Checks the spec. A model that may fall back to its own code must also be possible as a Python model."""
        if spec.export.fallback == "python" and inspected.flavor in FALL_BACK:
            check_python(site, spec)
        for target in spec_checks.targets_of(spec):
            self.check_target(target)

    def check_target(self, target: Target) -> None:
        """Allows every target, except those whose engine generates text."""
        spec_checks.require_tensor_engine(target)

    def contract(self, inspected: Inspected) -> DeclaredGraph:
        """The signature and the example, and requirements if the model may fall back to its own code."""
        return DeclaredGraph(
            signature=inspected.signature,
            example=inspected.example,
            tabular=inspected.tabular,
            requirements=inspected.requirements,
            notes=inspected.notes,
        )

    def export(self, work: Exporting[DeclaredGraph]) -> Exported:
        """The graph; with `fallback: python` the model itself, if it has no graph."""
        try:
            return export_graph(work)
        except ExportFailed as error:
            falls_back = work.conversion.fallback == "python" and work.version.flavor in FALL_BACK
            if not falls_back or work.conversion.preprocess:  # the model's own code takes pixels, not files
                raise
            return _fallen_back(work, why=error.what.rstrip("."))

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
        return Requests(samples=synthetic(example, signature, load))

    def export_summary(self, exported: ExportedGraph) -> str:
        """How it was converted, and what was asked of both models."""
        how = converted(exported, f", opset {exported.opset}")
        return f"{how} {proved(exported.proof)}" if exported.proof else how


def _fallen_back(work: Exporting[DeclaredGraph], *, why: str) -> ExportedPython:
    progress("no graph: the model's own code serves it")
    try:
        exported = export_python(work)
    except ExportFailed as error:
        raise ExportFailed(f"{why}; its own code can't serve it either: {error.what}", do=error.do) from error
    return exported.model_copy(update={"notes": (_FELL_BACK.format(why=why), *exported.notes)})
