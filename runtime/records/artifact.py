"""Files and trees of files, named by their digest."""

from typing import Literal

from pydantic import Field

from shiplift.runtime.records.base import Record, volatile


class Artifact(Record):
    """A file or a tree of files, named by its SHA-256; a tree's digest is that of its manifest."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)
    kind: Literal["file", "tree"] = "file"
    uri: str = volatile("")
