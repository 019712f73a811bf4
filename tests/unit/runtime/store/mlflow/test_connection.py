"""Every client retries a busy server in the same way, with the settings of MLflow's own client."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shiplift.runtime.base.errors import RegistryDenied, Temporary, UsageError
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.mlflow.connection import Connection
from shiplift.runtime.store.mlflow.settings import RequestSettings, identity, mlflow_defaults, read_settings
from tests.unit.runtime.store.mlflow.server import MlflowServer, running


@pytest.fixture
def server(clean_settings: None) -> Iterator[MlflowServer]:
    with running() as server:
        yield server


@pytest.fixture
def store(server: MlflowServer) -> ArtifactStore:
    return ArtifactStore(f"mlflow-artifacts://127.0.0.1:{server.server_port}/shiplift")


@pytest.mark.parametrize("fault", [0, 429, 502, 503, 504])
def test_artifacts_are_sent_and_read_again_while_the_server_is_busy(
    fault: int, server: MlflowServer, store: ArtifactStore, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"x" * 3_000_000)  # more than one chunk, read anew for each attempt
    uses: list[Callable[[], object]] = [
        lambda: store.put_named("name", b"value"),
        lambda: store.named("name"),
        lambda: store.put_file(tmp_path / "file"),
        lambda: store.fetch(store.put_file(tmp_path / "file"), tmp_path / "out"),
    ]
    for use in uses:
        server.faults = [fault, fault]
        use()
        assert not server.faults
    assert (tmp_path / "out").read_bytes() == b"x" * 3_000_000
    server.faults = [fault] * 3
    with pytest.raises(Temporary, match="the artifact store does not answer"):
        store.named("name")


def test_how_often_is_mlflow_s_setting(
    server: MlflowServer, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    server.faults = [503]
    with pytest.raises(Temporary, match="it answered 503"):
        store.named("name")
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_not_repeated(status: int, server: MlflowServer, store: ArtifactStore) -> None:
    server.faults = [status]
    with pytest.raises(RegistryDenied, match=f"the artifact store .*{status}"):
        store.named("name")
    assert len(server.asked) == 1


def test_a_server_that_is_silent_for_longer_than_the_setting_is_away(
    server: MlflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "0.05")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    connection = Connection(f"http://127.0.0.1:{server.server_port}")
    server.shutdown()  # it still listens
    with pytest.raises(Temporary, match="timed out"):
        connection.send("GET", "/")


@pytest.mark.parametrize(
    ("variables", "header"),
    [
        ({}, None),
        ({"TOKEN": "abc"}, "Bearer abc"),
        ({"USERNAME": "ana", "PASSWORD": "secret"}, "Basic YW5hOnNlY3JldA=="),
        ({"USERNAME": "ana", "PASSWORD": "secret", "TOKEN": "abc"}, "Basic YW5hOnNlY3JldA=="),
        ({"USERNAME": "ana", "TOKEN": "abc"}, "Bearer abc"),
        ({"USERNAME": "änne", "PASSWORD": "größe"}, "Basic w6RubmU6Z3LDtsOfZQ=="),
    ],
)
def test_who_asks_is_said_as_it_is_then(
    variables: dict[str, str],
    header: str | None,
    server: MlflowServer,
    store: ArtifactStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = Connection(f"http://127.0.0.1:{server.server_port}")
    for name, value in variables.items():
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", value)
    connection.send("GET", "/")
    store.named("name")
    assert server.proofs == [header, header]
    assert identity().get("Authorization") == header


def test_the_settings_are_the_environment_s_and_a_caller_in_a_hurry_waits_no_longer(
    clean_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in mlflow_defaults().items():
        monkeypatch.setenv(name, value)
    assert read_settings() == RequestSettings()
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "120")
    assert read_settings().timeout_s == 120
    assert read_settings().within(5) == RequestSettings(timeout_s=5, repeats=0)
    assert read_settings().within(float("inf")) == RequestSettings(timeout_s=120, repeats=0)


@pytest.mark.parametrize("name", ["TIMEOUT", "MAX_RETRIES", "BACKOFF_FACTOR"])
@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf"])
def test_a_setting_that_is_no_number_is_named(
    name: str, value: str, clean_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"MLFLOW_HTTP_REQUEST_{name}", value)
    with pytest.raises(UsageError, match=f"MLFLOW_HTTP_REQUEST_{name} is '{value}'"):
        read_settings()
