"""What it takes to serve a model as it was logged, by the library that wrote it, where no graph is right.

A model that is data alone is served so without a setting: its files hold no code, and the packages that it names are
libraries that are known here. Pickles, and packages that only its author knows, are the author's code.
"""

from dataclasses import dataclass
from pathlib import Path

from shiplift.runtime.admission.allowed import Pickle
from shiplift.runtime.admission.scan import pickled
from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.model.contracts import metadata
from shiplift.runtime.model.python.requirements import check_python, name_of, requirements_of
from shiplift.runtime.records.model import PYTHON, Obstacle

# What MLflow names when it logs the flavors that may fall back, and what these load their data with.
KNOWN_LIBRARIES = frozenset(
    {
        "catboost",
        "cloudpickle",
        "defusedxml",
        "h5py",
        "joblib",
        "keras",
        "lightgbm",
        "matplotlib",
        "mlflow",
        "mlflow-skinny",
        "mlflow-tracing",
        "numpy",
        "packaging",
        "pandas",
        "pillow",
        "protobuf",
        "psutil",
        "pyarrow",
        "scikit-learn",
        "scipy",
        "skops",
        "tensorflow",
        "tensorflow-cpu",
        "threadpoolctl",
        "torch",
        "torchvision",
        "tqdm",
        "xgboost",
        "xgboost-cpu",
    }
)


@dataclass(frozen=True, kw_only=True)
class OwnLibrary:
    """The packages of a model's own library, the author's code that it would run, and why it can't serve the model."""

    requirements: tuple[str, ...] = ()
    own_code: str = ""
    obstacle: Obstacle | None = None


def of_library(folder: Path, *, pickle: Pickle, unpacked_mb: int) -> OwnLibrary:
    """Reads an MLflow model in `folder` that a scan has accepted, with `pickle` as the spec says."""
    meta = metadata(folder)
    try:
        requirements = requirements_of(folder, meta)
        file = pickled(folder, unpacked_mb=unpacked_mb) if pickle == "sandbox" else ""
        if file:
            check_python(str(meta["flavors"][PYTHON].get("python_version") or ""))
    except NotAdmitted as error:
        return OwnLibrary(obstacle=Obstacle(what=error.what, do=error.do))
    unknown = [name_of(each) for each in requirements if name_of(each) not in KNOWN_LIBRARIES]
    code = f"the pickle {file}" if file else f"the package {unknown[0]}, which is not known here" if unknown else ""
    return OwnLibrary(requirements=requirements, own_code=code)
