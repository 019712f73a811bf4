import json
from pathlib import Path
from typing import Any, cast

import pytest

from shiplift.runtime.base.errors import NotFound, VersionReplaced
from shiplift.runtime.base.secrets import load_secrets, sign
from shiplift.runtime.composition.incumbents import Members
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.deployment import Endpoint
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.model import ModelVersion
from shiplift.runtime.records.promotion import Promotion
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Site
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.ledger import PROMOTION, Ledger, UncheckedLedger, artifacts_of
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.terms import VersionInfo
from tests.unit.examples import exported, model_version, package, site

KEY = "1" * 64


class Runs:
    """What the ledger asks of a registry: texts of runs."""

    def __init__(self) -> None:
        self.texts: dict[tuple[str, str], str] = {}
        self.reads = 0

    def version(self, name: str, version: int) -> VersionInfo:
        return VersionInfo(name=name, version=version, source="", run_id=f"run-{name}-{version}", created_at=0)

    def run_of(self, info: VersionInfo) -> str:
        return info.run_id

    def read_text(self, run_id: str, path: str) -> str | None:
        self.reads += 1
        return self.texts.get((run_id, path))

    def write_text(self, run_id: str, path: str, body: str) -> None:
        self.texts[run_id, path] = body


@pytest.fixture
def runs() -> Runs:
    return Runs()


def ledger(home: Path, runs: Runs, version: int = 3) -> Ledger:
    return Ledger(site(home), Request(model="digits", version=version), registry=cast("Registry", runs))


@pytest.fixture
def record(tmp_path: Path) -> Package:
    store = ArtifactStore(site(tmp_path).artifacts_uri)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a").write_text("bytes")
    return package(repository=store.put_tree(tmp_path / "tree"))


def elsewhere(home: Path, runs: Runs, *, secret: str | None = None) -> Ledger:
    """A ledger with the same registry, the same artifacts and the same secrets, but no folder of its own yet."""
    other = home / "elsewhere"
    other.mkdir()
    kept = json.loads((home / "secrets.json").read_text())
    (other / "secrets.json").write_text(json.dumps(kept | ({"ledger": secret} if secret else {})))
    there = Site(**site(home).model_dump() | {"home": str(other)})
    return Ledger(there, Request(model="digits", version=3), registry=cast("Registry", runs))


def test_a_record_that_was_put_is_found(tmp_path: Path, runs: Runs, record: Package) -> None:
    records = ledger(tmp_path, runs)
    assert records.get(KEY, "package", Package) is None
    records.put(KEY, "package", record)
    assert records.get(KEY, "package", Package) == record
    assert ledger(tmp_path, runs).get(KEY, "package", Package) == record


def test_a_record_is_found_again_here_without_asking_the_registry(tmp_path: Path, runs: Runs, record: Package) -> None:
    ledger(tmp_path, runs).put(KEY, "package", record)
    assert ledger(tmp_path, runs).get(KEY, "package", Package) == record
    assert runs.reads == 0


def test_a_record_is_found_in_the_registry_where_this_machine_has_none(
    tmp_path: Path, runs: Runs, record: Package
) -> None:
    ledger(tmp_path, runs).put(KEY, "package", record)
    other = elsewhere(tmp_path, runs)
    assert other.get(KEY, "package", Package) == record
    assert other.get(KEY, "package", Package) == record
    assert runs.reads == 1  # from then on it is kept there too


def test_a_record_lies_with_the_run_of_its_version(tmp_path: Path, runs: Runs, record: Package) -> None:
    ledger(tmp_path, runs).put(KEY, "package", record)
    assert list(runs.texts) == [("run-digits-3", f"shiplift/records/package-{KEY[:16]}.json")]


