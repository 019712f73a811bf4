"""What a push to a repository releases on one machine: the specs that changed, and the services whose folders did.

`releases/*.yaml` are release specs, as on a cluster. `services/NAME/` is a service (`runtime.serving.triton.service`):
each of its states is registered once, which starts its release. The last commit of a repository that was handled is
kept in the stack's home, so that a spec is released when it changes.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from shiplift.pipelines.triggers import git_push
from shiplift.pipelines.triggers.pushes import NO_COMMIT
from shiplift.runtime.base.errors import NotAdmitted, NotFound, ShipliftError, Temporary
from shiplift.runtime.base.files import Irregular, check_path
from shiplift.runtime.base.git import Commits, Entry, Origin
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.records.base import Record
from shiplift.runtime.serving.triton import service
from shiplift.runtime.store.registry.terms import SOURCE_TAG, VersionInfo, check_name

SERVICES = "services"
_MOST_SERVICES, _MOST_FILES = 100, 500
_MOST_FILE_BYTES, _MOST_BYTES = 16 << 20, 128 << 20

Register = Callable[[str, Mapping[str, bytes], Mapping[str, str]], int]
Newest = Callable[[str], VersionInfo]


class Pushed(Record):
    """What a push led to: versions that it registered or released, by model, and why others were not."""

    repository: str
    branch: str
    commit: str
    registered: dict[str, int]
    released: dict[str, int]
    unchanged: tuple[str, ...]
    refused: tuple[str, ...]


class Push:
    """The latest commit of a repository's branch; `folder` is the one in the home that keeps what was handled."""

    def __init__(self, origin: Origin, branch: str, folder: Path) -> None:
        self._origin, self._branch = origin, branch
        digest = hashlib.sha256(f"{origin.url}\n{branch}".encode()).hexdigest()
        self._handled = folder / f"{digest[:32]}.txt"

    def handle(
        self, newest: Newest, register: Register, accept: git_push.Accept
    ) -> tuple[Pushed, ShipliftError | None]:
        """Registers and releases; returns what that was, and the first error, which kept nothing else from it.

        Raises:
            NotFound: there is no such branch.
            Temporary: the repository or the registry does not respond; running it again is harmless.
        """
        told: list[dict[str, object]] = []

        def log(event: str, **fields: object) -> None:
            told.append({"event": event, **fields})

        before = self._handled.read_text().strip() if self._handled.is_file() else NO_COMMIT
        with tempfile.TemporaryDirectory(prefix="shiplift-git-") as scratch:
            commits = Commits(Path(scratch), self._origin, largest_bytes=_MOST_FILE_BYTES)
            tip = commits.fetch_branch(self._branch)
            specs = git_push.changed_specs(commits, self._branch, before, tip, log)
            error = git_push.release(
                git_push.specs_of(commits, specs), tip, lambda model: newest(model).version, accept, log
            )
            services = [_registered(commits, tip, entry, newest, register) for entry in _services(commits, tip)]
        if not isinstance(error, Temporary):  # else its specs are still to be released
            self._handled.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._handled, f"{tip}\n")
        errors = [each for _, each in services if isinstance(each, ShipliftError)]
        released = {str(each["model"]): int(str(each["version"])) for each in told if "model" in each}
        refused = [str(each["what"]) for each in told if each["event"] == "not released"]
        pushed = Pushed(
            repository=self._origin.url, branch=self._branch, commit=tip, released=released,
            registered={name: each for name, each in services if isinstance(each, int)},
            unchanged=tuple(name for name, each in services if each is None),
            refused=(*refused, *(each.what for each in errors)),
        )  # fmt: skip
        return pushed, error or (errors[0] if errors else None)


def _services(commits: Commits, commit: str) -> list[Entry]:
    entries = [entry for entry in commits.entries(commit, SERVICES) if entry.kind == "folder"]
    if len(entries) > _MOST_SERVICES:
        raise NotAdmitted(
            f"{SERVICES}/ has {len(entries)} services, the limit is {_MOST_SERVICES}", do="Split the repository."
        )
    return entries


def _registered(
    commits: Commits, commit: str, entry: Entry, newest: Newest, register: Register
) -> tuple[str, int | ShipliftError | None]:  # fmt: skip
    """A service's name, and the version that was registered; None: this state of it already is the newest version."""
    name = ascii(entry.path.rpartition("/")[2])[1:-1]
    try:
        check_name(name)
        try:
            if newest(name).tags.get(SOURCE_TAG) == entry.blob:
                return name, None
        except NotFound:
            pass  # it is its first version
        files = service.as_version(name, dict(_files(commits, commit, entry)))
        return name, register(name, files, {SOURCE_TAG: entry.blob})
    except ShipliftError as error:
        return name, error


def _files(commits: Commits, commit: str, folder: Entry) -> Iterator[tuple[str, bytes]]:
    """The files below a folder, by their paths in it."""
    waiting, count, size = [folder], 0, 0
    while waiting:
        for entry in commits.entries(commit, waiting.pop().path):
            count, size = count + 1, size + entry.size_bytes
            path = ascii(entry.path)[1:-1]
            if count > _MOST_FILES or size > _MOST_BYTES or entry.size_bytes > _MOST_FILE_BYTES:
                raise NotAdmitted(
                    f"{path} is beyond the limits of a service: {_MOST_FILES} files of {_MOST_FILE_BYTES >> 20} MiB, "
                    f"and {_MOST_BYTES >> 20} MiB together",
                    do="Let `service.py` get large files from a package in its requirements.",
                )
            if entry.kind == "folder":
                waiting.append(entry)
            elif entry.kind == "file":
                yield _checked(entry.path.removeprefix(f"{folder.path}/")), commits.read(entry)
            else:
                raise NotAdmitted(f"{path} is a {entry.kind}", do="Commit a plain file.")


def _checked(path: str) -> str:
    try:
        check_path(path)
    except Irregular as error:
        raise NotAdmitted(f"{ascii(path)[1:-1][:100]} is no path of a file in a service", do="Rename it.") from error
    return path
