"""The packages that a Python model asks for: `requirements.txt` as MLflow logs it, read by a list of what is allowed.

Only names with versions are allowed. Everything else (URLs, paths, options) says where to fetch code from, which only
the site may decide. The file is the author's, so it is read in the sandbox.
"""

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import TypeAdapter, ValidationError

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.base.files import read_regular
from shiplift.runtime.records import model as records
from shiplift.runtime.records.model import PYTHON

FILE = "requirements.txt"
_ENVIRONMENT = "python_env.yaml"
MOST = 500
_MAX_BYTES = 256 << 10
_CANONICAL: TypeAdapter[str] = TypeAdapter(records.Requirement)
_DO = (
    "Log the model with names and versions alone: `log_model(..., pip_requirements=['NAME==VERSION'])`, such as "
    "'numpy==2.1.0'."
)
_NO_PYFUNC = "Log it with the flavor of its library, or as `mlflow.pyfunc.log_model(python_model=...)`."


def requirements_of(folder: Path, meta: Mapping[str, Any]) -> tuple[str, ...]:
    """What `mlflow.pyfunc` needs to load the model in `folder`, whose `MLmodel` file holds `meta`.

    MLflow logs an estimator of scikit-learn that only transforms without a flavor for pyfunc.

    Raises:
        NotAdmitted: as `read_requirements`; or MLflow has no Python for the model.
    """
    flavors = meta.get("flavors") or {}
    flavor = flavors.get(PYTHON) or {}
    if not flavor and "sklearn" not in flavors:
        raise NotAdmitted("the version has no flavor python_function, by which MLflow loads models", do=_NO_PYFUNC)
    assumed = {"mlflow": meta.get("mlflow_version")}
    if flavor.get("python_model"):
        assumed["cloudpickle"] = flavor.get("cloudpickle_version")
    return read_requirements(folder, {name: str(version or "") for name, version in assumed.items()})


def name_of(requirement: str) -> str:
    """The package that a requirement names, in its canonical form."""
    return canonicalize_name(re.split(r"[\[=<>!~]", requirement)[0])


def read_requirements(folder: Path, assumed: Mapping[str, str]) -> tuple[str, ...]:
    """The requirements of the MLflow model in `folder`, sorted.

    `assumed` are packages that are needed to load the model, with their versions; those that are missing are added.

    Raises:
        NotAdmitted: there is no such file, or it has anything other than names with versions.
    """
    file = folder / FILE
    if not file.is_file():
        raise NotAdmitted(f"the Python model has no {FILE}, so its requirements are unknown", do=_DO)
    try:
        text = read_regular(file, _MAX_BYTES).decode()
    except ValueError as error:
        raise NotAdmitted(f"{FILE} can't be read: {error}", do=_DO) from error
    lines = [line for raw in text.splitlines() if (line := re.sub(r"(^|\s)#.*$", "", raw).strip())]
    if len(lines) > MOST:
        raise NotAdmitted(f"{FILE} has {len(lines)} requirements, the limit is {MOST}", do=_DO)
    asked = {requirement for line in lines if (requirement := _read(line))}
    named = {name_of(requirement) for requirement in asked}
    missing = [
        _read(f"{name}=={version}" if version else name) for name, version in assumed.items() if name not in named
    ]
    return tuple(sorted({*asked, *missing}))


def python_of(folder: Path, meta: Mapping[str, Any]) -> str:
    """The version of Python that a model was logged with; empty if nothing says so.

    Raises:
        NotAdmitted: the file that says so can't be read.
    """
    flavor = (meta.get("flavors") or {}).get(PYTHON)
    if flavor or not (file := folder / _ENVIRONMENT).is_file():
        return str((flavor or {}).get("python_version") or "")
    try:
        told = yaml.safe_load(read_regular(file, _MAX_BYTES))
    except (ValueError, yaml.YAMLError) as error:
        raise NotAdmitted(
            f"{_ENVIRONMENT} can't be read: {str(error)[:200]}",
            do="Log the model again with `log_model(...)`, and leave the file as it is.",
        ) from error
    return str(told.get("python") or "") if isinstance(told, dict) else ""


def check_python(version: str) -> None:
    """Checks that a model logged with this version of Python can run here: pickled code fits one version.

    Raises:
        NotAdmitted: the model can't run here.
    """
    here = platform.python_version()
    if version and version.split(".")[:2] != here.split(".")[:2]:
        raise NotAdmitted(
            f"the model was logged with Python {version}, and Python models run on {here} here",
            do=f"Log it with Python {'.'.join(here.split('.')[:2])}, or run Shiplift on the model's version.",
        )


def _read(line: str) -> str:
    """One requirement in its canonical form; empty if its marker is for other machines."""
    if line.startswith("-") or line.endswith("\\"):
        raise NotAdmitted(f"{FILE} has the option {line[:100]!r}: only names with versions are allowed", do=_DO)
    if "://" in line or line.startswith(("/", ".", "~")) or re.match(r"(git|hg|svn|bzr)\+", line):
        raise NotAdmitted(f"{FILE} names a URL or a path: {line[:100]!r}", do=_DO)
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise NotAdmitted(f"{FILE} has a line that is not a requirement: {line[:100]!r} ({reason})", do=_DO) from error
    if requirement.url:
        raise NotAdmitted(f"{FILE} names a URL or a path: {line[:100]!r}", do=_DO)
    if requirement.marker and not requirement.marker.evaluate():
        return ""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    canonical = f"{requirement.name}{extras}{','.join(sorted(map(str, requirement.specifier)))}"
    try:
        return _CANONICAL.validate_python(canonical)
    except ValidationError as error:
        raise NotAdmitted(f"{FILE} has a requirement that is not allowed: {line[:100]!r}", do=_DO) from error
