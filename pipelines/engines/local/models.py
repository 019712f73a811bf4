"""Where each model in production on this machine answers."""

from pathlib import Path
from urllib.parse import quote

from shiplift.pipelines.engines.local import stack
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.machine.served import every_served


def every_model(home: Path, running: stack.Stack) -> list[ServedModel]:
    """Every model that production serves, according to the packages that were promoted."""
    packages = (each.package for each in every_served(home))
    return [
        ServedModel(
            model=package.model,
            name=serving_name(package.model),
            version=package.version,
            grpc=f"{stack.HOST}:{running.grpc_port}",
            http=f"http://{stack.HOST}:{running.http_port}",
            signature=package.signature,
            scoring=package.scoring,
            invocations=invocations_of(running, package.model),
        )
        for package in packages
    ]


def invocations_of(running: stack.Stack, model: str) -> str:
    """Where a model answers MLflow's own clients."""
    return f"http://{stack.HOST}:{running.scoring_port}/models/{quote(model, safe='')}/invocations"
