"""Captured rows that another process keeps: what `pipelines.daemons.capture_keeper` answers, from the side that asks.

Files are copied into a folder of the caller's, where a `CaptureFolder` reads them as it reads a machine's own.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from shiplift.runtime.base.errors import Temporary
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.storage import room_for
from shiplift.runtime.capture.asked import nothing_kept
from shiplift.runtime.capture.folder import CaptureFolder, File
from shiplift.runtime.capture.parts import TOKEN_HEADER
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.capturing import Captured, Capturing, DeletedRows, ExportedRows
from shiplift.runtime.records.failure import Failure

FAILED = 422  # the status of an answer whose body is a `Failure`
_TRIES = 5


class KeptFiles(Record):
    """The names of a model's files, the oldest rows first, and the settings of its rows."""

    settings: Capturing | None
    files: tuple[str, ...]


class Deletion(Record):
    """Whose rows are to be deleted: the value of the spec's `capture.key`."""

    model: str
    value: str


class RowsElsewhere:
    """The rows that a keeper has. `client` reaches it; `token` is the readers'.

    Every method raises `Temporary` if the keeper does not answer, and otherwise passes on the keeper's error.
    """

    def __init__(self, client: httpx.Client, token: str) -> None:
        self._client, self._token = client, token

    def summary(self, model: str) -> Captured:
        """What is kept of a model. Raises what `asked.summary` raises."""
        return Captured.model_validate_json(self._ask("GET", f"/captured/{serving_name(model)}", model=model).content)

    def delete(self, model: str, value: str) -> DeletedRows:
        """Deletes the rows of a person. Raises what `asked.delete` raises."""
        body = Deletion(model=model, value=value).model_dump_json()
        answer = self._ask("POST", f"/captured/{serving_name(model)}/delete", content=body)
        return DeletedRows.model_validate_json(answer.content)

    def export(self, model: str, file: Path) -> ExportedRows:
        """Writes what is kept of a model to a Parquet file.

        Raises:
            NotFound: nothing is kept.
            StorageFull: no space is left.
        """
        from shiplift.runtime.capture.folder import export  # noqa: PLC0415 - as the folder is

        with self.copied(model) as folder:
            rows = folder.read()
            if rows is None:
                raise nothing_kept(model)
            export(rows, file)
        return ExportedRows(model=model, rows=rows.num_rows, file=str(file))

    @contextmanager
    def copied(self, model: str, *, since: float = 0.0) -> Iterator[CaptureFolder]:
        """A temporary folder with copies of a model's files with rows since then, and its settings.

        Raises:
            StorageFull: no space is left.
        """
        for _ in range(_TRIES):
            with tempfile.TemporaryDirectory(prefix="captured-") as folder:
                kept = self.files(model, since=since)
                if all(self._copy(model, name, Path(folder)) for name in kept.files):
                    copy = CaptureFolder(Path(folder))
                    if kept.settings:
                        copy.keep_settings(kept.settings)
                    yield copy
                    return
        raise Temporary(f"the captured files of {model!r} change all the time", do="Run the same command again.")

    def files(self, model: str, *, since: float = 0.0) -> KeptFiles:
        """A model's files with rows since then, and the settings of its rows."""
        return KeptFiles.model_validate_json(self._ask("GET", _files(model), since=str(since)).content)

    def file(self, model: str, name: str) -> bytes | None:
        """A file of that name; None if it was joined with others or deleted meanwhile."""
        if not File.named(name):
            raise _unclear(f"it named a file {name[:80]!r}")
        answer = self._ask("GET", f"{_files(model)}/{quote(name)}", or_none=True)
        return None if answer.status_code == 404 else answer.content

    def _copy(self, model: str, name: str, folder: Path) -> bool:
        body = self.file(model, name)
        if body is not None:
            with room_for(name, folder):
                (folder / name).write_bytes(body)
        return body is not None

    def _ask(self, method: str, path: str, *, content: str = "", or_none: bool = False, **query: str) -> httpx.Response:
        headers = {TOKEN_HEADER: self._token}
        try:
            answer = self._client.request(method, path, params=query, content=content or None, headers=headers)
        except httpx.HTTPError as error:
            raise _unclear(error) from error
        if answer.status_code == FAILED:
            raise _failure(answer.content).error()
        if not (answer.is_success or (or_none and answer.status_code == 404)):
            raise _unclear(f"it answered {answer.status_code} {answer.text[:200]}")
        return answer


def _files(model: str) -> str:
    return f"/captured/{serving_name(model)}/files"


def _failure(body: bytes) -> Failure:
    try:
        return Failure.model_validate_json(body)
    except ValidationError as error:
        raise _unclear(error) from error


def _unclear(cause: Any) -> Temporary:
    return Temporary(
        f"what keeps captured rows does not answer: {' '.join(str(cause).split())[:300]}",
        do="See `shiplift logs capture --engine argo`, then try again.",
    )
