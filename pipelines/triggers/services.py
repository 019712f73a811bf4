"""The services of a repository: folders `services/NAME/`. Each state of a folder is registered once.

A service is a Triton Python model (`runtime.serving.triton.service`). Registering it starts its release, as for any
version. The version is tagged with git's own digest of the folder, by which a later push sees that nothing changed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from shiplift.runtime.base.errors import NotAdmitted, NotFound, RegistryDenied, ShipliftError
from shiplift.runtime.base.files import Irregular, check_path
from shiplift.runtime.base.git import Commits, TreeEntry
from shiplift.runtime.store.registry.terms import SOURCE_TAG, VersionInfo, check_name

FOLDER = "services"
MAX_FILE_BYTES = 16 << 20
_MOST_SERVICES, _MOST_FILES, _MOST_BYTES = 100, 500, 128 << 20

Register = Callable[[str, Mapping[str, bytes], Mapping[str, str]], int]
Newest = Callable[[str], VersionInfo]


@dataclass(frozen=True, kw_only=True)
class Registered:
    """What happened to each service: a new version, no change since the newest version, or an error."""

    versions: dict[str, int] = field(default_factory=dict)
    unchanged: list[str] = field(default_factory=list)
    errors: dict[str, ShipliftError] = field(default_factory=dict)


def register_services(commits: Commits, commit: str, newest: Newest, register: Register) -> Registered:
    """Registers every service of a commit that differs from its newest version. An error in one doesn't stop others.

    Raises:
        NotAdmitted: the commit has more than a hundred services.
        NotFound, Temporary: the commit can't be read.
    """
    told = Registered()
    for entry in _services(commits, commit):
        name = ascii(entry.path.rpartition("/")[2])[1:-1]
        try:
            version = _registered(commits, commit, entry, name, newest, register)
        except ShipliftError as error:
            told.errors[name] = error
        else:
            if version is None:
                told.unchanged.append(name)
            else:
                told.versions[name] = version
    return told


def _services(commits: Commits, commit: str) -> list[TreeEntry]:
    entries = [entry for entry in commits.entries(commit, FOLDER) if entry.kind == "folder"]
    if len(entries) > _MOST_SERVICES:
        raise NotAdmitted(
            f"{FOLDER}/ has {len(entries)} services, the limit is {_MOST_SERVICES}", do="Split the repository."
        )
    return entries


def _registered(
    commits: Commits, commit: str, entry: TreeEntry, name: str, newest: Newest, register: Register
) -> int | None:
    """The version that was registered; None if the newest version already has this state."""
    from shiplift.runtime.serving.triton import service  # noqa: PLC0415 - loads gRPC, which most pushes don't need

    check_name(name)
    try:
        if newest(name).tags.get(SOURCE_TAG) == entry.blob:
            return None
    except NotFound:
        pass  # this is the first version
    files = service.as_version(name, dict(_files(commits, commit, entry)))
    try:
        return register(name, files, {SOURCE_TAG: entry.blob})
    except RegistryDenied as error:  # reading worked a moment ago, so the account itself is valid
        raise NotAdmitted(
            f"the registry does not let pushes register a version of {name}: another account owns the model",
            do="Give the service another name, or ask the model's owner for the right to edit it.",
        ) from error


def _files(commits: Commits, commit: str, folder: TreeEntry) -> Iterator[tuple[str, bytes]]:
    """The files below a folder, by their paths in it."""
    waiting, count, size = [folder], 0, 0
    while waiting:
        for entry in commits.entries(commit, waiting.pop().path):
            count, size = count + 1, size + entry.size_bytes
            path = ascii(entry.path)[1:-1]
            if count > _MOST_FILES or size > _MOST_BYTES or entry.size_bytes > MAX_FILE_BYTES:
                raise NotAdmitted(
                    f"{path} is beyond the limits of a service: {_MOST_FILES} files of {MAX_FILE_BYTES >> 20} MiB, "
                    f"and {_MOST_BYTES >> 20} MiB together",
                    do="Move large files into a package in the service's requirements.",
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
        raise NotAdmitted(f"{ascii(path)[1:-1][:100]} is not a valid path in a service", do="Rename it.") from error
    return path
