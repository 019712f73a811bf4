"""MLflow's deployment plugin, with an engine that notes what it is asked."""

import json
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mlflow.deployments.plugin_manager import DeploymentPlugins
from mlflow.exceptions import MlflowException

from shiplift.pipelines.deployments import plugin, target, versions
from shiplift.pipelines.deployments.requests import body_of
from shiplift.pipelines.engines.answers import Accepted
from shiplift.runtime.base.errors import DataInvalid, NotFound, Refused, StillInUse
from shiplift.runtime.serving.discovery import ServedModel
from tests.unit.runtime.serving.scoring.schemas import of_columns


class Engine:
    """Promotes whatever is ordered, unless it is told to refuse."""

    def __init__(self) -> None:
        self.served: dict[str, ServedModel] = {}
        self.orders: list[tuple[str, str, bool, bool]] = []
        self.outcome = "promoted"
        self.reasons: list[str] = []

    def retire(self, model: str, _version: int, *, reason: str, force: bool) -> None:
        self.discover(model)
        if not force:
            raise StillInUse("clients sent 2 requests", do="Move them.")
        self.reasons.append(reason)
        del self.served[model]

    def discover(self, model: str) -> ServedModel:
        if model not in self.served:
            raise NotFound(f"production does not serve {model!r}", do="See `shiplift status`.")
        return self.served[model]

    def discover_all(self) -> list[ServedModel]:
        return list(self.served.values())

    def order(self, name: str, spec: str, *, again: bool, allow_older: bool) -> Accepted:
        self.orders.append((name, spec, again, allow_older))
        return Accepted(name=name, created=True, queued=True)

    def events(self, name: str) -> Iterator[None]:
        yield None
        model, version = name.split("/")
        if self.outcome == "promoted":
            self.served[model] = of_columns({"a": "double"}).model_copy(
                update={
                    "model": model,
                    "version": int(version),
                    "http": "http://here",
                    "invocations": f"http://m/{model}",
                }
            )

    def result(self, name: str) -> Any:
        return SimpleNamespace(outcome=self.outcome, exit_code=Refused.exit_code, reason="the p99 is 9 ms, the limit 5")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()
    monkeypatch.setattr(plugin, "engine_of", lambda _: engine)
    return engine


@pytest.fixture
def client(engine: Engine) -> Any:
    return plugin.ShipliftDeploymentClient("shiplift")


def test_mlflow_finds_the_plugin_by_the_package_s_entry_point() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    ((name, module),) = project["entry-points"]["mlflow.deployments"].items()
    plugins = DeploymentPlugins()
    plugins.registry[name] = EntryPoint(name, module, "mlflow.deployments")
    assert plugins["shiplift:/local"] is plugin  # it checks that nothing is missing
    for told in ("spec=FILE", "MLFLOW_TRACKING_URI", "shiplift:/argo"):
        assert told in plugin.target_help()


def test_a_deployment_is_created_updated_and_listed(client: Any, engine: Engine, tmp_path: Path) -> None:
    created = client.create_deployment("m", "models:/m/1")
    assert (created["name"], created["version"], created["model_uri"]) == ("m", 1, "models:/m/1")
    assert client.create_deployment("m", "models:/m/1") == created  # its release is there already
    spec = tmp_path / "shiplift.yaml"
    spec.write_text("slo: {}")
    updated = client.update_deployment("m", "models:/m/2", config={"spec": str(spec), "allow_older": "true"})
    assert updated["version"] == 2
    client.update_deployment("m", config={"again": "false"})
    assert engine.orders[2:] == [("m/2", "slo: {}", False, True), ("m/2", "", True, False)]
    assert [each["name"] for each in client.list_deployments()] == ["m"]
    assert client.get_deployment("m")["invocations"] == "http://m/m"


def test_without_waiting_the_release_goes_on_by_itself(client: Any, engine: Engine) -> None:
    created = client.create_deployment("m", "models:/m/1", config={"wait": "false"})
    assert created == {"name": "m", "flavor": "python_function", "version": 1}  # MLflow's command line shows the flavor
    assert engine.served == {}


def test_a_refused_release_says_why(client: Any, engine: Engine) -> None:
    engine.outcome = "refused"
    with pytest.raises(MlflowException, match=r"refused.*the p99 is 9 ms, the limit 5.*shiplift report m/1"):
        client.create_deployment("m", "models:/m/1")


def test_another_version_is_no_new_deployment(client: Any) -> None:
    client.create_deployment("m", "models:/m/1")
    with pytest.raises(MlflowException, match="exists, and serves version 1: update it") as refused:
        client.create_deployment("m", "models:/m/2")
    assert refused.value.error_code == "RESOURCE_ALREADY_EXISTS"


def test_what_production_does_not_serve_is_not_found(client: Any) -> None:
    asked: list[Callable[[], Any]] = [
        lambda: client.get_deployment("m"),
        lambda: client.update_deployment("m"),
        lambda: client.predict("m", [1]),
        lambda: client.explain("m", pd.DataFrame({"a": [1]})),
    ]
    for ask in asked:
        with pytest.raises(MlflowException, match="does not serve 'm'") as refused:
            ask()
        assert refused.value.error_code == "RESOURCE_DOES_NOT_EXIST"


