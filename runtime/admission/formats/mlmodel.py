"""The MLmodel file, judged by what it would make MLflow import or open."""

from collections.abc import Iterator
from typing import Any

from shiplift.runtime.admission.formats.skops_files import type_problem
from shiplift.runtime.base.files import Irregular, check_path
from shiplift.runtime.model.contracts import FLAVORS

_LOADERS = {f"mlflow.{flavor}" for flavor in FLAVORS} | {"mlflow.pyfunc.model"}  # used only for Python models
_PICKLE_MODULES = {"mlflow.pytorch.pickle_module", "pickle", "cloudpickle"}
_PATHS = ("data", "model_data", "pickled_model", "saved_model_dir", "model_path", "model_binary")


def problems(meta: dict[str, Any], *, python: bool = False) -> Iterator[str]:
    """What the file would make MLflow import or open, but must not. A Python model (`python`) may import its code."""
    flavors = meta.get("flavors")
    for name, flavor in (flavors if isinstance(flavors, dict) else {}).items():
        if isinstance(flavor, dict):
            if not python:
                yield from _code(str(name), flavor)
                yield from _types(flavor)
            yield from _paths(str(name), flavor)


def _code(name: str, flavor: dict[str, Any]) -> Iterator[str]:
    for key in ("code", "code_paths", "model_code_path"):
        if flavor.get(key):
            yield f"its flavor {name} has `{key}: {str(flavor[key])[:60]}`, from which MLflow imports modules"
    loader = flavor.get("loader_module")
    if loader is not None and loader not in _LOADERS:
        yield f"its flavor {name} has `loader_module: {str(loader)[:60]}`, which MLflow would import"
    module = flavor.get("pickle_module_name")
    if module is not None and module not in _PICKLE_MODULES:
        yield f"its flavor {name} has `pickle_module_name: {str(module)[:60]}`, which MLflow would import"


def _types(flavor: dict[str, Any]) -> Iterator[str]:
    names = flavor.get("skops_trusted_types") or []
    for name in [flavor.get("model_class"), *(names if isinstance(names, list) else [names])]:
        if name is not None and (problem := type_problem(str(name)[:200])):
            yield problem


def _paths(name: str, flavor: dict[str, Any]) -> Iterator[str]:
    for key in _PATHS:
        value = flavor.get(key)
        if value is None:
            continue
        try:
            check_path(value if isinstance(value, str) else "")
        except Irregular:
            yield f"its flavor {name} has `{key}: {str(value)[:60]!r}`, which is not a path in the model"
