"""The output of scoring: whole parts, and beside them what was to be done and what was done.

    OUT/part-00000-0000.parquet              a part, which appears whole, by a rename
    OUT/_shiplift/plan.json                  what is scored, with what, and in which parts
    OUT/_shiplift/parts/00000-0000.json      written after a part: digests of what was read and written
    OUT/_shiplift/refused/00000-0000.ndjson  the part's rows that the model refused, with their numbers and reasons
    OUT/_shiplift/result.json                written when all parts are there

Readers of Parquet pass over names that begin with `_`. A part without its note is scored again, over itself.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import fsspec
from fsspec.core import url_to_fs
from pydantic import ValidationError

from shiplift.runtime.base.errors import OutputTaken
from shiplift.runtime.base.storage import room_for, write_atomically
from shiplift.runtime.host.folders import remove_tree
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.offline import InputFile, InputPart, OfflineOrder, OfflineResult

R = TypeVar("R", bound=Record)
_OURS = "_shiplift"
_HASHED = 1 << 20


class StoredPlan(Record):
    """What an output holds: everything on which its content depends."""

    format: int = 1
    model: str
    version: int
    digest: str
    order: OfflineOrder
    files: tuple[InputFile, ...]
    parts: tuple[InputPart, ...]
    columns: tuple[str, ...]
    schema_text: str


class PartNote(Record):
    """What was scored into a part: the digests of what was read and of what was written, and how many rows."""

    part: str
    input_sha256: str
    output_sha256: str
    rows: int
    refused: int
    seconds: float = 0.0


@dataclass(frozen=True)
class Output:
    """A folder, or a URI that fsspec knows."""

    uri: str

    def plan(self) -> StoredPlan | None:
        """The plan that the output was begun with; None if there is none.

        Raises:
            OutputTaken: it has one of another version of Shiplift.
        """
        body = self._read("plan.json")
        try:
            return None if body is None else StoredPlan.model_validate_json(body)
        except ValidationError as error:
            raise OutputTaken(
                f"{self.uri} was begun by another version of Shiplift", do="Use --overwrite, or another output."
            ) from error

    def put_plan(self, plan: StoredPlan) -> None:
        """Keeps a plan, before anything is scored."""
        self._write("plan.json", plan)

    def note(self, part: InputPart) -> PartNote | None:
        """What was scored into a part; None if the part is not there, or not whole."""
        body = self._read(f"parts/{part.name}.json")
        try:
            note = None if body is None else PartNote.model_validate_json(body)
        except ValidationError:
            return None
        return note if note and self._fs.exists(self._at(part.output)) else None

    def put_note(self, note: PartNote) -> None:
        """Says that a part is there; called after `place`."""
        self._write(f"parts/{note.part}.json", note)

    def result(self) -> OfflineResult | None:
        """How it ended; None if it has not."""
        body = self._read("result.json")
        return None if body is None else OfflineResult.model_validate_json(body)

    def put_result(self, result: OfflineResult) -> None:
        """Says that all parts are there."""
        self._write("result.json", result)

    def is_empty(self) -> bool:
        """Whether nothing is there, of us or of others."""
        return not self._fs.exists(self._root) or not any(map(_counts, self._fs.ls(self._root, detail=False)))

    def clear(self) -> None:
        """Removes what an earlier order left: the plan last, so that a killed clearing is cleared again."""
        for path in self._fs.glob(f"{self._root}/part-*.parquet"):
            self._fs.rm_file(path)
        for folder in ("parts", "refused"):
            if self._fs.exists(self._at(f"{_OURS}/{folder}")):
                self._fs.rm(self._at(f"{_OURS}/{folder}"), recursive=True)
        for name in ("result.json", "plan.json"):
            if self._fs.exists(self._at(f"{_OURS}/{name}")):
                self._fs.rm_file(self._at(f"{_OURS}/{name}"))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other commands on this machine away from the output; elsewhere, a Workflow's lock does that.

        Raises:
            OutputTaken: another command writes there.
        """
        if not self._local:
            yield
            return
        folder = Path(self._at(_OURS))
        with room_for("the plan", folder.parent):
            folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise OutputTaken(f"another command writes to {self.uri}", do="Wait for it, or end it.") from error
        finally:
            os.close(handle)

    def scratch(self, otherwise: Path) -> Path:
        """Where unfinished parts are written: in the output if a rename can move them from there."""
        folder = Path(self._at(f"{_OURS}/unfinished")) if self._local else otherwise
        with room_for("a part", folder.parent):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def sweep(self) -> None:
        """Removes what killed workers left unfinished; called while no worker runs."""
        if self._local:
            remove_tree(Path(self._at(f"{_OURS}/unfinished")))

    def place(self, unfinished: Path, part: InputPart) -> str:
        """Makes a written part appear whole under its name; returns its SHA-256."""
        return self._place(unfinished, part.output)

    def place_refused(self, unfinished: Path, part: InputPart) -> None:
        """Does the same with the rows that the model refused."""
        self._place(unfinished, f"{_OURS}/refused/{part.name}.ndjson")

    # --- files ---

    @property
    def _fs(self) -> Any:
        return url_to_fs(self.uri)[0]

    @property
    def _root(self) -> str:
        return str(url_to_fs(self.uri)[1]).rstrip("/")

    @property
    def _local(self) -> bool:
        return isinstance(self._fs, fsspec.get_filesystem_class("file"))

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _read(self, name: str) -> bytes | None:
        try:
            return bytes(self._fs.cat_file(self._at(f"{_OURS}/{name}")))
        except FileNotFoundError:
            return None

    def _write(self, name: str, record: Record) -> None:
        body, path = record.model_dump_json(indent=1).encode(), self._at(f"{_OURS}/{name}")
        if self._local:
            write_atomically(Path(path), body)
        else:
            self._fs.pipe_file(path, body)

    def _place(self, unfinished: Path, name: str) -> str:
        with unfinished.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        path = self._at(name)
        if self._local:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            unfinished.replace(path)
        else:
            self._fs.put_file(str(unfinished), path)
            unfinished.unlink()
        return sha256


def _counts(path: str) -> bool:
    """Whether an entry of a folder is content: the folder of our own is there as soon as it is locked."""
    return path.rstrip("/").rpartition("/")[2] != _OURS
