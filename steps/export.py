"""Export: the logged model in the form that will be served, and the proof that both give the same answers.

The form depends on the kind of model, so the model's family makes it, in sandboxes.
"""

from shiplift.runtime.families import table
from shiplift.runtime.families.work import Exporting
from shiplift.runtime.records.kinds.contract import Contract
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.model import ModelVersion
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.model import Conversion


def export(site: Site, model_version: ModelVersion, contract: Contract, conversion: Conversion) -> Exported:
    """Makes the version as it will be served, and compares it with the original.

    Raises:
        ExportFailed: the model does not load, convert or run.
        SandboxLimit: the model needs more memory or time than the spec allows.
        ArtifactCorrupt: the files differ from those admitted.
    """
    return table.of(contract).export(
        Exporting(site=site, version=model_version, contract=contract, conversion=conversion)
    )
