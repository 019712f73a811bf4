"""Pushes to real repositories, read by the real git."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shiplift.pipelines.engines.answers import Accepted
from shiplift.pipelines.triggers import git_push
from shiplift.pipelines.triggers.git_push import changed_specs, read_spec, release, specs_of
from shiplift.pipelines.triggers.pushes import NO_COMMIT
from shiplift.pipelines.triggers.settings import Repository, TriggerSettings
from shiplift.runtime.base.errors import NotAdmitted, NotFound, RegistryDenied, SpecInvalid, Temporary
from shiplift.runtime.base.git import Commits, Origin
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.spec.document import MAX_SPEC_BYTES
from shiplift.runtime.store.registry.terms import VersionInfo
from tests.unit.examples import found
from tests.unit.runtime.serving.triton.test_service import FOLDER

SPEC = "model: {}\nslo: {{p99_ms: {}}}\n"


class Author:
    """A repository, and someone who commits to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *words: str) -> str:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", *identity, *words],
            cwd=self.folder,
            check=True,
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "GIT_CONFIG_NOSYSTEM": "1"},
        ).stdout.strip()

    def commit(self, **files: str | None) -> str:
        """Writes files (`digits` is releases/digits.yaml; None deletes it) and gives the commit."""
        for name, text in files.items():
            path = self.folder / (name if "." in name else f"releases/{name}.yaml")
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                path.unlink()
            else:
                path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", "change")
        return self.git("rev-parse", "HEAD")

    @property
    def origin(self) -> Origin:
        return Origin(url=self.folder.as_uri(), timeout_s=30)


class Desk:
    """Looks into pushes; the registry knows version 7 of every model but `unknown`."""

    def __init__(self, author: Author, folder: Path) -> None:
        self.author = author
        self.folder = folder
        self.accepted: list[tuple[Request, Trigger]] = []
        self.logged: list[dict[str, Any]] = []

    def log(self, event: str, **fields: object) -> None:
        self.logged.append({"event": event, **fields})

    def accept(self, request: Request, trigger: Trigger) -> Accepted:
        created = request not in [accepted for accepted, _ in self.accepted]
        self.accepted.append((request, trigger))
        return Accepted(name=f"release-{request.model}", created=created, queued=created)

    def newest(self, model: str) -> VersionInfo:
        if model == "unknown":
            raise NotFound("the registry has no versions of it", do="Register one.")
        if model == "away":
            raise Temporary("the registry is away", do="Wait.")
        return found(model, 7)

    def push(self, before: str, after: str, **changes: Any) -> Exception | None:
        folder = self.folder / f"clone-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        commits = Commits(folder, self.author.origin, largest_bytes=MAX_SPEC_BYTES)
        entries = changed_specs(commits, "main", before, after, self.log)
        return release(specs_of(commits, entries), after, self.newest, self.accept, self.log)

    @property
    def models(self) -> list[str]:
        return sorted(request.model for request, _ in self.accepted)


@pytest.fixture
def author(tmp_path: Path) -> Author:
    return Author(tmp_path / "origin")


@pytest.fixture
def desk(author: Author, tmp_path: Path) -> Desk:
    (tmp_path / "work").mkdir()
    return Desk(author, tmp_path / "work")


def test_a_changed_spec_releases_the_newest_version_of_its_model_with_the_commit(author: Author, desk: Desk) -> None:
    before = author.commit(digits=SPEC.format("digits", 10), fraud=SPEC.format("fraud", 10))
    after = author.commit(digits=SPEC.format("digits", 5), **{"src/main.py": "print()"})
    assert desk.push(before, after) is None
    ((request, trigger),) = desk.accepted
    assert request == Request(model="digits", version=7, spec=SPEC.format("digits", 5))
    assert (trigger.kind, trigger.commit) == ("git", after)


@pytest.mark.parametrize("before", [NO_COMMIT, "0" * 64, "1" * 40])
def test_without_a_known_commit_before_every_spec_counts(author: Author, desk: Desk, before: str) -> None:
    author.commit(digits=SPEC.format("digits", 10))
    after = author.commit(fraud=SPEC.format("fraud", 10))
    assert desk.push(before, after) is None
    assert desk.models == ["digits", "fraud"]


def test_a_push_of_several_commits_counts_as_one_change(author: Author, desk: Desk) -> None:
    before = author.commit(digits=SPEC.format("digits", 10))
    author.commit(digits=SPEC.format("digits", 5))
    author.commit(digits=SPEC.format("digits", 10))
    after = author.commit(fraud=SPEC.format("fraud", 10))
    assert desk.push(before, after) is None
    assert desk.models == ["fraud"]


def test_deleted_specs_and_other_files_release_nothing(author: Author, desk: Desk) -> None:
    before = author.commit(digits=SPEC.format("digits", 10))
    after = author.commit(
        digits=None, **{"releases/notes.md": "x", "releases/old/a.yaml": SPEC.format("old", 1), "a.yaml": "model: a"}
    )
    assert desk.push(before, after) is None
    assert desk.accepted == []


