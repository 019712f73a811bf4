"""What benchmarks on a stack of their own do to production."""

from pathlib import Path
from typing import Any

from shiplift.pipelines.engines.local import stack
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.serving.member_models import drop_models
from shiplift.runtime.serving.triton.client import TritonClient


def mlflow_client(running: stack.Stack) -> Any:
    """A client of the stack's registry."""
    import mlflow

    return mlflow.MlflowClient(running.registry_uri)


def remove_model(home: Path, running: stack.Stack, model: str) -> None:
    """Forgets a model: first in the registry, from which the dispatcher would put it back."""
    import mlflow

    name, production = serving_name(model), home / "production"
    try:
        mlflow_client(running).delete_registered_model(model)
    except mlflow.exceptions.MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
    (production / "served" / f"{name}.json").unlink(missing_ok=True)
    with TritonClient(f"{stack.HOST}:{running.grpc_port}") as client:
        drop_models(client, production / "models", [name])
