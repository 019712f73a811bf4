import hashlib
import json
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shiplift.runtime.base.errors import ArtifactCorrupt
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.store.artifacts import ArtifactStore, digest


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore((tmp_path / "store").as_uri())


def blobs(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "store").rglob("*") if path.is_file())


def blob_of(tmp_path: Path, artifact: Artifact) -> Path:
    return tmp_path / "store" / "sha256" / artifact.sha256[:2] / artifact.sha256


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=4096))
def test_bytes_come_back_as_they_were_put(store: ArtifactStore, tmp_path: Path, body: bytes) -> None:
    artifact = store.put_bytes(body)
    assert (artifact.sha256, artifact.size_bytes) == (hashlib.sha256(body).hexdigest(), len(body))
    assert store.read(artifact) == body
    assert store.fetch(artifact, tmp_path / "out").read_bytes() == body


_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_. -]{0,10}", fullmatch=True).filter(lambda name: name == name.strip())
_trees = st.dictionaries(
    st.lists(_names, min_size=1, max_size=3).map("/".join), st.binary(max_size=200), max_size=6
).filter(lambda files: not any(b.startswith(f"{a}/") for a in files for b in files))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=_trees)
def test_a_tree_comes_back_as_it_was_put(store: ArtifactStore, tmp_path: Path, files: dict[str, bytes]) -> None:
    folder, to = tmp_path / uuid.uuid4().hex, tmp_path / uuid.uuid4().hex
    folder.mkdir()
    for name, body in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body)
    artifact = store.put_tree(folder)
    assert artifact.size_bytes == sum(map(len, files.values()))
    assert store.holds(artifact)
    store.fetch(artifact, to)
    assert {path.relative_to(to).as_posix(): path.read_bytes() for path in to.rglob("*") if path.is_file()} == files
    assert all(store.read_from_tree(artifact, name) == body for name, body in files.items())
    assert store.put_tree(to) == artifact


def test_equal_bytes_are_stored_once(store: ArtifactStore, tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"same")
    assert store.put_bytes(b"same") == store.put_file(file) == store.put_file(file)
    assert len(blobs(tmp_path)) == 1


def test_the_same_bytes_put_by_many_at_once_are_one_blob(store: ArtifactStore, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        artifacts = set(pool.map(lambda _: store.put_bytes(b"x" * 100_000), range(40)))
    assert len(artifacts) == len(blobs(tmp_path)) == 1


def test_the_digest_of_a_tree_depends_on_names_and_bytes_alone(store: ArtifactStore, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text("x")
    (tmp_path / "two" / "a").chmod(0o600)
    os.utime(tmp_path / "two" / "a", (0, 0))
    first, second = (store.put_tree(tmp_path / name) for name in ("one", "two"))
    assert first == second
    (tmp_path / "two" / "a").rename(tmp_path / "two" / "b")
    assert store.put_tree(tmp_path / "two").sha256 != first.sha256


def test_a_blob_that_was_altered_is_refused_and_nothing_of_it_stays(store: ArtifactStore, tmp_path: Path) -> None:
    artifact = store.put_bytes(b"right")
    blob_of(tmp_path, artifact).write_bytes(b"wrong")
    with pytest.raises(ArtifactCorrupt, match="do not match its digest"):
        store.fetch(artifact, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ArtifactCorrupt, match="do not match its digest"):
        store.read(artifact)


def test_a_blob_that_is_gone_is_named(store: ArtifactStore, tmp_path: Path) -> None:
    artifact = store.put_bytes(b"here")
    blob_of(tmp_path, artifact).unlink()
    for use in (lambda: store.read(artifact), lambda: store.fetch(artifact, tmp_path / "out")):
        with pytest.raises(ArtifactCorrupt, match=f"{artifact.sha256[:12]} is not in"):
            use()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out", "..", ".", "", "a/..", "./../out"])
def test_a_tree_that_names_a_path_outside_itself_is_refused(store: ArtifactStore, tmp_path: Path, name: str) -> None:
    blob = store.put_bytes(b"evil")
    manifest = store.put_bytes(json.dumps({"files": {name: {"sha256": blob.sha256}}}).encode())
    tree = manifest.model_copy(update={"kind": "tree"})
    with pytest.raises(ArtifactCorrupt, match="names"):
        store.fetch(tree, tmp_path / "to" / "tree")
    assert list((tmp_path / "to").rglob("*")) == [tmp_path / "to" / "tree"]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"files": 3}', b'{"files": {"a": 3}}', b"\xff", b'{"files": {"a": {}}}']
)
def test_a_tree_whose_manifest_is_none_is_corrupt(store: ArtifactStore, tmp_path: Path, body: bytes) -> None:
    tree = store.put_bytes(body).model_copy(update={"kind": "tree"})
    with pytest.raises(ArtifactCorrupt):
        store.fetch(tree, tmp_path / "to")


