"""Export: the logged model in the form that will be served, and the proof that both give the same answers.

The form depends on the kind of model, so the model's family makes it, in sandboxes.
"""

import shlex

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.families import table
from shiplift.runtime.families.work import Exporting
from shiplift.runtime.records.kinds.contract import Contract
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.model import Datasets, ModelVersion, RecordedRequests
from shiplift.runtime.records.proof import row_in
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.model import Conversion, Data


def export(
    site: Site,
    model_version: ModelVersion,
    contract: Contract,
    conversion: Conversion,
    datasets: Datasets,
    data: Data,
    recorded_requests: RecordedRequests,
) -> Exported:
    """Makes the version as it will be served, and compares it with the original, on the author's data among others.

    Raises:
        ExportFailed: the model does not load, convert or run, or what would be served answers differently.
        DataInvalid: the validation data do not match the model.
        SandboxLimit: the model needs more memory or time than the spec allows.
        ArtifactCorrupt: the files differ from those admitted.
    """
    work = Exporting(
        site=site,
        version=model_version,
        contract=contract,
        conversion=conversion,
        datasets=datasets,
        data=data,
        recorded_requests=recorded_requests,
    )
    try:
        exported = table.of(contract).export(work)
    except ExportFailed as error:
        if not (row := row_in(error.what)):
            raise
        raise ExportFailed(error.what, do=f"{error.do} {_again(model_version, row)}") from error
    return exported if exported.scoring else exported.model_copy(update={"scoring": contract.scoring})


def _again(version: ModelVersion, row: str) -> str:
    """How to ask the registered model that row again: nothing is kept of what it was compared with."""
    name = f"{shlex.quote(version.name)}/{version.version}"
    return f"What the model itself answers now is shown by: shiplift ask {name} --inputs {shlex.quote(row)}"
