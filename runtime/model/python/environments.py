"""A Python model's environment: its packages resolved and installed by pip, once per set of packages.

Only wheels are installed, so no code of theirs runs before the sandbox does. What pip resolved is kept with its hashes,
so that a machine which has no such environment yet installs the very same. pip itself runs confined, with a network of
its own use: it reads its settings and the interpreter, and writes the new environment.
"""

import ast
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from packaging.utils import canonicalize_name

from shiplift.runtime.base.errors import NotAdmitted, NotConfined, PolicyRefused, Temporary
from shiplift.runtime.base.progress import progress
from shiplift.runtime.confinement.launch import launch_command
from shiplift.runtime.confinement.policy import INSTALL
from shiplift.runtime.confinement.sandbox import python_paths
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.host.processes import inherited
from shiplift.runtime.records.model import PythonEnvironment, Wheel
from shiplift.runtime.records.site import Site

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_LIMIT_S = 1800
_DNS, _HTTP, _HTTPS = 53, 80, 443
_NETWORK_FILES = (
    "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/ssl", "/etc/pki",
    "/etc/ca-certificates", "/usr/share/ca-certificates", "/etc/os-release", "/etc/lsb-release",
    "/etc/debian_version", "/etc/xdg/pip", "/etc/pip.conf",
)  # fmt: skip
_OWN_FILES = (".config/pip", ".pip", ".netrc")
_QUIET = (
    "--disable-pip-version-check", "--no-input", "--quiet", "--progress-bar", "off", "--only-binary", ":all:",
)  # fmt: skip
_UNREACHABLE = re.compile(r"Retrying \(|Could not fetch URL|Max retries exceeded|ReadTimeoutError|Connection\w*Error")
_MISSING = re.compile(r"No matching distribution found for (\S+)")
_DO = "Log the model with `pip_requirements=[...]` that `pip install --only-binary :all:` can install."


def beside(server_environment: Path) -> Path:
    """The folder of all environments: next to the server's, so that every stack of an installation shares them."""
    return server_environment.with_name("environments")


def resolve(site: Site, requirements: Sequence[str]) -> PythonEnvironment:
    """The packages that these requirements come to, as pip resolves them for this machine.

    Raises:
        NotAdmitted: they conflict, or one of them has no wheel.
        PolicyRefused: the site does not allow one of them.
        Temporary: the index can't be reached.
        NotConfined: the kernel refuses to confine pip.
    """
    root = _root(site)
    progress("resolving the model's requirements")
    with scratch_folder(root) as folder:
        asked, report = folder / "requirements.txt", folder / "report.json"
        asked.write_text("".join(f"{requirement}\n" for requirement in requirements))
        options = ["--dry-run", "--ignore-installed", "--report", str(report), "--requirement", str(asked)]
        _pip(site, ["install", *options], folder)
        entries: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    wheels = tuple(sorted((_wheel(entry) for entry in entries), key=lambda wheel: wheel.name))
    _check_allowed(site, wheels)
    return PythonEnvironment(python=PYTHON, machine=platform.machine(), wheels=wheels)


