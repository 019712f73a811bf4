from pathlib import Path

import pytest

from shiplift.runtime.base.secrets import load_secrets
from shiplift.runtime.records.site import Site
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.tuning_cache import tuning_cache
from tests.unit.examples import site


def pod(tmp_path: Path, name: str) -> Site:
    """A pod with an empty home, of a cluster with one store and one secret."""
    home = tmp_path / name
    home.mkdir()
    load_secrets(tmp_path)
    (home / "secrets.json").symlink_to(tmp_path / "secrets.json")
    return site(home, artifacts_uri=(tmp_path / "artifacts").as_uri())


def learn(where: Site, name: str, folder: Path, text: str = "") -> list[str]:
    """What the folder held before; writes an entry into it."""
    with tuning_cache(where, name, folder) as at:
        before = sorted(file.read_text() for file in at.iterdir())
        if text:
            (at / "tuned").write_text(text)
    return before


def test_what_one_pod_learns_the_next_one_with_an_empty_home_knows(tmp_path: Path) -> None:
    assert learn(pod(tmp_path, "a"), "graph 1", tmp_path / "a" / "x", "sensitive") == []
    assert learn(pod(tmp_path, "b"), "graph 1", tmp_path / "b" / "y", "more so") == ["sensitive"]
    assert learn(pod(tmp_path, "c"), "graph 1", tmp_path / "c" / "z") == ["more so"]
    assert learn(pod(tmp_path, "d"), "graph 2", tmp_path / "d" / "z") == []


def test_nothing_is_learned_from_what_somebody_else_put_there(tmp_path: Path) -> None:
    learn(pod(tmp_path, "a"), "graph 1", tmp_path / "a" / "x", "true")
    store = ArtifactStore((tmp_path / "artifacts").as_uri())
    (entry,) = (tmp_path / "artifacts" / "named").iterdir()
    genuine = entry.read_text()
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "tuned").write_text("false")
    forged = store.put_tree(tmp_path / "evil").sha256
    for number, text in enumerate(("", "{", "[]", '{"tree": 3}', genuine.replace(genuine[10:74], forged))):
        entry.write_text(text)
        assert learn(pod(tmp_path, f"pod-{number}"), "graph 1", tmp_path / f"at-{number}") == []
    (tmp_path / "secrets.json").unlink()
    entry.write_text(genuine)
    assert learn(pod(tmp_path, "another-secret"), "graph 1", tmp_path / "other") == []


def test_an_entry_whose_bytes_are_gone_is_learned_again(tmp_path: Path) -> None:
    learn(pod(tmp_path, "a"), "graph 1", tmp_path / "a" / "x", "true")
    for blob in (tmp_path / "artifacts" / "sha256").rglob("*"):
        if blob.is_file():
            blob.unlink()
    assert learn(pod(tmp_path, "b"), "graph 1", tmp_path / "b" / "x", "true") == []
    assert learn(pod(tmp_path, "c"), "graph 1", tmp_path / "c" / "x") == ["true"]


def test_work_that_fails_teaches_nothing(tmp_path: Path) -> None:
    where = pod(tmp_path, "a")

    def work() -> None:
        with tuning_cache(where, "graph 1", tmp_path / "x") as folder:
            (folder / "tuned").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert learn(where, "graph 1", tmp_path / "y") == []
