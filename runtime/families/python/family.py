"""The family of Python models."""

from shiplift.runtime.admission.inspection import InspectedVersion
from shiplift.runtime.families import spec_checks
from shiplift.runtime.families.export_summary import summary
from shiplift.runtime.families.packaging.packages import judged_packages
from shiplift.runtime.families.python.candidates import score_python
from shiplift.runtime.families.python.checks import check_python, check_target
from shiplift.runtime.families.python.export import export_python
from shiplift.runtime.families.python.package import PythonMaker
from shiplift.runtime.families.work import Exporting, Packaging, Quantizing
from shiplift.runtime.measure.requests import Requests, synthetic
from shiplift.runtime.model.tensors import Arrays, inputs_in
from shiplift.runtime.records.kinds.contract import DeclaredPython
from shiplift.runtime.records.kinds.exported import Exported, ExportedPython
from shiplift.runtime.records.kinds.package import PythonPackage
from shiplift.runtime.records.model import PYTHON
from shiplift.runtime.records.precision import Candidates
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.measurement import Load
from shiplift.runtime.spec.target import Target


class PythonFamily:
    """Models that are their author's code: `mlflow.pyfunc.log_model(python_model=...)`."""

    kind = "python"
    takes_images = False

    def recognises(self, inspected: InspectedVersion) -> bool:
        """Whether MLflow knows it by no other flavor."""
        return bool(inspected.flavor == PYTHON)

    def check(self, site: Site, spec: ReleaseSpec, _inspected: InspectedVersion) -> None:
        """Checks that there is a package index, and that the spec asks for no graph."""
        check_python(site, spec)
        for target in spec_checks.targets_of(spec):
            self.check_target(target)

    def check_target(self, target: Target) -> None:
        """Allows CPUs, if no engine is named."""
        spec_checks.require_tensor_engine(target)
        check_target(target)

    def contract(self, _site: Site, _spec: ReleaseSpec, inspected: InspectedVersion) -> DeclaredPython:
        """The signature, the example, and the requirements of its environment."""
        return DeclaredPython(
            signature=inspected.signature,
            example=inspected.example,
            tabular=inspected.tabular,
            requirements=inspected.requirements,
            notes=inspected.notes,
        )

    def export(self, work: Exporting[DeclaredPython]) -> Exported:
        """The environment, and the model's answers."""
        spec_checks.require_no_pixels(work.conversion)
        return export_python(work)

    def candidates(self, work: Quantizing[ExportedPython]) -> Candidates:
        """Itself."""
        return score_python(work)

    def packages(self, work: Packaging[ExportedPython]) -> Packages:
        """One package, with the model's code."""
        return judged_packages(work, PythonMaker(work))

    def requests(self, package: PythonPackage, golden: Arrays, load: Load) -> Requests:
        """Samples like the example's."""
        return Requests(samples=synthetic(inputs_in(golden, package.signature), package.signature, load))

    def export_summary(self, exported: ExportedPython) -> str:
        """How it was run, and in which environment."""
        environment = exported.python.environment
        more = f", in an environment of {len(environment.wheels)} packages ({environment.digest})"
        return summary(exported, more, proof=exported.proof, verb="Answered")