def test_a_deletion_retires_the_model_unless_it_is_in_use(client: Any, engine: Engine) -> None:
    client.delete_deployment("m")  # nothing is there
    client.create_deployment("m", "models:/m/1")
    with pytest.raises(MlflowException, match="2 requests"):
        client.delete_deployment("m")
    client.delete_deployment("m", config={"force": "true", "reason": "replaced"})
    assert (engine.served, engine.reasons) == ({}, ["replaced"])
    with pytest.raises(MlflowException, match=r"replicas: Extra inputs.*reason, force"):
        client.delete_deployment("m", config={"replicas": 3})


def test_wrong_arguments_are_named(client: Any) -> None:
    for wrong, said in (
        ({"flavor": "sklearn"}, "flavor 'sklearn'"),
        ({"endpoint": "e"}, "endpoint 'e'"),
        ({"config": {"replicas": 3}}, "replicas: Extra inputs.*spec, again, allow_older, wait"),
        ({"config": {"again": "perhaps"}}, "again"),
        ({"config": {"spec": "/nowhere.yaml"}}, "spec=/nowhere.yaml"),
        ({"model_uri": "s3://bucket/model"}, "is not a model in a registry"),
    ):
        with pytest.raises(MlflowException, match=said):
            client.create_deployment(**{"name": "m", "model_uri": "models:/m/1"} | wrong)
    with pytest.raises(MlflowException, match="no deployment is named"):
        client.predict(inputs=[1])


def test_a_model_without_explanations_says_so(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create_deployment("m", "models:/m/1")
    monkeypatch.setattr(plugin, "get_model_info", lambda uri: SimpleNamespace(flavors={"sklearn": {}}))
    with pytest.raises(MlflowException, match=r"'m' was logged as sklearn.*log_explainer"):
        client.explain("m", pd.DataFrame({"a": [1.0]}))
    monkeypatch.setattr(plugin, "get_model_info", lambda uri: SimpleNamespace(flavors={"shap": {}}))
    monkeypatch.setattr(plugin, "answer_once", lambda served, kind, body: b'{"predictions": [[0.5]]}')
    assert client.explain("m", pd.DataFrame({"a": [1.0]})).to_numpy().tolist() == [[0.5]]


def test_inputs_become_requests_of_mlflow_s_protocol() -> None:
    import scipy.sparse

    frame = pd.DataFrame({"a": [1.0, 2.0]})
    split = {"index": [0, 1], "columns": ["a"], "data": [[1.0], [2.0]]}
    for inputs, body in (
        (frame, {"dataframe_split": split}),
        (frame["a"], {"dataframe_split": split}),
        (np.ones((1, 2)), {"inputs": [[1.0, 1.0]]}),
        (scipy.sparse.csr_matrix(np.eye(2)), {"inputs": [[1.0, 0.0], [0.0, 1.0]]}),
        ({"a": np.arange(2)}, {"inputs": {"a": [0, 1]}}),
        ({"instances": [1], "params": {"k": 1}}, {"instances": [1], "params": {"k": 1}}),
        (["a"], {"inputs": ["a"]}),
        (pd.DataFrame({"day": pd.to_datetime(["2024-02-29"])})["day"].tolist(), {"inputs": ["2024-02-29T00:00:00"]}),
    ):
        assert json.loads(body_of(inputs)) == body
    for wrong in (None, object()):
        with pytest.raises(DataInvalid, match="inputs"):
            body_of(wrong)


def test_a_target_names_an_engine_and_a_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Any] = []
    monkeypatch.setattr(target, "choose", chosen.append)
    for uri in ("shiplift", "shiplift:/local", "shiplift:/argo", "shiplift:/argo/team-a"):
        target.engine_of(uri)
    assert [(each.engine, each.namespace) for each in chosen] == [
        ("local", "shiplift"),
        ("local", "shiplift"),
        ("argo", "shiplift"),
        ("argo", "team-a"),
    ]
    with pytest.raises(MlflowException, match="names no engine"):
        plugin.ShipliftDeploymentClient("shiplift:/moon")


def test_what_is_no_version_of_the_model_becomes_its_next(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = SimpleNamespace(
        copy_model_version=lambda uri, name: SimpleNamespace(version=f"{len(uri)}"),
        get_model_version_by_alias=lambda model, alias: SimpleNamespace(version="7"),
        search_model_versions=lambda text: [SimpleNamespace(version="2"), SimpleNamespace(version="10")],
    )
    monkeypatch.setattr(versions, "MlflowClient", lambda: registry)
    monkeypatch.setattr("mlflow.register_model", lambda uri, name: SimpleNamespace(version="5"))
    found = {uri: versions.version_for(uri, "m") for uri in ("models:/m/3", "models:/m@best", "models:/m/latest")}
    assert list(found.values()) == [3, 7, 10]
    assert versions.version_for("models:/other/1", "m") == len("models:/other/1")
    assert versions.version_for("runs:/abc/model", "m") == versions.version_for("models:/m-123", "m") == 5
