"""Confined pip, which resolves and installs the packages of Python models.

It runs no code from the packages: only wheels are installed, and it can start no program, with which it would build
others. It reads its settings and the interpreter, and writes only to the given folder. Only fetching has a network.
"""

import ast
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlparse

from shiplift.runtime.base.errors import NotAdmitted, NotConfined, PolicyRefused, ShipliftError, Temporary
from shiplift.runtime.confinement.launch import launch_command
from shiplift.runtime.confinement.policy import INSTALL
from shiplift.runtime.host.interpreter import python_paths
from shiplift.runtime.host.processes import inherited, own_module
from shiplift.runtime.model.python.inspection import check_count
from shiplift.runtime.records.site import Site

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_LIMIT_S, _LOOK_S = 1800, 2.0
_DNS, _HTTP, _HTTPS = 53, 80, 443
_NETWORK_FILES = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/etc/os-release",
    "/etc/lsb-release",
    "/etc/debian_version",
    "/etc/xdg/pip",
    "/etc/pip.conf",
)
_OWN_FILES = (".config/pip", ".pip", ".netrc")
_QUIET = (
    "--disable-pip-version-check",
    "--no-input",
    "--quiet",
    "--retries",
    "2",
    "--progress-bar",
    "off",
    "--only-binary",
    ":all:",
)
_UNREACHABLE = re.compile(r"Retrying \(|Could not fetch URL|Max retries exceeded|ReadTimeoutError|Connection\w*Error")
_STARTS = re.compile(r"\[Errno 1\] Operation not permitted")  # the build of a source package
_MISSING = re.compile(r"No matching distribution found for (\S+)")
_DO = (
    "Log the model with packages that `pip install --only-binary :all:` can install: "
    "`log_model(..., pip_requirements=['NAME==VERSION'])`."
)


def run_pip(site: Site, arguments: Sequence[str], work: Path, *, offline: bool = False) -> None:
    """Runs pip with these arguments, which begin with its command. It writes only below `work`.

    Raises:
        NotAdmitted: the requirements conflict, or one of them has no wheel.
        PolicyRefused: they are larger than this site allows.
        Temporary: the index can't be reached.
        NotConfined: the kernel refuses to confine pip.
    """
    index = site.policy.package_index
    settings = _settings()
    waived = tuple(site.sandbox.allow_without)
    policy = replace(
        INSTALL.opening(read=_readable(settings), write=(str(work),)),
        network=not offline,
        ports=_ports([index, *settings.values()]),
        allow_without=waived,
    )
    command, *rest = arguments
    options = [*_QUIET, "--cache-dir", str(work / "cache"), *(["--no-index"] if offline else _only(index, settings))]
    program = own_module("shiplift.runtime.confinement.alone", ",".join(waived), "pip", command, *options, *rest)
    variables = {**_own_variables(), "TMPDIR": str(work)}
    code, said = _run(launch_command(policy, program), variables, work, site.policy.max_size_mb)
    if code == NotConfined.exit_code:
        raise NotConfined(f"pip is {said.strip()[-400:]}", do="See `shiplift doctor`.")
    if code:
        raise _failure(said)


def _run(command: Sequence[str], variables: dict[str, str], work: Path, limit_mb: int) -> tuple[int, str]:
    """How a command ended, and what it wrote to standard error; `limit_mb` bounds the files below `work`."""
    started = time.monotonic()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=variables,
        cwd=work,
    ) as process:
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    _, said = process.communicate(timeout=_LOOK_S)
                    return process.returncode, said
                if time.monotonic() - started > _LIMIT_S:
                    raise Temporary(f"pip took over {_LIMIT_S} s", do="Check the package index, then run it again.")
                if (size_mb := _size_mb(work)) > limit_mb:
                    raise PolicyRefused(
                        f"the model's packages have {size_mb} MiB so far, the limit is {limit_mb} MiB",
                        do="Use fewer packages, or ask the owner of this site to raise `policy.max_size_mb`.",
                    )
        finally:
            process.kill()  # its confinement kills everything that it started


def _size_mb(folder: Path) -> int:
    files = (Path(root) / name for root, _, names in os.walk(folder) for name in names)
    total = 0
    for count, file in enumerate(files):
        check_count(count)
        with suppress(OSError):  # pip removes its own files meanwhile
            total += file.lstat().st_size
    return total >> 20


def _only(index: str, settings: dict[str, str]) -> list[str]:
    """The options with which pip asks only this index, over the usual proxy and with the usual certificates."""
    if not index:
        return []
    kept = [(name, settings.get(f"global.{name}") or settings.get(f":env:.{name}")) for name in ("cert", "proxy")]
    parts = urlparse(index)
    # The site's owner chose an index without TLS, such as one inside the cluster; without this option, pip refuses it.
    trusted = ["--trusted-host", parts.netloc.rpartition("@")[2]] if parts.scheme == "http" else []
    return ["--isolated", "--index-url", index, *trusted, *(f"--{name}={value}" for name, value in kept if value)]


def _own_variables() -> dict[str, str]:
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return {**inherited(("PATH", "HOME", "LANG")), **pip}


def _failure(said: str) -> ShipliftError:
    """Why pip gave up, from what it wrote."""
    lines = [line.removeprefix("ERROR: ").strip() for line in said.splitlines() if line.startswith("ERROR: ")]
    reason = "; ".join(line for line in lines if not line.startswith("ResolutionImp"))[-600:] or said.strip()[-400:]
    if _STARTS.search(said):
        return NotAdmitted(
            "the model's requirements, or those of its packages, name something that would have to be built, such as a "
            "URL or a path, which is not done",
            do=_DO,
        )
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


# --- what pip may reach ----------------------------------------------------------------------------------------------


def _settings() -> dict[str, str]:
    """pip's settings by name, as the site's owner wrote them."""
    result = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        check=False,
        env=_own_variables(),
    )
    pairs = [line.partition("=") for line in result.stdout.splitlines()]
    return {name: str(ast.literal_eval(value)) for name, _, value in pairs if value[:1] in ("'", '"')}


def _readable(settings: dict[str, str]) -> tuple[str, ...]:
    """The interpreter with its packages, the files for name resolution and certificates, and pip's own files."""
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
