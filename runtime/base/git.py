"""Single commits of a git repository, read without a working tree, so that hooks, filters and links never act.

Files are listed and read as git objects, so nothing is written to a path that the repository chooses. git runs with
only our configuration, speaks only the protocol of the configured URL, and never prompts.
"""

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from urllib.parse import urlsplit

from shiplift.runtime.base.errors import MissingTool, NotFound, Temporary

_INHERITED = (
    "PATH",
    "LANG",
    "TMPDIR",
    "SSL_CERT_FILE",
    "GIT_SSL_CAINFO",
    "HTTPS_PROXY",
    "https_proxy",
    "NO_PROXY",
    "no_proxy",
)
_CONFIG = {
    "core.hooksPath": "/dev/null",
    "core.symlinks": "false",
    "credential.helper": "",  # clears the system's helpers; ours is added after it
    "fetch.recurseSubmodules": "false",
    "gc.auto": "0",
    "http.followRedirects": "initial",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "30",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "protocol.ext.allow": "never",
}
SCHEMES = ("https", "http", "ssh", "git", "file")  # never `ext`, which runs a command
_SEARCH_DEPTH = 500  # commits of a branch to search, if the server does not serve a commit by its hash
_MISSING = re.compile(r"not our ref|couldn't find remote ref|unadvertised object|no such remote ref", re.IGNORECASE)


def path_of(url: str) -> str:
    """The path in a repository's URL, such as `OWNER/NAME`: without the host, credentials and `.git`."""
    return urlsplit(url).path.strip("/").removesuffix(".git")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A repository's URL, and the files that grant access to it."""

    url: str
    credentials: Path | None = None
    ssh_key: Path | None = None
    known_hosts: Path | None = None
    timeout_s: float = 120


@dataclass(frozen=True, kw_only=True)
class TreeEntry:
    """A path in a commit: `kind` is `file`, `link`, `folder`, `submodule` or, for anything else, `odd`."""

    path: str
    kind: str
    blob: str
    size_bytes: int


class Commits:
    """A bare repository that holds only the requested commits, without their large files."""

    def __init__(self, folder: Path, origin: Origin, *, largest_bytes: int) -> None:
        self._folder = folder
        self._origin = origin
        self._filter = f"--filter=blob:limit={largest_bytes + 1}"
        self._fetched: set[str] = set()  # without this record, git would fetch a commit it lacks with all its ancestors
        self._run("init", "--quiet", "--bare", "--template=", ".")
        self._run("remote", "add", "origin", origin.url)

    def fetch_branch(self, branch: str) -> str:
        """Fetches a branch's latest commit and returns its hash.

        Raises:
            NotFound: the branch does not exist.
            Temporary: the repository does not respond, or refuses access.
        """
        return self._branch(branch, depth=1)[0]

    def fetch_commit(self, commit: str, branch: str) -> None:
        """Fetches one commit: by itself or, if the server refuses that, with the latest commits of the branch.

        Raises:
            NotFound: the repository has no such commit, or it is too far back in the branch.
            Temporary: the repository does not respond, or refuses access.
        """
        if commit in self._fetched:
            return
        try:
            self._fetch(commit, depth=1)
            self._fetched.add(commit)
        except NotFound:
            if commit not in self._branch(branch, depth=_SEARCH_DEPTH):
                message = f"commit {commit} is not among the last {_SEARCH_DEPTH} commits of {branch!r}"
                raise NotFound(message, do="Push again.") from None

    def changed(self, before: str, after: str, folder: str) -> set[str]:
        """The paths below `folder` that were added or changed between two fetched commits."""
        output = self._run(
            "diff-tree",
            "-r",
            "-z",
            "--no-renames",
            "--no-ext-diff",
            "--name-only",
            "--diff-filter=AMT",
            before,
            after,
            "--",
            f"{folder}/",
        )
        return {path for path in output.decode(errors="surrogateescape").split("\0") if path}

    def entries(self, commit: str, folder: str) -> Iterator[TreeEntry]:
        """The direct entries of a folder in a commit."""
        kinds = {"100": "file", "120": "link", "040": "folder", "160": "submodule"}
        listing = self._run("ls-tree", "-z", "-l", commit, f"{folder}/").decode(errors="surrogateescape")
        for line in filter(None, listing.split("\0")):
            attributes, _, path = line.partition("\t")
            mode, _, blob, size = attributes.split()
            size_bytes = int(size) if size.isdecimal() else 0
            yield TreeEntry(path=path, kind=kinds.get(mode[:3], "odd"), blob=blob, size_bytes=size_bytes)

    def read(self, entry: TreeEntry) -> bytes:
        """A file's content."""
        return self._run("cat-file", "blob", entry.blob)

    def _branch(self, branch: str, *, depth: int) -> list[str]:
        local_ref = f"refs/shiplift/{branch}"
        self._fetch(f"+refs/heads/{branch}:{local_ref}", depth=depth)
        commits = self._run("rev-list", local_ref).decode().split()
        self._fetched.update(commits)
        return commits

    def _fetch(self, refspec: str, *, depth: int) -> None:
        self._run(
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            self._filter,
            f"--depth={depth}",
            "origin",
            refspec,
        )

    def _run(self, *arguments: str) -> bytes:
        return _run(self._folder, self._origin, *arguments)


