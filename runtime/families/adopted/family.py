"""The family of adopted models: those of a Triton repository, served as they are."""

from shiplift.runtime.admission.inspection import InspectedVersion
from shiplift.runtime.base.errors import PolicyRefused, SpecInvalid
from shiplift.runtime.families import spec_checks
from shiplift.runtime.families.adopted.package import package_adopted
from shiplift.runtime.families.as_logged import as_logged
from shiplift.runtime.families.work import Exporting, Packaging, Quantizing
from shiplift.runtime.measure.requests import Requests, split, whole
from shiplift.runtime.model.tensors import Arrays, inputs_in
from shiplift.runtime.records.kinds.contract import DeclaredAdopted
from shiplift.runtime.records.kinds.exported import Exported, ExportedAdopted
from shiplift.runtime.records.kinds.package import AdoptedPackage
from shiplift.runtime.records.model import ADOPTED
from shiplift.runtime.records.precision import Candidate, Candidates
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.measurement import Load
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.spec.target import Target


class AdoptedFamily:
    """Models of a Triton repository, as `shiplift adopt` logs them. They are neither converted nor tuned."""

    kind = "adopted"
    takes_images = False

    def recognises(self, inspected: InspectedVersion) -> bool:
        """Whether it was logged as one."""
        return bool(inspected.flavor == ADOPTED)

    def check(self, site: Site, spec: ReleaseSpec, inspected: InspectedVersion) -> None:
        """Checks that the site lets its Python run, and that the spec asks for nothing that would change it."""
        if inspected.code and "sandbox" not in site.policy.python:
            raise PolicyRefused(
                f"the adopted model runs its author's code ({', '.join(inspected.code[:3])}), and `policy.python` does "
                "not allow `sandbox`",
                do="Adopt models without Python, or ask the owner of this site to change its policy.",
            )
        asked = spec_checks.of_graphs(spec) | {"serving": spec.serving != Serving()}
        spec_checks.refuse(asked, "an adopted model keeps the configuration that it has")
        for target in spec_checks.targets_of(spec):
            self.check_target(target)

    def check_target(self, target: Target) -> None:
        """Allows CPUs with the bundled server, where the right answers are recorded."""
        spec_checks.require_tensor_engine(target)
        if target.gpu or target.server != "bundled" or target.engine != "auto":
            raise SpecInvalid(
                f"target {target.name} can't serve an adopted model: only a CPU with `server: bundled` and `engine: "
                "auto` does",
                do="Name such a target, or release the model itself.",
            )

    def contract(self, _site: Site, _spec: ReleaseSpec, inspected: InspectedVersion) -> DeclaredAdopted:
        """The requests."""
        return DeclaredAdopted(signature=inspected.signature, example=inspected.example, notes=inspected.notes)

    def export(self, work: Exporting[DeclaredAdopted]) -> Exported:
        """The logged files with their requests. Nothing is converted, so there is no parity to prove."""
        return as_logged(work, ExportedAdopted)

    def candidates(self, work: Quantizing[ExportedAdopted]) -> Candidates:
        """Its only candidate: itself."""
        candidate = Candidate(precision="fp32", method="as it was adopted", model=work.exported.model)
        return Candidates(target=work.target.name, metric=None, candidates=(candidate,))

    def packages(self, work: Packaging[ExportedAdopted]) -> Packages:
        """The repository, with the names and numbers that it gets in production."""
        return package_adopted(work)

    def requests(self, package: AdoptedPackage, golden: Arrays, _load: Load) -> Requests:
        """The example's own requests, unchanged: nobody says which other values the model takes."""
        samples = split(inputs_in(golden, package.signature))
        return Requests(samples=whole(samples) if package.takes_whole else samples)

    def export_summary(self, _exported: ExportedAdopted) -> str:
        """Says that it was taken as it is."""
        return (
            "It was adopted from a Triton model repository: nothing was converted or tuned, and its own answers are "
            "the right ones. Later versions are compared with it."
        )