def test_both_endings_of_yaml_count(author: Author, desk: Desk) -> None:
    after = author.commit(**{"releases/a.yml": "model: a", "releases/b.yaml": "model: b", "releases/c.json": "{}"})
    assert desk.push(NO_COMMIT, after) is None
    assert desk.models == ["a", "b"]


def test_an_old_push_that_comes_late_does_not_bring_its_spec_back(author: Author, desk: Desk) -> None:
    first = author.commit(digits=SPEC.format("digits", 10), fraud=SPEC.format("fraud", 10))
    last = author.commit(digits=SPEC.format("digits", 5))
    assert desk.push(NO_COMMIT, first) is None
    assert [request.model for request, _ in desk.accepted] == ["fraud"]
    assert [event for event in desk.logged if event["event"] == "superseded"] == [
        {"event": "superseded", "file": "'releases/digits.yaml'", "by": last}
    ]
    assert desk.push(first, last) is None
    assert desk.accepted[-1][0].spec == SPEC.format("digits", 5)


def test_the_same_push_again_asks_for_the_same(author: Author, desk: Desk) -> None:
    after = author.commit(digits=SPEC.format("digits", 10))
    assert [desk.push(NO_COMMIT, after), desk.push(NO_COMMIT, after)] == [None, None]
    (first, _), (second, _) = desk.accepted
    assert first == second


def test_a_bad_file_does_not_keep_the_others_from_being_released(author: Author, desk: Desk) -> None:
    after = author.commit(a="slo: {p99: 3}\nmodel: a", b=SPEC.format("b", 10), c="{", d="slo: {}", e="model: a/b")
    error = desk.push(NO_COMMIT, after)
    assert isinstance(error, SpecInvalid)
    assert desk.models == ["b"]
    complaints = [event["what"] for event in desk.logged if event["event"] == "not released"]
    assert len(complaints) == 4
    assert all(f"releases/{name}.yaml" in message for name, message in zip("acde", complaints, strict=True))
    assert "names no model" in complaints[2]


def test_what_may_pass_is_the_error_to_end_with(author: Author, desk: Desk) -> None:
    after = author.commit(a="{", b="model: away", c="model: unknown", d="model: d")
    error = desk.push(NO_COMMIT, after)
    assert isinstance(error, Temporary)
    assert all(message in str(error) for message in ("releases/a.yaml", "is away", "has no versions"))
    assert desk.models == ["d"]


def test_two_specs_of_one_model_are_one_too_many(author: Author, desk: Desk) -> None:
    after = author.commit(a="model: digits", b="model: digits\nslo: {p99_ms: 1}")
    error = desk.push(NO_COMMIT, after)
    assert error is not None
    assert "releases/a.yaml and releases/b.yaml both name 'digits'" in str(error)
    assert len(desk.accepted) == 1


