"""What it takes to serve a model as it was logged, by the library that wrote it, where no graph is right.

A model whose files hold no code is data alone. It is served so without a setting, and gets no package but those that
its library needs: what else its author's environment had stays out, whatever `requirements.txt` says. Pickles are the
author's code, and get all packages that it names.
"""

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shiplift.runtime.admission.allowed import Pickle
from shiplift.runtime.admission.scan import pickled
from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.model.contracts import metadata
from shiplift.runtime.model.python.requirements import check_python, name_of, python_of, requirements_of
from shiplift.runtime.records.model import Flavor, Obstacle

_COMMON = frozenset({"cloudpickle", "mlflow", "mlflow-skinny", "mlflow-tracing", "numpy", "pandas", "pyarrow", "scipy"})
_SCIKIT_LEARN = frozenset({"joblib", "scikit-learn", "skops", "threadpoolctl"})
_KERAS = frozenset({"h5py", "keras", "tensorflow", "tensorflow-cpu", "torch"})
_BOOSTERS: Mapping[str, frozenset[str]] = {
    "lightgbm": frozenset({"lightgbm"}),
    "xgboost": frozenset({"xgboost", "xgboost-cpu"}),
    "catboost": frozenset({"catboost"}),
}
_LIBRARIES: Mapping[Flavor, frozenset[str]] = {
    "pytorch": frozenset({"torch", "torchvision"}),
    "sklearn": _SCIKIT_LEARN,
    "lightgbm": _SCIKIT_LEARN | _BOOSTERS["lightgbm"],
    "xgboost": _SCIKIT_LEARN | _BOOSTERS["xgboost"],
    "catboost": _SCIKIT_LEARN | _BOOSTERS["catboost"],
    "tensorflow": _KERAS,
    "keras": _KERAS,
}


@dataclass(frozen=True, kw_only=True)
class OwnLibrary:
    """The packages of a model's own library, the author's code that it would run, and why it can't serve the model."""

    requirements: tuple[str, ...] = ()
    own_code: str = ""
    obstacle: Obstacle | None = None


def of_library(folder: Path, flavor: Flavor, *, pickle: Pickle, unpacked_mb: int) -> OwnLibrary:
    """Reads an MLflow model in `folder` that a scan has accepted, with `pickle` as the spec says."""
    meta = metadata(folder)
    try:
        named = requirements_of(folder, meta)
        file = pickled(folder, unpacked_mb=unpacked_mb) if pickle == "sandbox" else ""
        if file:
            check_python(python_of(folder, meta))
            return OwnLibrary(requirements=named, own_code=f"the pickle {file}")
    except NotAdmitted as error:
        return OwnLibrary(obstacle=Obstacle(what=error.what, do=error.do))
    known = _COMMON | _LIBRARIES[flavor] | frozenset(_inside(folder))
    return OwnLibrary(requirements=tuple(each for each in named if name_of(each) in known))


def _inside(folder: Path) -> Iterator[str]:
    """The packages of boosters that are parts of a model of scikit-learn."""
    for file in folder.rglob("*.skops"):
        with zipfile.ZipFile(file) as archive:
            schema = archive.read("schema.json")  # the scan has read it within its limits
        for module, packages in _BOOSTERS.items():
            if f'"{module}.'.encode() in schema:
                yield from packages
