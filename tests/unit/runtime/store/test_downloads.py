"""Downloads stop at their limits before bytes are fetched, or right after a file that grew."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.store import downloads


@dataclass
class Entry:
    path: str
    is_dir: bool = False
    file_size: int | None = 1


@dataclass
class Store:
    """An artifact store: what it lists by folder, how large files really are, and what was fetched."""

    listed: dict[str | None, list[Any]]
    real: int = 1
    fetched: list[str] = field(default_factory=list)

    def list_artifacts(self, path: str | None) -> list[Any]:
        return self.listed.get(path, [])

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        self.fetched.append(remote_file_path)
        Path(local_path).write_bytes(b"x" * self.real)


def test_a_tree_arrives_as_it_was_listed(tmp_path: Path) -> None:
    store = Store({None: [Entry("MLmodel"), Entry("data", is_dir=True)], "data": [Entry("data/model.pt2")]})
    assert downloads.tree(store, tmp_path / "to", limit_mb=1) == tmp_path / "to"
    assert sorted(store.fetched) == ["MLmodel", "data/model.pt2"]
    assert (tmp_path / "to" / "data" / "model.pt2").read_bytes() == b"x"


def test_a_version_that_is_too_large_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    store = Store({None: [Entry("a", file_size=600 << 20), Entry("b", file_size=600 << 20)]})
    with pytest.raises(NotAdmitted, match=r"at least 1200 MiB, this site.s limit is 1000 MiB") as error:
        downloads.tree(store, tmp_path / "to", limit_mb=1000)
    assert "policy.max_size_mb" in error.value.do
    assert store.fetched == []


def test_files_that_are_larger_than_listed_end_the_download(tmp_path: Path) -> None:
    store = Store({None: [Entry("a"), Entry("b")]}, real=3 << 20)
    with pytest.raises(NotAdmitted, match=r"this site.s limit is 2 MiB"):
        downloads.tree(store, tmp_path / "to", limit_mb=2)


class Endless(Store):
    def list_artifacts(self, path: str | None) -> list[Any]:
        return [Entry(f"{path}/d" if path else "d", is_dir=True)]


def test_endless_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAdmitted, match="folders deep, the limit is 32"):
        downloads.tree(Endless({}), tmp_path / "to", limit_mb=1)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a//b", "a/../../b"])
def test_a_listing_that_leads_outside_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(NotAdmitted, match="not a plain path"):
        downloads.tree(Store({None: [Entry(path)]}), tmp_path / "to", limit_mb=1)


def test_a_single_file_is_fetched_if_it_is_there_and_small_enough(tmp_path: Path) -> None:
    store = Store({"shiplift": [Entry("shiplift/a.npz"), Entry("shiplift/big.npz", file_size=5 << 20)]})
    assert downloads.file(store, "shiplift/a.npz", tmp_path, limit_mb=1) == tmp_path / "a.npz"
    assert downloads.file(store, "shiplift/none.npz", tmp_path, limit_mb=1) is None
    with pytest.raises(NotAdmitted, match=r"big.npz has 5 MiB, the limit is 1 MiB"):
        downloads.file(store, "shiplift/big.npz", tmp_path, limit_mb=1)
    assert store.fetched == ["shiplift/a.npz"]
