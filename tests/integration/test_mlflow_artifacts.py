"""The artifact store on a real MLflow server's artifact proxy, including when that server is unavailable."""

import hashlib
import os
import signal
from pathlib import Path

import fsspec
import pytest

from shiplift.runtime.base.errors import ArtifactCorrupt, Temporary
from shiplift.runtime.host.processes import free_port
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.rest import RestRegistry
from tests.integration.conftest import Lab, until
from tests.integration.mlflow_server import Server, running
from tests.unit.certificates import certificate


@pytest.fixture
def server(lab: Lab) -> Server:
    """The stack's server: what it keeps for releases lies elsewhere."""
    return Server(
        lab.home / "mlflow", lab.running.mlflow_port, lab.running.processes["mlflow"], lab.running.registry_uri
    )


@pytest.fixture
def store(server: Server) -> ArtifactStore:
    return ArtifactStore(server.uri)


def test_bytes_and_files_are_returned_and_uploaded_once(store: ArtifactStore, server: Server, tmp_path: Path) -> None:
    body = os.urandom(5_000_000)
    (tmp_path / "file").write_bytes(body)
    artifact = store.put_file(tmp_path / "file")
    first = server.blob(artifact.sha256).stat().st_mtime_ns
    assert store.put_bytes(body) == artifact
    assert server.blob(artifact.sha256).stat().st_mtime_ns == first
    assert store.holds(artifact)
    assert store.read(artifact) == body
    assert store.fetch(artifact, tmp_path / "out").read_bytes() == body


@pytest.mark.parametrize("body", [b"", b"x", b"x" * ((1 << 20) + 1)])
def test_sizes_at_the_edges_come_back(store: ArtifactStore, tmp_path: Path, body: bytes) -> None:
    artifact = store.put_bytes(body)
    assert store.holds(artifact)
    assert store.fetch(artifact, tmp_path / "out").read_bytes() == body


def test_a_tree_comes_back(store: ArtifactStore, tmp_path: Path) -> None:
    (tmp_path / "tree" / "digits" / "1").mkdir(parents=True)
    (tmp_path / "tree" / "digits" / "1" / "model.onnx").write_bytes(b"onnx")
    (tmp_path / "tree" / "digits" / "config.pbtxt").write_text("name: 'ä b'")
    tree = store.put_tree(tmp_path / "tree")
    assert store.holds(tree)
    fetched = store.fetch(tree, tmp_path / "fetched")
    assert (fetched / "digits" / "1" / "model.onnx").read_bytes() == b"onnx"
    assert store.read_from_tree(tree, "digits/config.pbtxt").decode() == "name: 'ä b'"


def test_the_rest_of_a_killed_upload_is_not_taken_for_the_whole(
    store: ArtifactStore, server: Server, tmp_path: Path
) -> None:
    body = os.urandom(100_000)
    artifact = store.put_bytes(body)
    server.blob(artifact.sha256).write_bytes(body[:1000])
    assert not store.holds(artifact)
    with pytest.raises(ArtifactCorrupt):
        store.fetch(artifact, tmp_path / "out")
    assert store.put_bytes(body) == artifact
    assert store.read(artifact) == body