@pytest.mark.parametrize(
    "forge",
    [
        lambda body: body | {"record": body["record"].replace('"version":2', '"version":9')},
        lambda body: body | {"signature": "0" * 64},
        lambda body: body | {"signature": "é"},
        lambda body: body | {"signature": None},
        lambda body: body | {"record": "\ud800"},
        lambda body: body | {"signature": sign("guessed", KEY, body["record"])},
        lambda body: {"record": body["record"]},
        lambda body: {},
        lambda body: [],
        lambda body: "text",
        lambda body: None,
    ],
)
def test_a_forged_record_is_not_a_hit(tmp_path: Path, runs: Runs, record: Package, forge: Any) -> None:
    ledger(tmp_path, runs).put(KEY, "package", record)
    ((at, text),) = runs.texts.items()
    runs.texts[at] = json.dumps(forge(json.loads(text)))
    assert elsewhere(tmp_path, runs).get(KEY, "package", Package) is None


@pytest.mark.parametrize("text", ["", "{", "\x00", "[" * 100_000])
def test_what_is_no_json_is_not_a_hit(tmp_path: Path, runs: Runs, record: Package, text: str) -> None:
    ledger(tmp_path, runs).put(KEY, "package", record)
    (at,) = runs.texts
    runs.texts[at] = text
    assert elsewhere(tmp_path, runs).get(KEY, "package", Package) is None


def test_a_genuine_record_copied_under_another_key_is_not_a_hit(tmp_path: Path, runs: Runs, record: Package) -> None:
    ledger(tmp_path, runs).put(KEY, "package", record)
    ((_, text),) = runs.texts.items()
    other = "2" * 64
    runs.texts["run-digits-3", f"shiplift/records/package-{other[:16]}.json"] = text
    assert elsewhere(tmp_path, runs).get(other, "package", Package) is None


def test_a_record_signed_by_another_stack_is_not_a_hit(tmp_path: Path, runs: Runs, record: Package) -> None:
    ledger(tmp_path, runs).put(KEY, "package", record)
    assert elsewhere(tmp_path, runs, secret="another").get(KEY, "package", Package) is None


def test_a_record_whose_bytes_are_gone_is_not_a_hit(tmp_path: Path, runs: Runs, record: Package) -> None:
    records = ledger(tmp_path, runs)
    records.put(KEY, "package", record)
    for blob in (tmp_path / "artifacts").rglob("*"):
        if blob.is_file() and blob.read_bytes() == b"bytes":
            blob.unlink()
    assert records.get(KEY, "package", Package) is None
    assert elsewhere(tmp_path, runs).get(KEY, "package", Package) is None


def test_a_record_whose_manifest_was_altered_is_not_a_hit(tmp_path: Path, runs: Runs, record: Package) -> None:
    records = ledger(tmp_path, runs)
    records.put(KEY, "package", record)
    digest = record.repository.sha256
    (tmp_path / "artifacts" / "sha256" / digest[:2] / digest).write_text("{}")
    assert records.get(KEY, "package", Package) is None


def test_every_artifact_of_a_record_is_found_however_deep() -> None:
    record = exported()
    assert set(artifacts_of((record, package()))) == {record.model, record.reference, package().repository}
    members = Members(packages={"part": package()})
    assert list(artifacts_of(members)) == [package().repository]
    assert list(artifacts_of("text")) == []
    assert list(artifacts_of(Artifact(sha256="0" * 64, size_bytes=0))) != []


def promotion(version: int = 3) -> Promotion:
    at = Endpoint(http="http://127.0.0.1:1", grpc="127.0.0.1:2")
    return Promotion(model="digits", version=version, alias="champion", endpoint=at, package=package(version=version))


def test_what_a_version_was_promoted_with_is_found_by_the_version(tmp_path: Path, runs: Runs) -> None:
    assert ledger(tmp_path, runs).promotion() is None
    ledger(tmp_path, runs).put_promotion(promotion())
    assert ledger(tmp_path, runs).promotion() == promotion()
    assert ledger(tmp_path, runs, version=4).promotion() is None