def test_links_submodules_and_large_files_are_refused_unread(author: Author, desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("model: secret")
    (author.folder / "releases").mkdir()
    (author.folder / "releases" / "link.yaml").symlink_to(tmp_path / "secret")
    first = author.commit(large="# " + "x" * MAX_SPEC_BYTES, fine="model: fine")
    author.git("update-index", "--add", "--cacheinfo", f"160000,{first},releases/sub.yaml")
    author.git("commit", "--quiet", "-m", "a submodule")
    after = author.git("rev-parse", "HEAD")
    assert isinstance(desk.push(NO_COMMIT, after), SpecInvalid)
    assert desk.models == ["fine"]
    complaints = " ".join(event["what"] for event in desk.logged if event["event"] == "not released")
    assert "is a link" in complaints
    assert "is a submodule" in complaints
    assert f"the limit is {MAX_SPEC_BYTES}" in complaints


def test_what_is_not_text_is_refused(author: Author, desk: Desk) -> None:
    (author.folder / "releases").mkdir()
    (author.folder / "releases" / "a.yaml").write_bytes(b"model: \xff")
    (author.folder / "releases" / os.fsdecode(b"\xff.yaml")).write_text("model: b")
    error = desk.push(NO_COMMIT, author.commit())
    assert isinstance(error, SpecInvalid)
    assert "is not UTF-8" in str(error)
    assert desk.models == ["b"]


def test_hooks_of_a_template_never_run(
    author: Author, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = tmp_path / "template" / "hooks"
    hooks.mkdir(parents=True)
    for name in ("post-checkout", "reference-transaction", "post-merge"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        (hooks / name).chmod(0o755)
    (tmp_path / "config").write_text(f"[init]\ntemplateDir={tmp_path}/template\n[core]\nhooksPath={hooks}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(tmp_path / "template"))
    assert desk.push(NO_COMMIT, author.commit(digits="model: digits")) is None
    assert not (tmp_path / "ran").exists()


def test_a_commit_that_only_the_branch_leads_to_is_found(author: Author, desk: Desk) -> None:
    """Some servers give branches, and no commit by itself."""
    author.git("config", "uploadpack.allowAnySHA1InWant", "false")
    author.git("config", "protocol.version", "0")
    before = author.commit(digits=SPEC.format("digits", 10))
    after = author.commit(fraud=SPEC.format("fraud", 10))
    author.commit(**{"README.md": "x"})
    assert desk.push(before, after) is None
    assert desk.models == ["fraud"]


def test_a_commit_or_branch_that_is_not_there_is_not_found(author: Author, desk: Desk) -> None:
    author.commit(digits="model: digits")
    with pytest.raises(NotFound, match="is not among the last"):
        desk.push(NO_COMMIT, "1" * 40)
    author.git("branch", "-m", "other")
    with pytest.raises(NotFound, match="remote ref"):
        desk.push(NO_COMMIT, author.git("rev-parse", "HEAD"))


def test_a_repository_that_does_not_answer_is_temporary(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    commits = Commits(tmp_path / "a", Origin(url=(tmp_path / "none").as_uri()), largest_bytes=1)
    with pytest.raises(Temporary, match="git fetch of file:"):
        commits.fetch_branch("main")


def test_a_command_that_takes_too_long_is_ended_with_its_children(tmp_path: Path, author: Author) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin" / "git"
    slow.write_text('#!/bin/sh\ncase "$*" in *" fetch "*) sleep 60 & sleep 60;; esac\n')
    slow.chmod(0o755)
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{tmp_path / 'bin'}:{path}"
    try:
        commits = Commits(tmp_path / "a", Origin(url=author.folder.as_uri(), timeout_s=0.3), largest_bytes=1)
        with pytest.raises(Temporary, match=r"took longer than 0\.3 s"):
            commits.fetch_branch("main")
    finally:
        os.environ["PATH"] = path


def test_only_the_protocol_of_the_address_is_spoken(tmp_path: Path, author: Author) -> None:
    (tmp_path / "a").mkdir()
    commits = Commits(tmp_path / "a", Origin(url=f"ext::sh -c touch% {tmp_path}/ran"), largest_bytes=1)
    with pytest.raises(Temporary, match="not allowed"):
        commits.fetch_branch("main")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "url", ["ext::sh -c x", "/srv/git/x", "https://u:p@example.org/x", "https://u@example.org/x", "-x", "https://a b"]
)
def test_a_repository_with_an_address_that_could_do_harm_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        Repository(name="a/b", host="github", url=url)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_spec_or_refused_as_one(content: bytes) -> None:
    class Held:
        def read(self, _: Any) -> bytes:
            return content

    entry: Any = type("E", (), {"path": "releases/a.yaml", "kind": "file", "size_bytes": len(content)})
    held: Any = Held()
    try:
        message = read_spec(held, entry).path
    except SpecInvalid as error:
        message = error.what
    assert "releases/a.yaml" in message


def test_a_pod_registers_each_state_of_a_service_once_and_says_why_another_was_not(
    author: Author, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = VersionInfo(name="digits", version=7, source="", run_id="", created_at=0)
    known: dict[str, list[VersionInfo]] = {"digits": [digits]}

    class Registry:
        def __init__(self, uri: str) -> None:
            assert uri == "http://registry"

        def newest_of(self, name: str) -> VersionInfo:
            if name not in known:
                raise NotFound("there is none", do="")
            return known[name][-1]

        def register(self, name: str, files: Mapping[str, bytes], tags: Mapping[str, str]) -> VersionInfo:
            assert "MLmodel" in files
            if name == "somebody-s":
                raise RegistryDenied("the registry refuses the account", do="")
            versions = known.setdefault(name, [])
            versions.append(
                VersionInfo(name=name, version=len(versions) + 1, source="", run_id="", created_at=0, tags=dict(tags))
            )
            return versions[-1]

    monkeypatch.setattr(git_push, "RestRegistry", Registry)
    settings = TriggerSettings(namespace="n", registry_uri="http://registry")
    repository: Any = SimpleNamespace(name="acme/models", branch="main", origin=lambda timeout_s: author.origin)

    def push(before: str, after: str) -> None:
        git_push.run(repository, settings, before, after, desk.accept, desk.log)

    files = {f"services/adder/{path}": body.decode() for path, body in FOLDER.items()}
    first = author.commit(**files)
    push(NO_COMMIT, first)
    push(NO_COMMIT, first)
    assert [info.version for info in known["adder"]] == [1]
    assert [each for each in desk.logged if each["event"] == "service registered"] == [
        {"event": "service registered", "model": "adder", "version": 1, "commit": first}
    ]
    taken = {f"services/somebody-s/{path}": body.decode() for path, body in FOLDER.items()}
    second = author.commit(**taken, digits=SPEC.format("digits", 5), **{"services/adder/helper.py": "FACTOR = 2.0\n"})
    with pytest.raises(NotAdmitted, match="register a version of somebody-s: another account owns the model"):
        push(first, second)
    assert desk.models == ["digits"]
    assert [info.version for info in known["adder"]] == [1, 2]


def test_the_command_refuses_what_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, author: Author
) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"namespace": "shiplift", "registry_uri": "http://127.0.0.1:9"}')
    words = ["git_push", "--config", str(file), "--repository", "a/b", "--after", "1" * 40]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(Exception, match=r"'a/b' is not listed in settings\.json"):
        git_push.main()
