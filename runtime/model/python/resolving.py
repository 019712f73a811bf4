"""Resolves a Python model's requirements to packages with hashes, by pip for this machine."""

import hashlib
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from packaging.utils import canonicalize_name
from pydantic import ValidationError

from shiplift.runtime.base.errors import NotAdmitted, PolicyRefused
from shiplift.runtime.base.progress import progress
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.base.text import printable
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.model.python.environments import fetch, is_there, root_of
from shiplift.runtime.model.python.pip import PYTHON, run_pip
from shiplift.runtime.records.model import PythonEnvironment, Wheel
from shiplift.runtime.records.site import Site

_DO = (
    "Log the model with packages that are on the index, by name and version: "
    "`log_model(..., pip_requirements=['NAME==VERSION'])`."
)


def resolve(site: Site, requirements: Sequence[str]) -> PythonEnvironment:
    """The packages to which pip resolves these requirements on this machine.

    The result is reused as long as its environment exists, because pip takes half a minute.

    Raises:
        NotAdmitted: they conflict, or one of them has no wheel.
        PolicyRefused: the site does not allow one of them.
        Temporary: the index can't be reached.
        NotConfined: the kernel refuses to confine pip.
    """
    known = _known(site, requirements)
    if known.is_file():
        environment = PythonEnvironment.model_validate_json(known.read_text())
        if is_there(site, environment):
            _check_allowed(site, environment.wheels)
            return environment
    progress("resolving the model's requirements")
    with scratch_folder(root_of(site)) as folder:
        asked, report = folder / "requirements.txt", folder / "report.json"
        asked.write_text("".join(f"{requirement}\n" for requirement in requirements))
        options = ["--dry-run", "--ignore-installed", "--report", str(report), "--requirement", str(asked)]
        run_pip(site, ["install", *options], folder)
        entries: list[dict[str, Any]] = json.loads(report.read_text())["install"]
        wheels = tuple(sorted((_wheel(entry) for entry in entries), key=lambda wheel: wheel.name))
        _check_allowed(site, wheels)
        environment = PythonEnvironment(python=PYTHON, machine=platform.machine(), wheels=wheels)
        fetch(site, environment, folder)  # here, where pip still has them from resolving
    write_atomically(known, environment.model_dump_json())
    return environment


def _known(site: Site, requirements: Sequence[str]) -> Path:
    """The file that keeps the packages for these requirements."""
    asked = json.dumps([PYTHON, platform.machine(), site.policy.package_index, sorted(requirements)])
    return root_of(site) / f".resolved-{hashlib.sha256(asked.encode()).hexdigest()[:24]}.json"


def _wheel(entry: dict[str, Any]) -> Wheel:
    download, metadata = entry["download_info"], entry["metadata"]
    if entry.get("is_direct"):
        raise NotAdmitted(
            f"the model needs {_shown(metadata.get('name'))} from {_shown(download['url'])}: only the site's index may "
            "say where packages come from",
            do=_DO,
        )
    archive = download.get("archive_info") or {}
    digest = (archive.get("hashes") or {}).get("sha256") or str(archive.get("hash", "")).removeprefix("sha256=")
    if not digest and download["url"].startswith("file:"):
        digest = hashlib.sha256(Path(unquote(urlparse(download["url"]).path)).read_bytes()).hexdigest()
    try:
        return Wheel(name=canonicalize_name(str(metadata["name"])), version=metadata["version"], sha256=digest)
    except (KeyError, ValidationError) as error:
        told = " ".join(_shown(metadata.get(field)) for field in ("name", "version"))
        raise NotAdmitted(f"{_shown(download['url'])} is not a package: it calls itself {told}", do=_DO) from error


def _shown(text: object) -> str:
    return repr(printable(str(text), limit=200))


def _check_allowed(site: Site, wheels: Sequence[Wheel]) -> None:
    allowed = {canonicalize_name(name) for name in site.policy.packages}
    others = [wheel.name for wheel in wheels if allowed and wheel.name not in allowed]
    if others:
        raise PolicyRefused(
            f"the model needs packages that this site does not allow: {', '.join(others[:10])}",
            do="Leave them out, or ask the owner of this site to add them to `policy.packages`.",
        )
