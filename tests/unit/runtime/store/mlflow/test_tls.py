"""The settings of a connection to MLflow hold for the registry and for artifacts, over real TLS."""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from shiplift.runtime.base.errors import Temporary, UsageError
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.rest import RestRegistry
from tests.unit.certificates import certificate, server_context
from tests.unit.runtime.store.mlflow.server import MlflowServer, running

CERTIFICATE = "MLFLOW_TRACKING_SERVER_CERT_PATH"


@pytest.fixture
def authority(tmp_path: Path, clean_settings: None) -> Path:
    return certificate(tmp_path / "authority")[0]


@pytest.fixture
def server(authority: Path) -> Iterator[MlflowServer]:
    with running(server_context(authority.parent)) as server:
        yield server


def use_registry(port: int, _: Path) -> None:
    registry = RestRegistry(f"https://127.0.0.1:{port}")
    assert registry.version("digits", 3) is None


def use_patient_registry(port: int, _: Path) -> None:
    assert Registry(f"https://127.0.0.1:{port}").versions("digits") == []


def use_artifacts(port: int, folder: Path) -> None:
    """Uploads and downloads bytes, a file and a tree."""
    store = ArtifactStore(f"mlflow-artifacts+https://127.0.0.1:{port}/shiplift")
    (folder / "tree").mkdir(exist_ok=True)
    (folder / "tree" / "file").write_bytes(b"x" * 3_000_000)
    tree: Artifact = store.put_tree(folder / "tree")
    assert store.holds(tree)
    assert (store.fetch(tree, folder / "out") / "file").read_bytes() == b"x" * 3_000_000
    assert store.read(store.put_bytes(b"abc")) == b"abc"


CLIENTS = pytest.mark.parametrize("use", [use_registry, use_patient_registry, use_artifacts])
Use = Callable[[int, Path], None]


@CLIENTS
def test_a_server_with_a_certificate_of_its_own_is_reached_with_that_certificate(
    use: Use, server: MlflowServer, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CERTIFICATE, str(authority))
    use(server.server_port, tmp_path)
    assert server.asked


@CLIENTS
def test_a_certificate_that_nobody_vouches_for_is_refused_and_the_setting_is_named(
    use: Use, server: MlflowServer, tmp_path: Path
) -> None:
    with pytest.raises(Temporary, match=rf"certificate verify failed.*Set {CERTIFICATE}"):
        use(server.server_port, tmp_path)
    assert not server.asked


@CLIENTS
def test_another_certificate_is_refused_too(
    use: Use, server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CERTIFICATE, str(certificate(tmp_path / "other")[0]))
    with pytest.raises(Temporary, match=f"certificate verify failed.*Set {CERTIFICATE}"):
        use(server.server_port, tmp_path)


@CLIENTS
@pytest.mark.parametrize("value", ["true", "1"])
def test_verification_can_be_turned_off(
    use: Use, value: str, server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_INSECURE_TLS", value)
    use(server.server_port, tmp_path)


@CLIENTS
@pytest.mark.parametrize("setting", [CERTIFICATE, "MLFLOW_TRACKING_CLIENT_CERT_PATH"])
def test_a_file_that_is_no_certificate_is_an_error_that_names_the_setting(
    use: Use, setting: str, server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty.pem").write_text("")
    for file in ("none.pem", "empty.pem"):
        monkeypatch.setenv(setting, str(tmp_path / file))
        with pytest.raises(UsageError, match=rf"{setting}: .*{file} can't be read"):
            use(server.server_port, tmp_path)


@CLIENTS
def test_a_server_that_asks_for_the_client_s_certificate_gets_it(
    use: Use, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, key = certificate(tmp_path / "client")
    context = server_context(authority.parent)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(client)
    both = tmp_path / "client.pem"
    both.write_bytes(client.read_bytes() + key.read_bytes())
    monkeypatch.setenv(CERTIFICATE, str(authority))
    with running(context) as server:
        with pytest.raises(Temporary, match="Set MLFLOW_TRACKING_CLIENT_CERT_PATH"):
            use(server.server_port, tmp_path)
        fsspec.get_filesystem_class("mlflow-artifacts").clear_instance_cache()  # settings are read once
        monkeypatch.setenv("MLFLOW_TRACKING_CLIENT_CERT_PATH", str(both))
        use(server.server_port, tmp_path)


def test_a_plain_server_needs_no_certificate_file(
    clean_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CERTIFICATE, str(tmp_path / "none.pem"))  # a sandbox has the variable, and not the file
    with running() as server:
        assert RestRegistry(f"http://127.0.0.1:{server.server_port}").version("digits", 3) is None
        assert not ArtifactStore(f"mlflow-artifacts://127.0.0.1:{server.server_port}/x").named("y")
