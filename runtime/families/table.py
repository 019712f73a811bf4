"""The families, and the one to which a version or a record belongs. Adding a kind of model adds one line here."""

from typing import Any

from shiplift.runtime.admission.inspection import InspectedVersion
from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.families.adopted.family import AdoptedFamily
from shiplift.runtime.families.family import Family
from shiplift.runtime.families.generation.family import GenerationFamily
from shiplift.runtime.families.graph.family import GraphFamily
from shiplift.runtime.families.image.family import ImageFamily
from shiplift.runtime.families.pipeline.family import PipelineFamily
from shiplift.runtime.families.python.family import PythonFamily
from shiplift.runtime.families.text.family import TextFamily
from shiplift.runtime.measure.requests import Requests
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.kinds.union import Kinded
from shiplift.runtime.spec.measurement import Load

FAMILIES: list[Family[Any, Any, Any]] = [
    PipelineFamily(),
    AdoptedFamily(),
    GenerationFamily(),
    ImageFamily(),
    TextFamily(),
    GraphFamily(),
    PythonFamily(),
]


def recognised(inspected: InspectedVersion) -> Family[Any, Any, Any]:
    """The first family that recognises a version as its own.

    Raises:
        NotAdmitted: no family does.
    """
    for family in FAMILIES:
        if family.recognises(inspected):
            return family
    raise NotAdmitted(
        f"no kind of model has the flavor {inspected.flavor}",
        do="Log the model with a flavor that is released: docs/concepts/models.md lists them.",
    )


def export_summary(exported: Exported) -> str:
    """What a report says about the export of a model."""
    return of(exported).export_summary(exported)


def requests(package: Package, golden: Arrays, load: Load) -> Requests:
    """What a load test sends to a package, made from its golden requests.

    Raises:
        DataInvalid: the spec's shapes do not fit the model.
    """
    return of(package).requests(package, golden, load)


def of(record: Kinded) -> Family[Any, Any, Any]:
    """The family of a contract, an exported model or a package."""
    return {family.kind: family for family in FAMILIES}[record.kind]
