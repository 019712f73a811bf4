"""The version that a model URI means for a deployment; other models become its next version."""

import re

import mlflow
from mlflow import MlflowClient

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.store.registry.terms import check_name

_VERSION = re.compile(r"models:/+(?P<model>[^/@]+)(/(?P<version>\d+|latest)|@(?P<alias>[^/@]+))")


def version_for(model_uri: str, name: str) -> int:
    """The version of the registered model `name` with what the URI names.

    Raises:
        UsageError: the URI names no model.
        MlflowException: the registry has no such model, or does not answer.
    """
    check_name(name)
    if not re.match(r"(models|runs):/", model_uri):
        raise UsageError(
            f"{model_uri!r} is not a model in a registry", do="Write models:/MODEL/VERSION or runs:/RUN/PATH."
        )
    found = _VERSION.fullmatch(model_uri)
    if found is None:
        return int(mlflow.register_model(model_uri, name).version)
    version = _version(found)
    if found["model"] == name:
        return version
    return int(MlflowClient().copy_model_version(f"models:/{found['model']}/{version}", name).version)


def _version(found: re.Match[str]) -> int:
    """The number of the version that a URI names."""
    model, client = found["model"], MlflowClient()
    if found["alias"]:
        return int(client.get_model_version_by_alias(model, found["alias"]).version)
    if found["version"] == "latest":
        return max(int(each.version) for each in client.search_model_versions(f"name='{model}'"))
    return int(found["version"])
