"""Releases what a push to a repository changed, on one machine: the specs and services that differ from last time.

`releases/*.yaml` are release specs, and `services/NAME/` are services, as on a cluster. The stack's home keeps the last
handled commit of each repository, so that a spec is released only when it changes.
"""

import hashlib
import tempfile
from pathlib import Path

from shiplift.pipelines.triggers import git_push
from shiplift.pipelines.triggers.pushes import NO_COMMIT
from shiplift.pipelines.triggers.services import MAX_FILE_BYTES, Newest, Register, register_services
from shiplift.runtime.base.errors import ShipliftError, Temporary
from shiplift.runtime.base.git import Commits, Origin, path_of
from shiplift.runtime.base.storage import locked, write_atomically
from shiplift.runtime.records.base import Record


class Pushed(Record):
    """What a push led to: the versions that it registered or released, by model, and why others were refused."""

    repository: str
    branch: str
    commit: str
    registered: dict[str, int]
    released: dict[str, int]
    unchanged: tuple[str, ...]
    refused: tuple[str, ...]


class LocalPush:
    """The latest commit of a repository's branch; `folder` in the home keeps which commits were handled."""

    def __init__(self, origin: Origin, branch: str, folder: Path) -> None:
        self._origin, self._branch = origin, branch
        digest = hashlib.sha256(f"{origin.url}\n{branch}".encode()).hexdigest()
        self._handled = folder / f"{digest[:32]}.txt"

    def handle(
        self, newest: Newest, register: Register, accept: git_push.Accept
    ) -> tuple[Pushed, ShipliftError | None]:
        """Registers and releases what changed; returns what it did, and the first error. An error stops nothing else.

        Raises:
            NotFound: the branch does not exist.
            Temporary: the repository or the registry does not respond; running it again is harmless.
        """
        with locked(self._handled.with_suffix(".lock")):  # two simultaneous pushes must not register a service twice
            return self._handle(newest, register, accept)

    def _handle(
        self, newest: Newest, register: Register, accept: git_push.Accept
    ) -> tuple[Pushed, ShipliftError | None]:
        told: list[dict[str, object]] = []

        def log(event: str, **fields: object) -> None:
            told.append({"event": event, **fields})

        before = self._handled.read_text().strip() if self._handled.is_file() else NO_COMMIT
        with tempfile.TemporaryDirectory(prefix="shiplift-git-") as scratch:
            commits = Commits(Path(scratch), self._origin, largest_bytes=MAX_FILE_BYTES)
            tip = commits.fetch_branch(self._branch)
            specs = git_push.changed_specs(commits, self._branch, before, tip, log)
            path = path_of(self._origin.url)
            error = git_push.release(git_push.specs_of(commits, specs), tip, newest, accept, log, repository=path)
            services = register_services(commits, tip, newest, register)
        if not isinstance(error, Temporary):  # after a temporary error, the next push tries these specs again
            write_atomically(self._handled, f"{tip}\n")
        released = {str(each["model"]): int(str(each["version"])) for each in told if "model" in each}
        refused = [str(each["what"]) for each in told if each["event"] == "not released"]
        pushed = Pushed(
            repository=self._origin.url,
            branch=self._branch,
            commit=tip,
            released=released,
            registered=services.versions,
            unchanged=tuple(services.unchanged),
            refused=(*refused, *(each.what for each in services.errors.values())),
        )
        return pushed, error or next(iter(services.errors.values()), None)
