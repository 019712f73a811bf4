"""Pods start from the operator's copy of what serves, also while the registry is away."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from shiplift.pipelines.daemons.operator.packages import PackageKeeper, packages_of, serve_packages
from shiplift.pipelines.daemons.prometheus import listen
from shiplift.runtime.base.errors import ArtifactCorrupt, RegistryDenied, Temporary
from shiplift.runtime.serving.kubernetes import fetch as fetching
from shiplift.runtime.serving.kubernetes.fetch import fetch
from shiplift.runtime.serving.operator.cluster.observing import Snapshot
from shiplift.runtime.serving.operator.observed import RevisionSeen
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.package_cache import PackageCache
from tests.unit.examples import artifact, package

AWAY = "mlflow-artifacts://127.0.0.1:9/0/shiplift"


def packed(store: ArtifactStore, folder: Path, content: str) -> str:
    model = folder / content / "digits"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(f"# {content}")
    (model / "1" / "model.onnx").write_text(content * 100)
    return store.put_tree(folder / content).sha256


@pytest.fixture
def origin(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore((tmp_path / "origin").as_uri())


@pytest.fixture
def cache(tmp_path: Path) -> PackageCache:
    (tmp_path / "cache").mkdir()
    return PackageCache(tmp_path / "cache", 1 << 20)


@pytest.fixture
def served(cache: PackageCache, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the copy; this process has its account."""
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "reader")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    server = listen(serve_packages(cache.folder), 0)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_pod_starts_from_the_copy_while_the_origin_is_away(
    tmp_path: Path, origin: ArtifactStore, cache: PackageCache, served: str
) -> None:
    digest = packed(origin, tmp_path, "one")
    assert cache.keep({digest: origin.uri}) == {}
    fetch(AWAY, digest, tmp_path / "models", "digits", cache=f"mlflow-artifacts://{served}")
    assert (tmp_path / "models" / "digits" / "1" / "model.onnx").read_text() == "one" * 100


@pytest.mark.parametrize("fault", ["missing", "altered", "away", "denied"])
def test_whatever_is_wrong_with_the_copy_the_origin_decides(
    fault: str,
    tmp_path: Path,
    origin: ArtifactStore,
    cache: PackageCache,
    served: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digest = packed(origin, tmp_path, "one")
    if fault != "missing":
        cache.keep({digest: origin.uri})
    if fault == "altered":
        for file in (cache.folder / "sha256").rglob("*"):
            if file.is_file() and file.read_text() == "one" * 100:
                file.write_text("two" * 100)
    if fault == "denied":
        monkeypatch.setattr("shiplift.pipelines.daemons.operator.packages.identity", dict)
    address = "127.0.0.1:9" if fault == "away" else served
    fetch(origin.uri, digest, tmp_path / "models", "digits", cache=f"mlflow-artifacts://{address}")
    assert (tmp_path / "models" / "digits" / "1" / "model.onnx").read_text() == "one" * 100


def test_with_both_away_the_pod_waits_and_says_so(tmp_path: Path, served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching._with_retries, "wait", lambda _: 0)
    monkeypatch.setattr(fetching._with_retries, "stop", lambda state: state.attempt_number >= 2)
    with pytest.raises(Temporary):
        fetch(AWAY, "0" * 64, tmp_path / "models", "digits", cache=f"mlflow-artifacts://{served}")


def test_what_no_longer_serves_is_deleted_and_the_rest_is_shared(
    tmp_path: Path, origin: ArtifactStore, cache: PackageCache
) -> None:
    first, second = packed(origin, tmp_path, "one"), packed(origin, tmp_path, "two")
    cache.keep({first: origin.uri, second: origin.uri})
    cache.keep({second: AWAY})  # it is there already
    store = ArtifactStore(cache.uri)
    assert not store.holds(artifact(kind="tree", sha256=first))
    assert store.holds(artifact(kind="tree", sha256=second))
    assert not list(cache.folder.glob("incoming-*"))


def test_a_package_that_is_too_large_or_away_is_told_and_stops_no_other(tmp_path: Path, origin: ArtifactStore) -> None:
    (tmp_path / "cache").mkdir()
    cache = PackageCache(tmp_path / "cache", 1000)
    big, small = packed(origin, tmp_path, "x" * 20), packed(origin, tmp_path, "y")
    problems = cache.keep({big: origin.uri, small: origin.uri, "0" * 64: AWAY})
    assert set(problems) == {big, "0" * 64}
    assert "Raise `operator.packages_gb`" in problems[big]
    assert ArtifactStore(cache.uri).holds(artifact(kind="tree", sha256=small))


@pytest.mark.parametrize(
    ("path", "account", "status"),
    [
        ("", None, 401),
        ("", ("reader", "wrong"), 401),
        ("?path=sha256/ab", ("reader", "secret"), 200),
        ("?path=../..", ("reader", "secret"), 200),  # an empty list
        ("/sha256/../../etc/passwd", ("reader", "secret"), 404),
        ("/sha256/ab/" + "ab" * 32, ("reader", "secret"), 404),
    ],
)
def test_only_the_registrys_readers_get_blobs_and_nobody_anything_else(
    served: str, path: str, account: tuple[str, str] | None, status: int
) -> None:
    url = f"http://{served}/api/2.0/mlflow-artifacts/artifacts{path}"
    answer = httpx.get(url, auth=account, trust_env=False)
    assert answer.status_code == status
    assert status != 200 or answer.json() == {"files": []}


def test_without_an_account_nobody_gets_anything(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME")
    with pytest.raises(RegistryDenied):
        ArtifactStore(f"mlflow-artifacts://{served}").read(artifact())


def listed(**revisions: str) -> Snapshot:
    """One service with a share for each of these revisions, and the packages that they have."""
    seen = {
        name: RevisionSeen(package=package(repository=artifact(kind="tree", sha256=digest)), artifacts_uri=AWAY)
        for name, digest in revisions.items()
    }
    weights = [{"revision": name, "percent": 0} for name in revisions]
    service: Any = {"spec": {"revision": "new"}, "status": {"revision": "old", "weights": weights}}
    return replace(Snapshot(taken_at=0), services={"digits": service}, revisions=seen)


def test_what_serves_and_what_should_is_kept() -> None:
    assert packages_of(listed(old="a" * 64, new="b" * 64)) == {"a" * 64: AWAY, "b" * 64: AWAY}
    assert packages_of(Snapshot(taken_at=0)) == {}


def test_golden_requests_come_from_the_copy_first(cache: PackageCache, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def golden_of(_: object, uri: str) -> Any:
        asked.append(uri)
        if uri == cache.uri:
            raise ArtifactCorrupt("it is not there", do="Ask the origin.")
        return {}

    monkeypatch.setattr("shiplift.pipelines.daemons.operator.packages.golden_of", golden_of)
    assert PackageKeeper(cache).golden(package(), AWAY) == {}
    assert asked == [cache.uri, AWAY]