def test_a_promotion_that_an_author_wrote_is_none(tmp_path: Path, runs: Runs) -> None:
    load_secrets(tmp_path)
    at = ("run-digits-3", "shiplift/promotion.json")
    text = promotion().model_dump_json()
    runs.texts[at] = json.dumps({"record": text, "signature": sign("guessed", "promotion digits/3", text)})
    assert ledger(tmp_path, runs).promotion() is None


def test_the_promotion_of_another_version_copied_here_is_none(tmp_path: Path, runs: Runs) -> None:
    ledger(tmp_path, runs, version=4).put_promotion(promotion(4))
    runs.texts["run-digits-3", "shiplift/promotion.json"] = runs.texts["run-digits-4", "shiplift/promotion.json"]
    assert ledger(tmp_path, runs).promotion() is None


def test_a_version_that_is_gone_was_deleted_during_its_release(tmp_path: Path, runs: Runs) -> None:
    records, error = ledger(tmp_path, runs), NotFound("the registry has no run 'x'", do="-")
    assert records.explain(error) is error

    def gone(_name: str, _version: int) -> VersionInfo:
        raise NotFound("no such version", do="-")

    runs.version = gone  # type: ignore[method-assign, assignment]
    explained = str(records.explain(error))
    assert explained.startswith("version 3 of 'digits' was deleted while its release was under way. Register it again")


@pytest.mark.parametrize("body", [None, "", "[]", "{}", '{"record": "{}"}', '{"record": 3}', "["])
def test_without_the_key_a_promotion_is_read_as_it_is_and_anything_else_is_none(
    tmp_path: Path, runs: Runs, record: Package, body: str | None
) -> None:
    promotion = Promotion(
        model="digits", version=3, alias="champion", endpoint=Endpoint(http="", grpc=""), package=record
    )
    ledger(tmp_path, runs).put_promotion(promotion)
    ((run, path),) = runs.texts
    assert path == PROMOTION
    assert UncheckedLedger(runs, run).promotion() == promotion
    assert UncheckedLedger(runs, "").promotion() is None
    runs.texts = {(run, path): body} if body is not None else {}
    assert UncheckedLedger(runs, run).promotion() is None


class Registered(Runs):
    """One version, which can be replaced."""

    created_at, files = 1.0, "as registered"

    def version(self, name: str, version: int) -> VersionInfo:
        return VersionInfo(name=name, version=version, source="", run_id="run", created_at=self.created_at)

    def download_model(self, _info: VersionInfo, to: Path, *, limit_mb: float) -> Path:
        assert limit_mb
        to.mkdir()
        (to / "MLmodel").write_text(self.files)
        return to


class Admission(Record):
    """What admission stores, as far as the ledger looks into it."""

    model_version: ModelVersion


def test_an_admission_counts_only_for_the_registration_and_the_files_that_it_describes(tmp_path: Path) -> None:
    registered = Registered()
    store, at = ArtifactStore(site(tmp_path).artifacts_uri), tmp_path / "model"
    files = store.put_tree(registered.download_model(registered.version("digits", 3), at, limit_mb=1))
    record = Admission(model_version=model_version(version=3, digest=files.sha256, files=files, registered_at=1.0))
    ledger(tmp_path, registered).put(KEY, "admit", record)
    for created_at, text, found in (
        (1.0, "as registered", record),
        (2.0, "as registered", None),
        (1.0, "others", None),
    ):
        registered.created_at, registered.files = created_at, text
        assert ledger(tmp_path, registered).get(KEY, "admit", Admission) == found
        assert ledger(tmp_path, registered).recall(KEY, "admit", Admission) == record


def test_a_release_of_a_deleted_version_writes_nothing_to_the_one_with_its_number(tmp_path: Path) -> None:
    registered = Registered()
    request = Request(model="digits", version=3, registered_at=1.0)
    registered.created_at = 2.0
    records = Ledger(site(tmp_path), request, registry=cast("Registry", registered))
    with pytest.raises(VersionReplaced, match=r"version 3 of 'digits' was deleted.*`shiplift release digits/3`"):
        records.put(KEY, "package", package())
    assert registered.texts == {}
