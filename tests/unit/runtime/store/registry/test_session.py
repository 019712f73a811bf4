"""Which requests to the registry are repeated, and how an odd server is handled."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from shiplift.runtime.base.errors import NotFound, RegistryDenied, Temporary
from shiplift.runtime.store.mlflow.artifact_proxy import ArtifactProxy
from shiplift.runtime.store.mlflow.connection import Connection
from shiplift.runtime.store.mlflow.settings import RequestSettings
from shiplift.runtime.store.registry.proxied import ProxiedArtifacts, root_of
from shiplift.runtime.store.registry.session import Session


def served(answer: Callable[[int], httpx.Response]) -> tuple[Session, list[str]]:
    """A session whose server answers the n-th request, from 1, as told; and the paths that were asked for."""
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path.decode())
        return answer(len(asked))

    settings = RequestSettings(timeout_s=1, repeats=2, pause_s=0.001)
    return Session(Connection("http://registry", settings=settings, transport=httpx.MockTransport(handle))), asked


def artifacts_of(session: Session, root: str) -> ProxiedArtifacts:
    return ProxiedArtifacts(ArtifactProxy(session.connection), root)


def refusing(_: int) -> httpx.Response:
    raise httpx.ConnectError("refused")


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_server_is_asked_again(status: int, tmp_path: Path) -> None:
    session, asked = served(lambda n: httpx.Response(200 if n % 3 == 0 else status, json={"n": n}))
    assert session.ask("GET", "/x") == {"n": 3}
    assert session.connection.download("/file", tmp_path / "file").status_code == 200
    assert ((tmp_path / "file").read_text().replace(" ", ""), len(asked)) == ('{"n":6}', 6)


@pytest.mark.parametrize(("once", "times"), [(False, 3), (True, 1)])
def test_a_server_that_is_away_is_temporary_and_what_must_not_happen_twice_is_sent_once(once: bool, times: int) -> None:
    session, asked = served(refusing)
    with pytest.raises(Temporary, match="the registry does not answer"):
        session.ask("POST", "/x", once=once, json={})
    assert len(asked) == times


@pytest.mark.parametrize(("status", "error"), [(401, RegistryDenied), (403, RegistryDenied), (500, Temporary)])
def test_a_refusal_is_not_asked_again(tmp_path: Path, status: int, error: type[Exception]) -> None:
    session, asked = served(lambda _: httpx.Response(status))
    artifacts = artifacts_of(session, "1/abc/artifacts")
    calls: list[Callable[[], object]] = [
        lambda: artifacts.list_artifacts(None),
        lambda: artifacts._download_file("a", str(tmp_path / "a")),
        lambda: artifacts.write("a", b"x"),
    ]
    for call in calls:
        with pytest.raises(error, match=f"it answered {status}"):
            call()
    assert len(asked) == 3
    assert not (tmp_path / "a").exists()


def test_a_path_is_quoted_and_one_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    session, asked = served(lambda _: httpx.Response(404))
    artifacts = artifacts_of(session, "1/a")
    assert artifacts.list_artifacts("my folder") == []
    with pytest.raises(NotFound, match=r"no artifact 'x\?y#z'"):
        artifacts._download_file("x?y#z", str(tmp_path / "x"))
    assert asked == [
        "/api/2.0/mlflow-artifacts/artifacts?path=1%2Fa%2Fmy+folder",
        "/api/2.0/mlflow-artifacts/artifacts/1/a/x%3Fy%23z",
    ]


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"files": [{}]}', b'{"files": [3]}', b'{"files": 3}'])
def test_a_malformed_list_is_temporary(body: bytes) -> None:
    session, _ = served(lambda _: httpx.Response(200, content=body))
    with pytest.raises(Temporary, match="malformed list"):
        artifacts_of(session, "x").list_artifacts(None)


@pytest.mark.parametrize(
    ("uri", "root"),
    [
        ("mlflow-artifacts:/1/abc/artifacts", "1/abc/artifacts"),
        ("mlflow-artifacts:/a%20b/", "a b"),
        ("mlflow-artifacts://other:5000/1", None),
        ("s3://bucket/1", None),
        ("/tmp/mlruns/1", None),
        ("", None),
        ("file:///tmp/1", None),
        ("models:/m/1", None),
    ],
)
def test_only_what_this_server_keeps_is_asked_of_it(uri: str, root: str | None) -> None:
    assert root_of(uri) == root
