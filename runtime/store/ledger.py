"""The results of finished stages, stored twice: in the version's run in the registry, and in a local folder for speed.

Entries are found by key (`engines.cache_key`) and signed, since authors can write to their own runs. If a record's
artifacts are gone from the store, it is not a hit.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from shiplift.runtime.base.errors import NotFound, Temporary, VersionReplaced
from shiplift.runtime.base.secrets import load_secrets, sign, signed_by
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.decision import Approval
from shiplift.runtime.records.model import ModelVersion
from shiplift.runtime.records.promotion import Promotion
from shiplift.runtime.records.request import Request, same_time
from shiplift.runtime.records.site import Site
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.published import TextStore
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.terms import FOLDER, VersionInfo
from shiplift.runtime.store.same_version import is_unchanged, require_registration

R = TypeVar("R", bound=Record)
PROMOTION, APPROVAL = f"{FOLDER}/promotion.json", f"{FOLDER}/approval.json"


class Ledger:
    """The ledger of one release request.

    Methods raise `Temporary` if the registry does not respond.
    """

    def __init__(self, site: Site, request: Request, *, registry: Registry | None = None) -> None:
        self._site = site
        self._request = request
        self._folder = Path(site.home) / "records"
        self._registry = registry

    @property
    def model(self) -> str:
        """The model of the request."""
        return self._request.model

    @cached_property
    def registry(self) -> Registry:
        """The registry, connected on first use."""
        return self._registry or Registry(self._site.registry_uri)

    @cached_property
    def info(self) -> VersionInfo:
        """The version in the registry.

        Raises:
            NotFound: the registry has no such version.
            VersionReplaced: it has another one of that number.
        """
        info = self.registry.version(self._request.model, self._request.version)
        return require_registration(info, self._request)

    @cached_property
    def run_id(self) -> str:
        """The run that holds this version's history. Raises what `info` raises."""
        return self.registry.run_of(self.info)

    @cached_property
    def _secret(self) -> str:
        return load_secrets(Path(self._site.home)).ledger

    @cached_property
    def _store(self) -> ArtifactStore:
        return ArtifactStore(self._site.artifacts_uri)

    def explain(self, error: NotFound) -> NotFound:
        """The error, or one that says that the version is gone from the registry, if it is."""
        version = self._request.version
        try:
            require_registration(self.registry.version(self.model, version), self._request)
        except VersionReplaced as replaced:
            return replaced
        except NotFound:
            return NotFound(
                f"version {version} of {self.model!r} was deleted while its release was under way",
                do="Register it again if it should be released; what production serves has not changed.",
            )
        except Temporary:
            return error
        return error

    def get(self, key: str, stage: str, kind: type[R]) -> R | None:
        """The record stored under a key, if it is genuine, can be read, and all its artifacts still exist.

        The record of an admission also has to describe the version as the registry has it now.
        """
        record = self.recall(key, stage, kind)
        held = record is not None and all(self._store.holds(artifact) for artifact in artifacts_of(record))
        return record if held and self._describes_version(record) else None

    def _describes_version(self, record: Record | None) -> bool:
        admitted = getattr(record, ModelVersion.parameter(), None)
        if not isinstance(admitted, ModelVersion):
            return True
        return is_unchanged(self._site, self.info, admitted, self.registry)

    def recall(self, key: str, stage: str, kind: type[R]) -> R | None:
        """Like `get`, for readers of only the record: its artifacts may be gone."""
        file = self._folder / f"{key}.json"
        text = file.read_text() if file.is_file() else self._from_registry(key, stage)
        try:
            return kind.model_validate_json(text) if text is not None else None
        except ValidationError:  # it is another stage's, or another version of Shiplift wrote it
            return None

    def put(self, key: str, stage: str, record: Record) -> None:
        """Stores a record, locally and in the registry; doing so twice is harmless."""
        text = record.model_dump_json()
        envelope = json.dumps({"key": key, "record": text, "signature": sign(self._secret, key, text)})
        write_atomically(self._folder / f"{key}.json", text)  # first, so that no work is lost if the registry is down
        self.registry.write_text(self.run_id, _path(stage, key), envelope)

    def _from_registry(self, key: str, stage: str) -> str | None:
        text = self._genuine(self.registry.read_text(self.run_id, _path(stage, key)), key)
        if text is not None:
            write_atomically(self._folder / f"{key}.json", text)
        return text

    def _genuine(self, envelope: str | None, key: str) -> str | None:
        if envelope is None:
            return None
        try:
            content = json.loads(envelope)
            text, signature = str(content["record"]), str(content["signature"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return text if signed_by(self._secret, signature, key, text) else None

    # --- promotions: what a version was promoted with, by version instead of key ---

    def promotion(self) -> Promotion | None:
        """What this version was last promoted with.

        None if it never was, if it was retired since, or if the record is not genuine.
        """
        recorded = self.recorded_promotion()
        return None if recorded and recorded.retired else recorded

    def recorded_promotion(self) -> Promotion | None:
        """The same, even if it was retired since.

        A run may be registered again after its version was deleted: its record then describes another version.
        """
        text = self._genuine(self.registry.read_text(self.run_id, PROMOTION), self._promotion_key)
        promotion = Promotion.model_validate_json(text) if text else None
        return promotion if promotion and same_time(promotion.registered_at, self.info.created_at) else None

    def put_promotion(self, promotion: Promotion | None) -> None:
        """Stores what this version was promoted with; None: it was not."""
        text = promotion.model_dump_json() if promotion else ""
        envelope = {"record": text, "signature": sign(self._secret, self._promotion_key, text)}
        self.registry.write_text(self.run_id, PROMOTION, json.dumps(envelope))

    @property
    def _promotion_key(self) -> str:
        return f"promotion {self._request.model}/{self._request.version}"

    # --- approvals: what waits for a person, and what the person decided ---

    def approval(self) -> Approval | None:
        """What last waited for a person's approval; None if nothing did, or if the record is not genuine."""
        text = self._genuine(self.registry.read_text(self.run_id, APPROVAL), self._approval_key)
        return Approval.model_validate_json(text) if text else None

    def put_approval(self, approval: Approval) -> None:
        """Stores what waits for a person's approval, or what the person decided."""
        text = approval.model_dump_json()
        envelope = {"record": text, "signature": sign(self._secret, self._approval_key, text)}
        self.registry.write_text(self.run_id, APPROVAL, json.dumps(envelope))

    @property
    def _approval_key(self) -> str:
        return f"approval {self._request.model}/{self._request.version} {self.info.created_at}"


class UncheckedLedger:
    """The same entries for readers without the key to check signatures: good only for display and simulation.

    Raises `Temporary` if the registry does not answer.
    """

    def __init__(self, texts: TextStore, run_id: str) -> None:
        self._texts = texts
        self._run_id = run_id
        self._kept: dict[str, str | None] = {}

    def recall(self, key: str, stage: str, kind: type[R]) -> R | None:
        """The record stored under a key, by any writer; None if no record of this kind is there."""
        if key not in self._kept:
            self._kept[key] = self._text(key, stage)
        text = self._kept[key]
        try:
            return kind.model_validate_json(text) if text is not None else None
        except ValidationError:  # it is another stage's, or another version of Shiplift wrote it
            return None

    def promotion(self) -> Promotion | None:
        """What the version was last promoted with, by any writer; None if it never was, or was retired since."""
        envelope = self._texts.read_text(self._run_id, PROMOTION) if self._run_id else None
        try:
            promotion = Promotion.model_validate_json(str(json.loads(envelope or "{}")["record"]))
        except (ValueError, KeyError, TypeError, RecursionError):  # ValidationError is a ValueError
            return None
        return None if promotion.retired else promotion

    def approval(self) -> Approval | None:
        """What last waited for a person's approval, by any writer; None if nothing did."""
        envelope = self._texts.read_text(self._run_id, APPROVAL) if self._run_id else None
        try:
            return Approval.model_validate_json(str(json.loads(envelope or "{}")["record"]))
        except (ValueError, KeyError, TypeError, RecursionError):  # ValidationError is a ValueError
            return None

    def _text(self, key: str, stage: str) -> str | None:
        envelope = self._texts.read_text(self._run_id, _path(stage, key)) if self._run_id else None
        try:
            entry = json.loads(envelope or "{}")
            return str(entry["record"]) if entry["key"] == key else None
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


def artifacts_of(value: Any) -> Iterator[Artifact]:
    """Every artifact that a record names, at any depth."""
    if isinstance(value, Artifact):
        yield value
    elif isinstance(value, Record):
        for name in type(value).model_fields:
            yield from artifacts_of(getattr(value, name))
    elif isinstance(value, Mapping):
        yield from artifacts_of(tuple(value.values()))
    elif isinstance(value, tuple):
        for item in value:
            yield from artifacts_of(item)


def _path(stage: str, key: str) -> str:
    return f"{FOLDER}/records/{stage}-{key[:16]}.json"
