"""What is captured of a home's production, and the rows that are kept of it."""

from pathlib import Path
from typing import TYPE_CHECKING

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.secrets import load_secrets, sign
from shiplift.runtime.capture import asked
from shiplift.runtime.capture.root import root_of
from shiplift.runtime.records.capturing import Captured, Capturing, DeletedRows, ExportedRows
from shiplift.runtime.serving.machine.served import every_served, served

if TYPE_CHECKING:
    from shiplift.runtime.capture.folder import CaptureFolder


def secret_of(home: Path) -> str:
    """The key of the hashes in a home's captured rows."""
    return sign(load_secrets(home).ledger, "captured columns")


def wanted(home: Path) -> dict[str, Capturing]:
    """What is captured, by served name."""
    packages = [each.package for each in every_served(home)]
    return {serving_name(each.model): each.capturing for each in packages if each.capturing}


def needed(home: Path) -> bool:
    """Whether a home needs a process that captures: a model is captured, or rows of one are kept."""
    return any(root_of(home).glob("*/settings.json")) or bool(wanted(home))


def folder_of(home: Path, model: str) -> "CaptureFolder":
    """The folder of a model's captured rows."""
    from shiplift.runtime.capture.folder import CaptureFolder  # noqa: PLC0415 - PyArrow: 0.1 s and 60 MB

    return CaptureFolder(root_of(home) / serving_name(model))


def summary(home: Path, model: str) -> Captured:
    """What is kept of a model.

    Raises:
        NotFound: nothing of it is captured, and nothing is kept.
    """
    state = served(home, model)
    return asked.summary(folder_of(home, model), model, state.package.capturing if state else None)


def write(home: Path, model: str, file: Path) -> ExportedRows:
    """Writes what is kept of a model to a Parquet file.

    Raises:
        NotFound: nothing is kept.
        StorageFull: no space is left.
    """
    from shiplift.runtime.capture.folder import export  # noqa: PLC0415

    rows = folder_of(home, model).read() if folder_of(home, model).settings() else None
    if rows is None:
        raise asked.nothing_kept(model)
    export(rows, file)
    return ExportedRows(model=model, rows=rows.num_rows, file=str(file))


def delete(home: Path, model: str, value: str) -> DeletedRows:
    """Deletes the rows of a person.

    Raises:
        NotFound: nothing is kept.
        UsageError: the model's spec names no key.
        StorageFull: no space is left; no row was deleted.
    """
    return asked.delete(folder_of(home, model), model, value, secret_of(home))