def latest_commit(origin: Origin, branch: str) -> str | None:
    """The hash of a branch's latest commit, without fetching it; None if there is no such branch.

    Raises:
        Temporary: the repository does not respond, or refuses access.
    """
    ref = f"refs/heads/{branch}"
    with tempfile.TemporaryDirectory(prefix="shiplift-git-") as folder:
        listing = _run(Path(folder), origin, "ls-remote", "--quiet", "--", origin.url, ref).decode(errors="replace")
    refs = (line.partition("\t") for line in listing.splitlines())
    return next((commit for commit, _, name in refs if name == ref), None)  # git also lists refs that end like it


def _run(folder: Path, origin: Origin, *arguments: str) -> bytes:
    """Runs a git command in a folder and returns its standard output.

    Raises:
        NotFound: git reported that something does not exist.
        Temporary: git failed for another reason, or took too long.
    """
    command = ["git", *_options(origin), *arguments]
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise MissingTool("git is not installed", do="Install it, or use the pipeline's image.") from error
    try:
        output, errors = process.communicate(timeout=origin.timeout_s)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)  # and its helper processes, which would hold the pipes open
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            message = f"git {arguments[0]} of {origin.url} took longer than {origin.timeout_s:g} s"
            raise Temporary(message, do="Try again, or raise the limit.") from error
        raise
    if process.returncode == 0:
        return output
    reason = " ".join(errors.decode(errors="replace").split())[:300] or f"exit code {process.returncode}"
    if _MISSING.search(reason):
        raise NotFound(f"git {arguments[0]} of {origin.url}: {reason}", do="Check the branch and the commit.")
    raise Temporary(f"git {arguments[0]} of {origin.url}: {reason}", do="Check its URL and credentials.")


def _options(origin: Origin) -> list[str]:
    scheme = urlsplit(origin.url).scheme
    config = _CONFIG | ({f"protocol.{scheme}.allow": "always"} if scheme in SCHEMES else {})
    settings = [f"{key}={value}" for key, value in config.items()]
    if origin.credentials:
        settings.append(f"credential.helper=store --file={quote(str(origin.credentials))}")
    if origin.ssh_key:
        hosts = f"-o UserKnownHostsFile={quote(str(origin.known_hosts))}" if origin.known_hosts else ""
        settings.append(
            f"core.sshCommand=ssh -i {quote(str(origin.ssh_key))} -o IdentitiesOnly=yes -o BatchMode=yes "
            f"-o StrictHostKeyChecking=yes -F /dev/null {hosts}".strip()
        )
    return [argument for setting in settings for argument in ("-c", setting)]


def _environment(home: Path) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return inherited | {
        "HOME": str(home),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "false",
        "GIT_ATTR_NOSYSTEM": "1",
        "LC_ALL": "C",
        "GIT_CEILING_DIRECTORIES": str(home.parent),
    }
