"""Export: the logged model in the form that is served, and the proof that both give the same answers.

What that form is depends on the kind of model, so its family makes it, in sandboxes.
"""

from shiplift.runtime.families import table
from shiplift.runtime.families.work import Exporting
from shiplift.runtime.records.kinds.contract import Contract
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.model import ModelVersion
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.model import Conversion


def export(site: Site, model_version: ModelVersion, contract: Contract, conversion: Conversion) -> Exported:
    """The version as it will be served, compared with the original.

    Raises:
        ExportFailed: the model does not load, convert or run.
        SandboxLimit: it needs more memory or time than the spec allows.
        ArtifactCorrupt: the files differ from those admitted.
    """
    return table.of(contract).export(
        Exporting(site=site, version=model_version, contract=contract, conversion=conversion)
    )
