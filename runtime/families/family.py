"""The protocol of a family: all that differs between kinds of models, from a version's files to its report."""

from typing import Protocol, TypeVar

from shiplift.runtime.admission.inspection import InspectedVersion
from shiplift.runtime.families.work import Exporting, Packaging, Quantizing
from shiplift.runtime.measure.requests import Requests
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.kinds.contract import Contract
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.precision import Candidates
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.measurement import Load
from shiplift.runtime.spec.target import Target

C = TypeVar("C", bound=Contract)
E = TypeVar("E", bound=Exported)
P_contra = TypeVar("P_contra", bound=Package, contravariant=True)


class Family(Protocol[C, E, P_contra]):
    """A kind of model. `kind` is that of its records; `takes_images` says whether its data can be JPEG files."""

    kind: str
    takes_images: bool

    def recognises(self, inspected: InspectedVersion) -> bool:
        """Whether a version is of this kind, according to what its files declare."""
        ...

    def check(self, site: Site, spec: ReleaseSpec, inspected: InspectedVersion) -> None:
        """Checks, before time is spent on it, that a site and a spec let a version be released.

        Raises:
            NotAdmitted, PolicyRefused: the site does not let it.
            SpecInvalid: the spec asks for something that such a model lacks.
            MissingTool: a library that it needs is not installed here.
        """
        ...

    def check_target(self, target: Target) -> None:
        """Checks that a target serves such models.

        Raises:
            SpecInvalid: it does not.
        """
        ...

    def contract(self, site: Site, spec: ReleaseSpec, inspected: InspectedVersion) -> C:
        """What the author declared, and what of it a site and a spec let serve."""
        ...

    def export(self, work: Exporting[C]) -> Exported:
        """The model as it will be served. It may be of another kind: a graph that does not convert becomes Python.

        Raises:
            ExportFailed: the model does not load, convert or run.
            SandboxLimit: the model needs more memory or time than the spec allows.
            ArtifactCorrupt: the files differ from those admitted.
        """
        ...

    def candidates(self, work: Quantizing[E]) -> Candidates:
        """The precisions of the model that a target allows, built and scored.

        Raises:
            DataInvalid: the logged data do not match the model.
            ExportFailed: fp32 does not load.
            SandboxLimit: building takes more memory or time than the spec allows.
        """
        ...

    def packages(self, work: Packaging[E]) -> Packages:
        """A package for each candidate that can pass.

        Raises:
            ArtifactCorrupt: a file is missing or altered.
            SpecInvalid: the spec asks for something that the model or the target lacks.
            StorageFull: no space is left.
        """
        ...

    def requests(self, package: P_contra, golden: Arrays, load: Load) -> Requests:
        """What a load test sends to a package, made from its golden requests.

        Raises:
            DataInvalid: the spec's shapes do not fit the model.
        """
        ...

    def export_summary(self, exported: E) -> str:
        """What a report says about the export of the model."""
        ...
