"""What a serving pod runs: it fetches its package by digest, then becomes Triton."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shiplift.runtime.base.errors import ArtifactCorrupt, NotFound, Temporary
from shiplift.runtime.serving.kubernetes import fetch as fetching
from shiplift.runtime.serving.kubernetes import serve
from shiplift.runtime.serving.kubernetes.fetch import fetch, fetch_all
from shiplift.runtime.serving.triton.command_line import Features
from shiplift.runtime.serving.triton.environment import ServerEnvironment
from shiplift.runtime.store.artifacts import ArtifactStore


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    (folder / "digits" / "3").mkdir(parents=True)
    (folder / "digits" / "3" / "model.onnx").write_bytes(b"onnx")
    (folder / "digits" / "config.pbtxt").write_text('name: "digits"\nversion_policy { specific { versions: 3 } }\n')
    (folder / "golden.npz").write_bytes(b"golden")
    return folder


def test_a_package_is_fetched_by_its_digest_and_installed_twice_without_harm(tmp_path: Path, package: Path) -> None:
    uri = (tmp_path / "store").as_uri()
    digest = ArtifactStore(uri).put_tree(package).sha256
    for _ in range(2):
        fetch(uri, digest, tmp_path / "models", "digits")
    assert (tmp_path / "models" / "digits" / "3" / "model.onnx").read_bytes() == b"onnx"
    assert {path.name for path in (tmp_path / "models").iterdir()} == {"digits"}


def test_bytes_that_differ_from_their_digest_are_never_served(tmp_path: Path, package: Path) -> None:
    uri = (tmp_path / "store").as_uri()
    digest = ArtifactStore(uri).put_tree(package).sha256
    (blob,) = (file for file in (tmp_path / "store").rglob("*") if file.is_file() and file.read_bytes() == b"onnx")
    blob.write_bytes(b"evil")
    with pytest.raises(ArtifactCorrupt):
        fetch(uri, digest, tmp_path / "models", "digits")
    assert not (tmp_path / "models").exists()


def test_the_graph_behind_a_model_of_texts_is_fetched_with_it_under_either_name(tmp_path: Path, package: Path) -> None:
    shutil.copytree(package / "digits", package / "digits--tensors")
    uri = (tmp_path / "store").as_uri()
    digest = ArtifactStore(uri).put_tree(package).sha256
    fetch(uri, digest, tmp_path / "models", "digits")
    fetch(uri, digest, tmp_path / "bench", "digits", "digits--int8")
    assert {folder.name for folder in (tmp_path / "models").iterdir()} == {"digits", "digits--tensors"}
    assert {folder.name for folder in (tmp_path / "bench").iterdir()} == {"digits--int8", "digits--int8--tensors"}


def test_a_pipeline_s_members_are_fetched_with_it_for_users_and_to_be_measured(tmp_path: Path, package: Path) -> None:
    (package / "part--5f0c" / "1").mkdir(parents=True)
    (package / "part--5f0c" / "1" / "model.onnx").write_bytes(b"member")
    (package / "part--5f0c" / "config.pbtxt").write_text('name: "part--5f0c"\n')
    uri = (tmp_path / "store").as_uri()
    digest = ArtifactStore(uri).put_tree(package).sha256
    fetch(uri, digest, tmp_path / "models", "digits")
    fetch(uri, digest, tmp_path / "bench", "digits", "digits--fp32")
    assert {folder.name for folder in (tmp_path / "models").iterdir()} == {"digits", "part--5f0c"}
    assert {folder.name for folder in (tmp_path / "bench").iterdir()} == {"digits--fp32", "part--5f0c"}
    assert (tmp_path / "models" / "part--5f0c" / "1" / "model.onnx").read_bytes() == b"member"


def test_a_package_without_that_model_is_refused(tmp_path: Path, package: Path) -> None:
    uri = (tmp_path / "store").as_uri()
    with pytest.raises(ArtifactCorrupt, match="has no model 'other'"):
        fetch(uri, ArtifactStore(uri).put_tree(package).sha256, tmp_path / "models", "other")


def test_a_store_that_is_away_for_a_moment_is_waited_for(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = (tmp_path / "store").as_uri()
    digest = ArtifactStore(uri).put_tree(package).sha256
    answers = iter([Temporary("away", do="wait"), None])
    real = ArtifactStore.fetch

    def fetched(store: ArtifactStore, artifact: object, to: Path) -> Path:
        if error := next(answers):
            raise error
        return real(store, artifact, to)  # type: ignore[arg-type]

    monkeypatch.setattr(ArtifactStore, "fetch", fetched)
    monkeypatch.setattr(fetching._with_retries, "wait", lambda _: 0)
    fetch(uri, digest, tmp_path / "models", "digits")
    assert (tmp_path / "models" / "digits" / "config.pbtxt").is_file()


def test_the_init_container_ends_with_the_error_s_code_and_says_why(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "shiplift.runtime.serving.kubernetes.fetch",
            "--artifacts-uri",
            tmp_path.as_uri(),
            "--sha256",
            "0" * 64,
            "--to",
            tmp_path / "models",
            "--name",
            "digits",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == ArtifactCorrupt.exit_code
    assert done.stderr.startswith("artifact corrupt: artifact 000000000000 is not in")


def test_the_server_serves_its_whole_repository_which_can_not_be_changed(tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "config.pbtxt").touch()
    arguments = serve.command_line(tmp_path, ["digits"], Features(), ServerEnvironment(Path("/opt/triton")))
    for flag in ("--model-control-mode=none", "--http-address=0.0.0.0", "--grpc-port=8001", "--strict-readiness=true"):
        assert flag in arguments
    assert not any("load-model" in argument for argument in arguments)


def test_a_shared_server_fetches_what_it_can(tmp_path: Path, package: Path) -> None:
    uri = (tmp_path / "store").as_uri()
    digest = ArtifactStore(uri).put_tree(package).sha256
    here, gone = (digest, "digits", uri), ("0" * 64, "absent", uri)
    assert set(fetch_all([gone, here], tmp_path / "models")) == {"absent"}
    assert (tmp_path / "models" / "digits" / "config.pbtxt").is_file()
    with pytest.raises(ArtifactCorrupt):
        fetch_all([gone], tmp_path / "none")


def test_a_shared_server_serves_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "config.pbtxt").touch()
    tolerant = Features(tolerant=True)
    arguments = serve.command_line(tmp_path, ["absent", "digits"], tolerant, ServerEnvironment(tmp_path))
    assert {"--strict-readiness=false", "--exit-on-error=false"} <= set(arguments)
    with pytest.raises(NotFound, match="has no model absent"):
        serve.command_line(tmp_path, ["absent"], tolerant, ServerEnvironment(tmp_path))


def test_a_repository_without_its_model_is_not_called_ready(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no model digits"):
        serve.command_line(tmp_path, ["digits"], Features(), ServerEnvironment(tmp_path))


def test_the_process_becomes_the_server_and_gets_its_signals(tmp_path: Path) -> None:
    environment = ServerEnvironment(tmp_path / "env")
    environment.tritonserver.parent.mkdir(parents=True)
    environment.tritonserver.write_text('#!/bin/sh\necho "$$ $LD_LIBRARY_PATH"\n')
    environment.tritonserver.chmod(0o755)
    (tmp_path / "models" / "digits").mkdir(parents=True)
    (tmp_path / "models" / "digits" / "config.pbtxt").touch()
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "shiplift.runtime.serving.kubernetes.serve",
            "--repository",
            tmp_path / "models",
            "--model",
            "digits",
            "--environment",
            environment.root,
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SECRET": "x"},
    )
    out, _ = child.communicate(timeout=60)
    pid, path = out.split()
    assert int(pid) == child.pid
    assert path == environment.library_path
