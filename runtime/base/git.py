"""One commit of a git repository, read without a working tree: no hooks, filters, submodules or links ever act.

Files are listed and read as git's own objects, so nothing of the repository is written where a path in it says. The
command gets no configuration but ours, talks only the protocol of the configured address, and never asks a person.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from urllib.parse import urlsplit

from shiplift.runtime.base.errors import MissingTool, NotFound, Temporary

_PASSED_ON = (
    "PATH", "LANG", "TMPDIR", "SSL_CERT_FILE", "GIT_SSL_CAINFO", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy",
)  # fmt: skip
_CONFIG = {
    "core.hooksPath": "/dev/null",
    "core.symlinks": "false",
    "credential.helper": "",  # before ours: forgets the system's
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
_DEEP = 500
_MISSING = re.compile(r"not our ref|couldn't find remote ref|unadvertised object|no such remote ref", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a repository is, and the files that let us in."""

    url: str
    credentials: Path | None = None
    ssh_key: Path | None = None
    known_hosts: Path | None = None
    timeout_s: float = 120


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A path in a commit: `kind` is `file`, `link`, `folder` or `submodule`."""

    path: str
    kind: str
    blob: str
    size_bytes: int


class Commits:
    """A bare repository in an empty folder that holds only the commits asked for, without large files."""

    def __init__(self, folder: Path, origin: Origin, *, largest_bytes: int) -> None:
        self._folder = folder
        self._origin = origin
        self._filter = f"--filter=blob:limit={largest_bytes + 1}"
        self._fetched: set[str] = set()  # git, asked for what it lacks, would fetch it with all its ancestors
        self._run("init", "--quiet", "--bare", "--template=", ".")
        self._run("remote", "add", "origin", origin.url)

    def fetch_branch(self, branch: str) -> str:
        """Fetches a branch's last commit and gives it.

        Raises:
            NotFound: there is no such branch.
            Temporary: the repository does not answer, or does not let us in.
        """
        return self._branch(branch, depth=1)[0]

    def fetch_commit(self, commit: str, branch: str) -> None:
        """Fetches one commit, by itself or, where the server won't give it so, with the branch's last ones.

        Raises:
            NotFound: the repository has no such commit, or only long ago.
            Temporary: the repository does not answer, or does not let us in.
        """
        if commit in self._fetched:
            return
        try:
            self._fetch(commit, depth=1)
            self._fetched.add(commit)
        except NotFound:
            if commit not in self._branch(branch, depth=_DEEP):
                said = f"commit {commit} is not among the last {_DEEP} of {branch!r}"
                raise NotFound(said, do="Push again.") from None

    def changed(self, before: str, after: str, folder: str) -> set[str]:
        """The paths of a folder's files added or changed from one fetched commit to another."""
        said = self._run(
            "diff-tree", "-r", "-z", "--no-renames", "--no-ext-diff", "--name-only", "--diff-filter=AMT", before, after,
            "--", f"{folder}/",
        )  # fmt: skip
        return {path for path in said.decode(errors="surrogateescape").split("\0") if path}

    def entries(self, commit: str, folder: str) -> Iterator[Entry]:
        """What a folder of a commit holds, itself only."""
        kinds = {"100": "file", "120": "link", "040": "folder", "160": "submodule"}
        said = self._run("ls-tree", "-z", "-l", commit, f"{folder}/").decode(errors="surrogateescape")
        for line in filter(None, said.split("\0")):
            about, _, path = line.partition("\t")
            mode, _, blob, size = about.split()
            length = int(size) if size.isdecimal() else 0
            yield Entry(path=path, kind=kinds.get(mode[:3], "odd"), blob=blob, size_bytes=length)

    def read(self, entry: Entry) -> bytes:
        """A file's content."""
        return self._run("cat-file", "blob", entry.blob)

    def _branch(self, branch: str, *, depth: int) -> list[str]:
        kept = f"refs/shiplift/{branch}"
        self._fetch(f"+refs/heads/{branch}:{kept}", depth=depth)
        found = self._run("rev-list", kept).decode().split()
        self._fetched.update(found)
        return found

    def _fetch(self, what: str, *, depth: int) -> None:
        self._run(
            "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", self._filter, f"--depth={depth}", "origin", what
        )

    def _run(self, *words: str) -> bytes:
        """What a git command writes.

        Raises:
            NotFound: it said that something is not there.
            Temporary: it failed for another reason, or took too long.
        """
        command = ["git", *_options(self._origin), *words]
        try:
            process = subprocess.Popen(
                command, cwd=self._folder, env=_environment(self._folder), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise MissingTool("git is not installed", do="Install it, or use the pipeline's image.") from error
        try:
            said, complaint = process.communicate(timeout=self._origin.timeout_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # its helpers too, which would keep the pipes open
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                what = f"git {words[0]} took longer than {self._origin.timeout_s:g} s"
                raise Temporary(what, do="Try again, or raise the limit.") from error
            raise
        if process.returncode == 0:
            return said
        why = " ".join(complaint.decode(errors="replace").split())[:300] or f"exit code {process.returncode}"
        if _MISSING.search(why):
            raise NotFound(f"git {words[0]} of {self._origin.url}: {why}", do="Check the branch and the commit.")
        raise Temporary(f"git {words[0]} of {self._origin.url}: {why}", do="Check its address and credentials.")


def _options(origin: Origin) -> list[str]:
    scheme = urlsplit(origin.url).scheme
    config = _CONFIG | ({f"protocol.{scheme}.allow": "always"} if scheme in SCHEMES else {})
    given = [f"{key}={value}" for key, value in config.items()]
    if origin.credentials:
        given.append(f"credential.helper=store --file={quote(str(origin.credentials))}")
    if origin.ssh_key:
        hosts = f"-o UserKnownHostsFile={quote(str(origin.known_hosts))}" if origin.known_hosts else ""
        given.append(
            f"core.sshCommand=ssh -i {quote(str(origin.ssh_key))} -o IdentitiesOnly=yes -o BatchMode=yes "
            f"-o StrictHostKeyChecking=yes -F /dev/null {hosts}".strip()
        )
    return [word for one in given for word in ("-c", one)]


def _environment(home: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return kept | {
        "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "false", "GIT_ATTR_NOSYSTEM": "1", "LC_ALL": "C",
    }  # fmt: skip
