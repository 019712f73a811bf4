"""Pushes to real repositories on one machine: what is registered and released, once, and what is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shiplift.pipelines.engines.answers import Accepted
from shiplift.pipelines.triggers import services
from shiplift.pipelines.triggers.local_push import LocalPush, Pushed
from shiplift.runtime.base.errors import NotAdmitted, NotFound, SpecInvalid, Temporary
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.store.registry.terms import SOURCE_TAG, VersionInfo
from tests.unit.pipelines.triggers.test_git_push import SPEC, Author
from tests.unit.runtime.serving.triton.test_service import FOLDER


class Stack:
    """A registry with version 1 of `digits`, and what was registered and accepted since."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.versions = {"digits": [version("digits", 1, {})]}
        self.accepted: list[tuple[str, int]] = []
        self.files: dict[str, Mapping[str, bytes]] = {}

    def newest(self, model: str) -> VersionInfo:
        if model not in self.versions:
            raise NotFound(f"there is no model {model}", do="")
        return self.versions[model][-1]

    def register(self, name: str, files: Mapping[str, bytes], tags: Mapping[str, str]) -> int:
        made = self.versions.setdefault(name, [])
        made.append(version(name, len(made) + 1, dict(tags)))
        self.files[name] = files
        return len(made)

    def accept(self, request: Request, trigger: Trigger) -> Accepted:
        assert trigger.kind == "git"
        assert f"/{trigger.repository}".endswith("/repository")
        self.accepted.append((request.model, request.version))
        return Accepted(name="release", created=True, queued=True)

    def push(self, author: Author) -> tuple[Pushed, Any]:
        push = LocalPush(author.origin, "main", self.home / "pushes")
        return push.handle(self.newest, self.register, self.accept)


def version(name: str, number: int, tags: dict[str, str]) -> VersionInfo:
    return VersionInfo(name=name, version=number, source="", run_id="", created_at=0, tags=tags)


@pytest.fixture
def author(tmp_path: Path) -> Author:
    return Author(tmp_path / "repository")


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return Stack(tmp_path / "home")


def service(name: str, **changes: str | None) -> dict[str, str | None]:
    files = {path: body.decode() for path, body in FOLDER.items()} | changes
    return {f"services/{name}/{path}": text for path, text in files.items()}


def test_a_service_is_registered_once_and_again_when_its_folder_changes(author: Author, stack: Stack) -> None:
    author.commit(**service("adder", **{"lib/deep/more.py": "A = 1\n"}))
    pushed, error = stack.push(author)
    assert (pushed.registered, pushed.unchanged, error) == ({"adder": 1}, (), None)
    assert {"MLmodel", "service.py", "lib/deep/more.py", "shiplift/shiplift.yaml"} <= set(stack.files["adder"])
    assert len(stack.versions["adder"][0].tags[SOURCE_TAG]) == 40
    author.commit(**{"README.md": "about"})
    assert stack.push(author)[0].unchanged == ("adder",)
    author.commit(**{"services/adder/helper.py": "FACTOR = 4.0\n"})
    assert stack.push(author)[0].registered == {"adder": 2}


def test_a_spec_releases_its_model_when_it_changes_also_back_to_what_it_was(author: Author, stack: Stack) -> None:
    for limit in (5, 5, 6, 5):
        author.commit(digits=SPEC.format("digits", limit))
        stack.push(author)
    assert stack.accepted == [("digits", 1)] * 3
    assert stack.push(author)[0].released == {}


def test_what_is_refused_keeps_nothing_else_from_being_released(author: Author, stack: Stack) -> None:
    author.commit(
        **service("adder"),
        **service("broken", **{"config.pbtxt": "max_batch_size: 0"}),
        **service("bare", **{"requirements.txt": ""}),
        digits=SPEC.format("digits", 5),
        wrong="model: [",
    )
    author.git("rm", "--quiet", "services/bare/requirements.txt")
    author.git("commit", "--quiet", "-m", "change")
    pushed, error = stack.push(author)
    assert isinstance(error, SpecInvalid)
    assert (pushed.registered, pushed.released) == ({"adder": 1}, {"digits": 1})
    refused = "\n".join(pushed.refused)
    for reason in ("releases/wrong.yaml", "broken: config.pbtxt has max_batch_size 0", "bare has no requirements.txt"):
        assert reason in refused


def test_a_spec_that_a_registry_s_absence_kept_back_is_released_next_time(
    author: Author, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    author.commit(digits=SPEC.format("digits", 5))
    with monkeypatch.context() as away:

        def absent(model: str) -> VersionInfo:
            raise Temporary("the registry does not answer", do="")

        away.setattr(stack, "newest", absent)
        assert isinstance(stack.push(author)[1], Temporary)
    assert stack.push(author)[0].released == {"digits": 1}


def test_links_and_folders_beyond_the_limits_are_refused(
    author: Author, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    author.commit(**service("adder"))
    (author.folder / "services" / "adder" / "secret").symlink_to("/etc/passwd")
    author.commit()
    pushed, error = stack.push(author)
    assert isinstance(error, NotAdmitted)
    assert pushed.refused == ("services/adder/secret is a link",)
    monkeypatch.setattr(services, "_MOST_FILES", 3)
    assert "beyond the limits of a service" in stack.push(author)[0].refused[0]
    monkeypatch.setattr(services, "_MOST_SERVICES", 0)
    with pytest.raises(NotAdmitted, match="1 services, the limit is 0"):
        stack.push(author)
    assert stack.files == {}


def test_a_branch_that_is_not_there_is_said_so(author: Author, stack: Stack) -> None:
    author.commit(**service("adder"))
    with pytest.raises(NotFound):
        LocalPush(author.origin, "other", stack.home / "pushes").handle(stack.newest, stack.register, stack.accept)