def test_half_a_manifest_and_a_file_cut_short_make_no_tree(
    store: ArtifactStore, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a").write_bytes(b"whole" * 1000)
    tree = store.put_tree(tmp_path / "tree")
    blob = server.blob(hashlib.sha256(b"whole" * 1000).hexdigest())
    blob.write_bytes(b"who")
    assert not store.holds(tree)
    assert store.put_tree(tmp_path / "tree") == tree
    assert store.holds(tree)
    server.blob(tree.sha256).write_bytes(b'{"fil')
    assert not store.holds(tree)
    assert store.put_tree(tmp_path / "tree") == tree
    assert store.holds(tree)


def test_an_upload_cut_off_by_a_kill_leaves_nothing_that_counts(
    store: ArtifactStore, server: Server, tmp_path: Path
) -> None:
    big = os.urandom(1 << 20) * 64
    (tmp_path / "big").write_bytes(big)
    sha256 = hashlib.sha256(big).hexdigest()
    child = os.fork()
    if child == 0:  # the child uploads until it is killed
        try:
            ArtifactStore(server.uri).put_file(tmp_path / "big")
        finally:
            os._exit(0)
    until(lambda: any((server.folder / "artifacts").rglob("*/sha256/*/*")) or _ended(child))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    artifact = store.put_file(tmp_path / "big")
    assert (artifact.sha256, store.holds(artifact)) == (sha256, True)
    assert store.fetch(artifact, tmp_path / "out").stat().st_size == len(big)


def _ended(child: int) -> bool:
    return Path(f"/proc/{child}/stat").read_text().split()[2] == "Z"


def test_a_missing_artifact_differs_from_a_server_that_does_not_answer(
    store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0.01")
    gone = store.put_bytes(b"here").model_copy(update={"sha256": "0" * 64})
    assert not store.holds(gone)
    with pytest.raises(ArtifactCorrupt, match="000000000000 is not in"):
        store.fetch(gone, tmp_path / "out")
    away = ArtifactStore(f"mlflow-artifacts://127.0.0.1:{free_port()}/shiplift")
    for use in (lambda: away.put_bytes(b"x"), lambda: away.holds(gone), lambda: away.read(gone)):
        with pytest.raises(Temporary, match="does not answer"):
            use()


def test_the_filesystem_lists_removes_and_refuses_to_write_through_open(server: Server) -> None:
    fs, root = fsspec.core.url_to_fs(server.uri)
    fs.pipe_file(f"{root}/folder/a b%.txt", b"abc")
    assert fs.ls(f"{root}/folder", detail=False) == [f"{root}/folder/a b%.txt"]
    assert fs.info(f"{root}/folder/a b%.txt")["size"] == 3
    assert fs.info(f"{root}/folder")["type"] == "directory"
    assert fs.cat_file(f"{root}/folder/a b%.txt", 1, 2) == b"b"
    with pytest.raises(NotImplementedError, match="mode 'wb'"):
        fs.open(f"{root}/folder/a", "wb")
    fs.rm_file(f"{root}/folder/a b%.txt")
    assert not fs.exists(f"{root}/folder/a b%.txt")
    with pytest.raises(FileNotFoundError):
        fs.open(f"{root}/folder/a b%.txt")


def test_a_server_that_dies_in_the_middle_of_a_download_is_temporary(
    server: Server, store: ArtifactStore, tmp_path: Path
) -> None:
    artifact = store.put_bytes(os.urandom(64 << 20))  # far more than the buffers of two sockets hold
    fs, root = fsspec.core.url_to_fs(server.uri)
    with fs.open(f"{root}/sha256/{artifact.sha256[:2]}/{artifact.sha256}", "rb") as source:
        source.read(1000)
        os.truncate(server.blob(artifact.sha256), 1000)  # a crash of its disk looks like this from here
        with pytest.raises(Temporary):
            source.read()


@pytest.mark.slow
def test_a_server_behind_tls_serves_versions_and_artifacts_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, key = certificate(tmp_path / "authority")
    options = f"--ssl-certfile {authority} --ssl-keyfile {key}"
    with running(tmp_path, "--uvicorn-opts", options, authority=authority) as server:
        uri, store = f"https://127.0.0.1:{server.port}", server.uri.replace("artifacts:", "artifacts+https:")
        for use in (lambda: Registry(uri).versions("digits"), lambda: ArtifactStore(store).put_bytes(b"x")):
            with pytest.raises(Temporary, match="Set MLFLOW_TRACKING_SERVER_CERT_PATH"):
                use()
        fsspec.get_filesystem_class("mlflow-artifacts").clear_instance_cache()
        monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(authority))
        info = RestRegistry(uri).register("digits", {"MLmodel": b"{}", "data/model.onnx": b"onnx"}, {"a": "b"})
        assert Registry(uri).version("digits", 1) == info
        files = Registry(uri).download_model(info, tmp_path / "files", limit_mb=1)
        assert (files / "data" / "model.onnx").read_bytes() == b"onnx"
        artifact = ArtifactStore(store).put_bytes(b"x" * 3_000_000)
        assert ArtifactStore(store).read(artifact) == b"x" * 3_000_000
