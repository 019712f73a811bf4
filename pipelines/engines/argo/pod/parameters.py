"""A pod's records as Argo passes them on: files that become parameters of other pods.

One pod gets the records of all targets in a single argument, which has a size limit. So such a record goes into the
artifact store, and only its digest into the argument.
"""

import json
from pathlib import Path
from typing import Any

from shiplift.pipelines.engines.argo.workflows import as_parameter
from shiplift.pipelines.engines.walk import parts_of
from shiplift.pipelines.graph import FanOut
from shiplift.pipelines.release import RELEASE
from shiplift.runtime.base.errors import RecordTooLarge
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.site import Site
from shiplift.runtime.store.artifacts import ArtifactStore

MAX_RECORD_BYTES = 96 * 1024  # the kernel allows 128 KiB per argument, and Argo's escaping needs room
_GATHERED = tuple(stage.gives for stage in RELEASE if isinstance(stage, FanOut))
_STORED = "$stored"  # `{"$stored": ARTIFACT}` stands for a stored record


def resolved(value: Any, site: Site | None) -> Any:
    """Decoded JSON, with digests replaced by the stored records. Argo passes a list as a list of JSON texts."""
    if isinstance(value, list):
        return [resolved(json.loads(item) if isinstance(item, str) else item, site) for item in value]
    if site is not None and isinstance(value, dict) and set(value) == {_STORED}:
        return json.loads(ArtifactStore(site.artifacts_uri).read(Artifact.model_validate(value[_STORED])))
    return value


def write(out: Path, record: Record, site: Site | None) -> None:
    """Writes a record and its sections, each to the file that Argo reads as a parameter.

    Raises:
        RecordTooLarge: one of them does not fit into an argument.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name, part in parts_of(record).items():
        text = as_parameter(part)
        if isinstance(part, _GATHERED) and site is not None:
            stored = ArtifactStore(site.artifacts_uri).put_bytes(part.model_dump_json().encode())
            text = json.dumps({_STORED: stored.model_dump(mode="json", exclude={"uri"})})
        if len(text.encode()) > MAX_RECORD_BYTES:
            raise RecordTooLarge(
                f"the record {name!r} has {len(text.encode())} bytes; the limit between pods is {MAX_RECORD_BYTES}",
                do="Ask for less in the spec: fewer trials, targets or slices.",
            )
        (out / f"{name}.json").write_text(text)
