"""What MLflow loads for the target `shiplift`: its client, `run_local` and `target_help`.

A deployment is a registered model, and what it serves is its champion. To create or update one is to release a version
through the same gates as any other.
"""

from contextlib import suppress
from typing import Any

from mlflow.deployments import BaseDeploymentClient, PredictionsResponse
from mlflow.exceptions import MlflowException
from mlflow.models import get_model_info
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS

from shiplift.pipelines.deployments.configuration import DeploymentConfiguration, read_configuration, read_retirement
from shiplift.pipelines.deployments.errors import refused, translated
from shiplift.pipelines.deployments.releasing import released
from shiplift.pipelines.deployments.requests import body_of
from shiplift.pipelines.deployments.target import HELP, engine_of, start_stack
from shiplift.pipelines.deployments.versions import version_for
from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.scoring.requests import JSON
from shiplift.runtime.serving.scoring.scorer import answer_once

_FLAVOR, _EXPLAINER = "python_function", "shap"  # what production answers is what pyfunc answers


class ShipliftDeploymentClient(BaseDeploymentClient):  # type: ignore[misc] # mypy does not follow mlflow
    """Deployments on this machine or a cluster: `shiplift`, `shiplift:/local`, `shiplift:/argo[/NAMESPACE]`."""

    def __init__(self, target_uri: str) -> None:
        super().__init__(target_uri)
        with translated():
            self._engine = engine_of(target_uri)

    def create_deployment(
        self,
        name: str,
        model_uri: str,
        flavor: str | None = None,
        config: dict[str, Any] | None = None,
        endpoint: str | None = None,
    ) -> dict[str, Any]:
        """Releases a model as the registered model `name`, and waits until it serves; `config` is as `HELP` says.

        Raises:
            MlflowException: another version serves already, or the release was refused; the message says why.
        """
        _check(flavor, endpoint)
        with translated():
            configuration, served = read_configuration(config), self._served(name)
            version = version_for(model_uri, name)
            if served and served.version != version:
                raise MlflowException(
                    f"the deployment {name!r} exists, and serves version {served.version}: update it",
                    RESOURCE_ALREADY_EXISTS,
                )
            return self._released(name, version, configuration)

    def update_deployment(
        self,
        name: str,
        model_uri: str | None = None,
        flavor: str | None = None,
        config: dict[str, Any] | None = None,
        endpoint: str | None = None,
    ) -> dict[str, Any]:
        """Releases another version, or with another `config` the one that serves, and waits until it serves.

        Raises:
            MlflowException: there is no such deployment, or the release was refused; what served before still does.
        """
        _check(flavor, endpoint)
        with translated():
            configuration, served = read_configuration(config), self._engine.discover(name)
            version = version_for(model_uri, name) if model_uri else served.version
            again = configuration.again or not model_uri
            return self._released(name, version, configuration.model_copy(update={"again": again}))

    def delete_deployment(self, name: str, config: dict[str, Any] | None = None, endpoint: str | None = None) -> None:
        """Retires the model, as `shiplift retire` does; does nothing if it was never in production.

        `config` may have `reason`, and `force=true` for a model that is in use.

        Raises:
            MlflowException: the model has traffic or dependents, or a release of it is under way.
        """
        _check(None, endpoint)
        with translated():
            order = read_retirement(config)
            with suppress(NotFound):
                self._engine.retire(name, 0, reason=order.reason, force=order.force)

    def list_deployments(self, endpoint: str | None = None) -> list[dict[str, Any]]:
        """Every model in production."""
        _check(None, endpoint)
        with translated():
            return [_described(each) for each in self._engine.discover_all()]

    def get_deployment(self, name: str, endpoint: str | None = None) -> dict[str, Any]:
        """Where a model answers, which version serves, and what it takes.

        Raises:
            MlflowException: production does not serve it.
        """
        _check(None, endpoint)
        with translated():
            return _described(self._engine.discover(name))

    def predict(
        self, deployment_name: str | None = None, inputs: Any = None, endpoint: str | None = None
    ) -> PredictionsResponse:
        """What production answers to a data frame, an array, a list, arrays by name, or the body of a request.

        Raises:
            MlflowException: production does not serve the model, or refuses the request.
        """
        _check(None, endpoint)
        with translated():
            served = self._engine.discover(_named(deployment_name))
            return PredictionsResponse.from_json(answer_once(served, JSON, body_of(inputs)).decode())

    def explain(self, deployment_name: str | None = None, df: Any = None, endpoint: str | None = None) -> Any:
        """The explanations of a model that was logged as an explainer (`mlflow.shap.log_explainer`).

        Raises:
            MlflowException: the model has none.
        """
        served = self.get_deployment(_named(deployment_name), endpoint)
        with translated():
            flavors = get_model_info(served["model_uri"]).flavors
        if _EXPLAINER not in flavors:
            raise refused(
                f"{served['name']!r} was logged as {', '.join(sorted(flavors))}, which explain nothing: log its "
                "explainer (`mlflow.shap.log_explainer`), deploy that, and ask it"
            )
        return self.predict(served["name"], df).get_predictions()

    def _served(self, name: str) -> ServedModel | None:
        try:
            return self._engine.discover(name)
        except NotFound:
            return None

    def _released(self, name: str, version: int, configuration: DeploymentConfiguration) -> dict[str, Any]:
        released(self._engine, name, version, configuration)
        if configuration.wait:
            return _described(self._engine.discover(name))
        return {"name": name, "flavor": _FLAVOR, "version": version}


def run_local(
    name: str, model_uri: str, flavor: str | None = None, config: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Starts the stack of this machine, if it does not run yet, and creates the deployment there."""
    with translated():
        start_stack()
    return ShipliftDeploymentClient("shiplift:/local").create_deployment(name, model_uri, flavor, config)


def target_help() -> str:
    """The target's settings, for `mlflow deployments help -t shiplift`."""
    return HELP


def _check(flavor: str | None, endpoint: str | None) -> None:
    if flavor:
        raise refused(f"flavor {flavor!r}: Shiplift proves by itself which form answers as pyfunc does; leave it out")
    if endpoint:
        raise refused(f"endpoint {endpoint!r}: each deployment has an address of its own; leave it out")


def _named(name: str | None) -> str:
    if not name:
        raise refused("no deployment is named: a deployment is a registered model")
    return name


def _described(served: ServedModel) -> dict[str, Any]:
    return {
        "name": served.model,
        "flavor": _FLAVOR,
        "version": served.version,
        "model_uri": f"models:/{served.model}/{served.version}",
        "status": "READY",
        "http": f"{served.http}{served.path}",
        "grpc": served.grpc,
        "host": served.host,
        **({"invocations": served.invocations} if served.invocations else {}),
        "signature": served.signature.model_dump(mode="json"),
    }
