"""The export of what is served as it was logged: a pipeline of models, an adopted model."""

from typing import TypeVar

from shiplift.runtime.families import spec_checks
from shiplift.runtime.families.work import Exporting
from shiplift.runtime.model.tensors import dump_npz, load_npz
from shiplift.runtime.records.kinds.contract import DeclaredAdopted, DeclaredPipeline
from shiplift.runtime.records.kinds.exported import ExportedAdopted, ExportedPipeline

E = TypeVar("E", ExportedAdopted, ExportedPipeline)


def as_logged(work: Exporting[DeclaredAdopted] | Exporting[DeclaredPipeline], kind: type[E]) -> E:
    """The logged files with their requests. Nothing is converted, so there is no parity to prove."""
    spec_checks.require_no_pixels(work.conversion)
    example = load_npz(work.store.read(work.contract.example))
    reference = dump_npz({f"input/{name}": array for name, array in example.items()})
    return kind(
        model=work.version.files,
        signature=work.contract.signature,
        graph=work.version.digest,
        reference=work.store.put_bytes(reference),
        notes=work.contract.notes,
    )
