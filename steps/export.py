"""Export: the logged model in the form that is served, and the proof that both give the same answers.

What that form is depends on the kind of model, so its family makes it, in sandboxes.
"""

from shiplift.runtime.families import table
from shiplift.runtime.families.work import Exporting
from shiplift.runtime.records.kinds.contract import Contract
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.model import Datasets, ModelVersion
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.model import Conversion, Data


def export(
    site: Site,
    model_version: ModelVersion,
    contract: Contract,
    conversion: Conversion,
    datasets: Datasets,
    data: Data,
) -> Exported:
    """The version as it will be served, compared with the original on its example and on its validation data.

    Raises:
        ExportFailed: the model does not load, convert or run, or what would be served answers differently.
        DataInvalid: the validation data do not match the model.
        SandboxLimit: it needs more memory or time than the spec allows.
        ArtifactCorrupt: the files differ from those admitted.
    """
    return table.of(contract).export(
        Exporting(
            site=site, version=model_version, contract=contract, conversion=conversion, datasets=datasets, data=data
        )
    )