def ensure(site: Site, environment: PythonEnvironment) -> Path:
    """The folder of an environment, which is made first if it isn't there.

    Raises:
        NotAdmitted: a package can't be had any more, or is another one than it was.
        Temporary: the index can't be reached.
        NotConfined: the kernel refuses to confine pip.
    """
    root = _root(site)
    folder = root / environment.digest
    with (root / f".{environment.digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "stamp").is_file():  # written last
            _make(site, environment, folder)
    return folder


def readable(environment: Path, *others: Path) -> list[str]:
    """What a model's process reads besides the system's libraries: its environment, the interpreter, and `others`."""
    return [str(path.resolve()) for path in (environment, Path(sys.base_prefix), *others)]


def _root(site: Site) -> Path:
    root = beside(Path(site.server_environment))
    root.mkdir(parents=True, exist_ok=True)
    return root


def _make(site: Site, environment: PythonEnvironment, folder: Path) -> None:
    progress(f"installing {len(environment.wheels)} packages for the model")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)], check=True)
        with scratch_folder(folder.parent) as work:
            lock = work / "lock.txt"
            lock.write_text(environment.lock)
            interpreter = ["--python", str(folder / "bin" / "python")]
            options = ["--no-deps", "--no-compile", "--require-hashes", "--requirement", str(lock)]
            _pip(site, [*interpreter, "install", *options], work, folder)
        (folder / "stamp").write_text(environment.lock)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _pip(site: Site, arguments: Sequence[str], work: Path, *write: Path) -> None:
    """Runs pip confined: it writes below `work` and `write`, and into a cache of these environments' own."""
    cache = _root(site) / ".cache"
    cache.mkdir(exist_ok=True)
    index = site.policy.package_index
    settings = _settings()
    policy = replace(
        INSTALL.opening(read=_readable(settings), write=tuple(map(str, (work, cache, *write)))),
        ports=_ports([index, *settings.values()]), allow_without=tuple(site.sandbox.allow_without),
    )  # fmt: skip
    at = arguments.index("install") + 1
    options = [*_QUIET, "--cache-dir", str(cache), *_only(index, settings)]
    command = [sys.executable, "-m", "pip", *arguments[:at], *options, *arguments[at:]]
    variables = {**_own_variables(), "TMPDIR": str(work)}
    try:
        result = subprocess.run(
            launch_command(policy, command), capture_output=True, text=True, errors="replace",
            check=False, timeout=_LIMIT_S, env=variables, stdin=subprocess.DEVNULL, cwd=work,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Temporary(f"pip took over {_LIMIT_S} s", do="Check the package index, then run it again.") from error
    if result.returncode == NotConfined.exit_code:
        raise NotConfined(f"pip is {result.stderr.strip()[-400:]}", do="See `shiplift doctor`.")
    if result.returncode:
        raise _failure(result.stderr)


def _only(index: str, settings: dict[str, str]) -> list[str]:
    """The options with which pip asks this index alone, over the same proxy and with the same certificates as ever."""
    if not index:
        return []
    kept = [(name, settings.get(f"global.{name}") or settings.get(f":env:.{name}")) for name in ("cert", "proxy")]
    return ["--isolated", "--index-url", index, *(f"--{name}={value}" for name, value in kept if value)]


def _own_variables() -> dict[str, str]:
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return {**inherited(("PATH", "HOME", "LANG")), **pip}


def _failure(said: str) -> Exception:
    """Why pip gave up, from what it wrote."""
    lines = [line.removeprefix("ERROR: ").strip() for line in said.splitlines() if line.startswith("ERROR: ")]
    reason = "; ".join(line for line in lines if not line.startswith("ResolutionImp"))[-600:] or said.strip()[-400:]
    if _UNREACHABLE.search(said):
        return Temporary(f"the package index can't be reached: {reason}", do="Check pip's settings, and try again.")
    if "ResolutionImpossible" in said:
        return NotAdmitted(f"the model's requirements conflict: {reason}", do=_DO)
    if missing := _MISSING.search(said):
        return NotAdmitted(
            f"there is no wheel of {missing.group(1)} for Python {PYTHON} on {platform.machine()}: the index does not "
            "have it, or only as source that needs compiling, which is not done",
            do=_DO,
        )
    return NotAdmitted(f"pip can't install the model's requirements: {reason}", do=_DO)


def _wheel(entry: dict[str, Any]) -> Wheel:
    download, metadata = entry["download_info"], entry["metadata"]
    archive = download.get("archive_info") or {}
    digest = (archive.get("hashes") or {}).get("sha256") or str(archive.get("hash", "")).removeprefix("sha256=")
    if not digest and download["url"].startswith("file:"):
        digest = hashlib.sha256(Path(unquote(urlparse(download["url"]).path)).read_bytes()).hexdigest()
    return Wheel(name=canonicalize_name(metadata["name"]), version=metadata["version"], sha256=digest)


def _check_allowed(site: Site, wheels: Sequence[Wheel]) -> None:
    allowed = {canonicalize_name(name) for name in site.policy.packages}
    others = [wheel.name for wheel in wheels if allowed and wheel.name not in allowed]
    if others:
        raise PolicyRefused(
            f"the model needs packages that this site does not allow: {', '.join(others[:10])}",
            do="Do without them, or ask whoever runs this site to add them to `policy.packages`.",
        )


# --- what pip may reach ----------------------------------------------------------------------------------------------


def _settings() -> dict[str, str]:
    """pip's settings by name, as the site's owner wrote them."""
    result = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False,
        env=_own_variables(),
    )  # fmt: skip
    pairs = [line.partition("=") for line in result.stdout.splitlines()]
    return {name: str(ast.literal_eval(value)) for name, _, value in pairs if value[:1] in ("'", '"')}


def _readable(settings: dict[str, str]) -> tuple[str, ...]:
    """The interpreter with its packages, what names are resolved and certificates checked with, and pip's own files."""
    words = [word for value in settings.values() for word in value.split()]
    indexes = [Path(unquote(urlparse(word).path)).parent for word in words if word.startswith("file:")]
    local = [word for word in words if word.startswith("/")] + [str(path) for path in indexes]  # pages link to siblings
    own = [str(Path.home() / name) for name in _OWN_FILES]
    linked = [str(Path(path).resolve()) for path in _NETWORK_FILES]
    return tuple(dict.fromkeys([*map(str, python_paths()), *_NETWORK_FILES, *linked, *own, *local]))


def _ports(values: Sequence[str]) -> tuple[int, ...]:
    """The TCP ports of the index, of proxies, and of DNS."""
    urls = [urlparse(word) for value in values for word in value.split() if "://" in word]
    return tuple(sorted({_DNS, _HTTP, _HTTPS, *(url.port for url in urls if url.port)}))
