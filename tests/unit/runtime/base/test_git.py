"""A branch's latest commit, read from real repositories by the real git. Commits are tested with `git_push`."""

import socket
import time
from pathlib import Path

import pytest

from shiplift.runtime.base.errors import Temporary
from shiplift.runtime.base.git import Origin, latest_commit
from shiplift.runtime.host.processes import free_port
from tests.unit.pipelines.triggers.test_git_push import Author


@pytest.fixture
def author(tmp_path: Path) -> Author:
    return Author(tmp_path / "origin")


def test_a_branch_s_latest_commit_is_read(author: Author) -> None:
    assert latest_commit(author.origin, "main") is None  # nothing was committed yet
    first = author.commit(digits="model: digits")
    assert latest_commit(author.origin, "main") == first
    author.git("checkout", "--quiet", "-b", "release/1.x")
    second = author.commit(digits="model: other")
    assert (latest_commit(author.origin, "main"), latest_commit(author.origin, "release/1.x")) == (first, second)
    assert latest_commit(author.origin, "1.x") is None


def test_neither_a_tag_nor_a_branch_whose_name_ends_like_it_is_taken_for_it(author: Author) -> None:
    commit = author.commit(digits="model: digits")
    author.git("branch", "-m", "other")
    for ref in ("refs/tags/main", "refs/heads/team/main", "refs/remotes/a/refs/heads/main"):
        author.git("update-ref", ref, commit)
    assert latest_commit(author.origin, "main") is None


def test_configuration_of_the_machine_is_not_read(
    author: Author, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = author.commit(digits="model: digits")
    (tmp_path / "config").write_text(f'[url "file://{tmp_path}/elsewhere"]\ninsteadOf = {author.folder.as_uri()}\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    author.git("init", "--quiet", str(tmp_path / "tmp"))  # a repository around the temporary folder
    (tmp_path / "tmp/.git/config").write_text((tmp_path / "config").read_text())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    assert latest_commit(author.origin, "main") == commit


def test_no_repository_and_no_answer_are_temporary(tmp_path: Path) -> None:
    with pytest.raises(Temporary, match="git ls-remote of file:"):
        latest_commit(Origin(url=(tmp_path / "none").as_uri()), "main")
    with pytest.raises(Temporary, match="git ls-remote of http:"):
        latest_commit(Origin(url=f"http://127.0.0.1:{free_port()}/x", timeout_s=20), "main")
    with pytest.raises(Temporary, match="ext"):
        latest_commit(Origin(url=f"ext::sh -c touch% {tmp_path}/ran"), "main")
    assert not (tmp_path / "ran").exists()


def test_a_host_that_never_answers_costs_its_time_limit(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        started = time.monotonic()
        url = f"git://127.0.0.1:{server.getsockname()[1]}/x"
        with pytest.raises(Temporary, match="took longer than 1 s"):
            latest_commit(Origin(url=url, timeout_s=1), "main")
        assert time.monotonic() - started < 120
