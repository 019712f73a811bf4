"""How a case's model is logged: as its library documents it, with the packages that a model of its flavor needs."""

import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.proof.case import Case, Logged

_TABLES = ("numpy", "pandas", "scikit-learn")
_PACKAGES = {  # as distributed for CPUs; PyTorch's on the index would bring CUDA, which no case here needs
    "sklearn": (*_TABLES, "skops", "scipy"),
    "lightgbm": (*_TABLES, "lightgbm"),
    "xgboost": (*_TABLES, "xgboost-cpu"),
    "catboost": (*_TABLES, "catboost"),
}


def options_of(case: Case, logged: Logged) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What MLflow's functions that log a model take: the model, unless it is code, and the options."""
    model = () if logged.model is None else (logged.model,)
    pins = [f"{name}=={version(name)}" for name in _PACKAGES.get(case.flavor, ())]
    return model, {"pip_requirements": pins, **logged.options}


def save(case: Case, logged: Logged, folder: Path) -> None:
    """Writes a case's model to a folder, as MLflow does."""
    import mlflow

    model, options = options_of(case, logged)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        getattr(mlflow, case.flavor).save_model(*model, path=str(folder), **options)
