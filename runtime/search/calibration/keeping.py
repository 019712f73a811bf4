"""Where a machine's calibration is kept: in the tuning cache, under what it is valid for."""

import contextlib
import hashlib
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import ValidationError

from shiplift.runtime.host.processor import cpu_flags, cpu_name, cpu_share
from shiplift.runtime.records.calibration import Calibration
from shiplift.runtime.records.site import Site
from shiplift.runtime.store.tuning_cache import tuning_cache

_LIBRARIES = ("onnxruntime", "openvino", "treelite")
_FILE = "calibration.json"


def this_hardware() -> list[object]:
    """This machine's processor, as JSON: its features, the share of its cores that this process has, its name."""
    return [sorted(cpu_flags()), cpu_share(), cpu_name()]


def versions() -> dict[str, str]:
    """The versions of the libraries that compute, without those that are not installed."""
    found = {}
    for name in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def calibration_key(hardware: list[object]) -> str:
    """The key of the calibration of this hardware with the libraries that are installed."""
    return hashlib.sha256(json.dumps([hardware, versions()]).encode()).hexdigest()[:24]


def known(site: Site, hardware: list[object]) -> Calibration | None:
    """The calibration of this hardware, or None: it was never calibrated, or with other versions of the libraries."""
    with tuning_cache(site, _name(hardware), _folder(site, hardware)) as folder:
        try:
            return Calibration.model_validate_json((folder / _FILE).read_text())
        except (OSError, ValidationError):  # there is none, or it is of another version of Shiplift
            return None


def keep(site: Site, hardware: list[object], calibration: Calibration) -> None:
    """Keeps the calibration of this hardware, instead of an earlier one."""
    with tuning_cache(site, _name(hardware), _folder(site, hardware)) as folder:
        (folder / _FILE).write_text(calibration.model_dump_json())


def _name(hardware: list[object]) -> str:
    return f"calibration {calibration_key(hardware)}"


def _folder(site: Site, hardware: list[object]) -> Path:
    return Path(site.home) / "calibration" / calibration_key(hardware)