def test_a_manifest_cannot_make_the_store_read_another_file(store: ArtifactStore, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    path = os.path.relpath(tmp_path / "secret", tmp_path / "store" / "sha256" / "..")
    manifest = store.put_bytes(json.dumps({"files": {"a": {"sha256": path}}}).encode())
    with pytest.raises(ArtifactCorrupt):
        store.fetch(manifest.model_copy(update={"kind": "tree"}), tmp_path / "to")
    assert not (tmp_path / "to" / "a").exists()


@pytest.mark.parametrize("directory", [False, True])
def test_a_link_in_a_tree_is_refused(store: ArtifactStore, tmp_path: Path, directory: bool) -> None:
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "a").write_text("x")
    (folder / "link").symlink_to(tmp_path if directory else "/etc/passwd")
    with pytest.raises(ArtifactCorrupt, match="link is a symbolic link"):
        store.put_tree(folder)


def test_a_file_that_a_tree_does_not_have_is_named(store: ArtifactStore, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    with pytest.raises(ArtifactCorrupt, match=r"has no file 'config\.pbtxt'"):
        store.read_from_tree(store.put_tree(tmp_path / "tree"), "config.pbtxt")


def test_a_store_holds_a_tree_only_with_every_file_of_it(store: ArtifactStore, tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "a").write_text("a")
    (folder / "b").write_text("b")
    tree = store.put_tree(folder)
    assert store.holds(tree)
    blob_of(tmp_path, store.put_bytes(b"b")).unlink()
    assert not store.holds(tree)
    assert not store.holds(Artifact(sha256="0" * 64, size_bytes=0))


def test_a_put_that_fails_leaves_no_piece_behind(store: ArtifactStore, tmp_path: Path) -> None:
    store.put_bytes(b"first")
    with pytest.raises(FileNotFoundError):
        store.put_file(tmp_path / "nowhere")
    assert len(blobs(tmp_path)) == 1


def test_a_store_may_lie_on_any_filesystem_that_fsspec_reaches(tmp_path: Path) -> None:
    store = ArtifactStore(f"memory://{uuid.uuid4().hex}")
    folder = tmp_path / "tree"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a").write_text("x")
    tree = store.put_tree(folder)
    assert store.holds(tree)
    assert (store.fetch(tree, tmp_path / "to") / "sub" / "a").read_text() == "x"


@pytest.mark.parametrize("where", ["file", "memory"])
def test_an_entry_with_a_name_may_change(tmp_path: Path, where: str) -> None:
    store = ArtifactStore((tmp_path / "x").as_uri() if where == "file" else f"memory://{uuid.uuid4().hex}")
    assert store.named("a") is None
    store.put_named("a", b"one")
    store.put_named("a", b"two")
    assert (store.named("a"), store.named("b")) == (b"two", None)


def test_the_digest_of_a_file_is_its_sha256_and_its_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert digest(tmp_path / "a") == (hashlib.sha256(b"abc").hexdigest(), 3)
