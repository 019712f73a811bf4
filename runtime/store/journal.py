"""Measurements as JSON lines, written as they are made, so that a killed search resumes where it stopped."""

import contextlib
import json
import os
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from shiplift.runtime.base.storage import room_for
from shiplift.runtime.records.base import Record

R = TypeVar("R", bound=Record)


class Journal(Generic[R]):
    """Records of one type by key, appended to `file`. If a kill cut a line off, only that line is ignored."""

    def __init__(self, file: Path, kind: type[R]) -> None:
        self._file = file
        self._known: dict[str, R] = {}
        for line in file.read_text(errors="replace").splitlines() if file.is_file() else ():
            with contextlib.suppress(ValueError, KeyError, TypeError, ValidationError):
                entry = json.loads(line)
                self._known[entry["key"]] = kind.model_validate(entry["record"])

    def get(self, key: str) -> R | None:
        """The record stored under a key, or None."""
        return self._known.get(key)

    def records(self) -> dict[str, R]:
        """Every record by key, oldest first."""
        return dict(self._known)

    def add(self, key: str, record: R) -> None:
        """Stores a record; it is on disk when this returns.

        Raises:
            StorageFull: no space is left.
        """
        self._known[key] = record
        with room_for("a measurement", self._file.parent):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.write("\n" + json.dumps({"key": key, "record": record.model_dump(mode="json")}))
                file.flush()
                os.fsync(file.fileno())
