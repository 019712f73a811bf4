"""The family of toys: ONNX graphs whose input is called `toy`. Their records keep a motto, which no other kind has."""

from typing import Any, Literal

from shiplift.runtime.admission.inspection import InspectedVersion
from shiplift.runtime.families import spec_checks
from shiplift.runtime.families.export_summary import converted
from shiplift.runtime.families.graph.answers import GraphAnswers
from shiplift.runtime.families.graph.export import export_graph
from shiplift.runtime.families.packaging.draft import Draft
from shiplift.runtime.families.packaging.packages import judged_packages
from shiplift.runtime.families.work import Exporting, Packaging, Quantizing
from shiplift.runtime.measure.requests import Requests, synthetic
from shiplift.runtime.model.tensors import Arrays, inputs_in
from shiplift.runtime.records.kinds.contract import Contract, DeclaredGraph
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.precision import Candidate, Candidates
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.serving.triton.repository import write_package
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.measurement import Load
from shiplift.runtime.spec.target import Target


class DeclaredToy(Contract):
    kind: Literal["toy"] = "toy"
    motto: str


class ExportedToy(Exported):
    kind: Literal["toy"] = "toy"
    motto: str


class ToyPackage(Package):
    kind: Literal["toy"] = "toy"
    motto: str


class ToyMaker(GraphAnswers[ExportedToy]):
    def write(self, draft: Draft) -> None:
        server = self.work.target.server
        write_package(draft.tree, draft.described, draft.model, server, example=draft.inputs, golden=draft.golden)
        (draft.tree / "motto.txt").write_text(self.work.exported.motto)

    def record(self, draft: Draft, common: dict[str, Any]) -> ToyPackage:
        return ToyPackage(**common, motto=self.work.exported.motto)


class ToyFamily:
    kind = "toy"
    takes_images = False

    def recognises(self, inspected: InspectedVersion) -> bool:
        return inspected.signature.inputs[0].name == "toy"

    def check(self, _site: Site, spec: ReleaseSpec, _inspected: InspectedVersion) -> None:
        spec_checks.refuse({"serving.lengths": spec.serving.lengths}, "a toy has no lengths")

    def check_target(self, target: Target) -> None:
        spec_checks.require_tensor_engine(target)

    def contract(self, _site: Site, _spec: ReleaseSpec, inspected: InspectedVersion) -> DeclaredToy:
        return DeclaredToy(signature=inspected.signature, example=inspected.example, motto="play")

    def export(self, work: Exporting[DeclaredToy]) -> ExportedToy:
        plain = DeclaredGraph(signature=work.contract.signature, example=work.contract.example)
        graph = export_graph(
            Exporting(
                site=work.site,
                version=work.version,
                contract=plain,
                conversion=work.conversion,
                datasets=work.datasets,
                data=work.data,
            )
        )
        common = {name: getattr(graph, name) for name in Exported.model_fields if name != "kind"}
        return ExportedToy(**common, motto=work.contract.motto)

    def candidates(self, work: Quantizing[ExportedToy]) -> Candidates:
        only = Candidate(precision="fp32", method="as exported", model=work.exported.model)
        return Candidates(target=work.target.name, metric=None, candidates=(only,))

    def packages(self, work: Packaging[ExportedToy]) -> Packages:
        return judged_packages(work, ToyMaker(work))

    def requests(self, package: ToyPackage, golden: Arrays, load: Load) -> Requests:
        return Requests(samples=synthetic(inputs_in(golden, package.signature), package.signature, load))

    def export_summary(self, exported: ExportedToy) -> str:
        return converted(exported, f", under the motto {exported.motto}")
