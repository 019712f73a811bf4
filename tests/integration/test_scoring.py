"""MLflow's own clients against production: they get what `mlflow models serve` answers from the same version."""

import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pandas as pd
import pytest
from click.testing import CliRunner
from mlflow.deployments import get_deploy_client
from mlflow.deployments.cli import commands as deployments_cli
from mlflow.deployments.interface import plugin_store
from mlflow.exceptions import MlflowException
from mlflow.models import infer_signature
from mlflow.pyfunc import scoring_server
from mlflow.pyfunc.scoring_server.client import ScoringServerClient
from onnx import TensorProto, helper

import shiplift
from shiplift.pipelines.deployments import plugin
from shiplift.pipelines.engines.local import status
from shiplift.runtime.base.errors import DataInvalid, NotFound
from shiplift.runtime.serving.scoring.app import MAX_BODY_BYTES
from tests.integration.conftest import FAST, ONE_FORM, Lab
from tests.integration.test_formats import columns

PYTHON = f"{FAST}\nadmission: {{python: sandbox}}"


@dataclass(frozen=True)
class Door:
    """A promoted model: its address for MLflow's clients, and what answers behind `mlflow models serve`."""

    url: str
    pyfunc: Any

    @property
    def client(self) -> ScoringServerClient:
        """MLflow's client, which knows a host and a port."""
        host, port = self.url.removeprefix("http://").split(":", 1)
        return ScoringServerClient(host, port)

    def post(self, body: Any, kind: str = "application/json") -> httpx.Response:
        content = body if isinstance(body, bytes | str) else json.dumps(body)
        return httpx.post(f"{self.url}/invocations", content=content, headers={"Content-Type": kind}, timeout=60)

    def mlflow(self, body: Any, kind: str = "application/json") -> tuple[int, Any]:
        """The status and the answer of MLflow's own server code."""
        content = body if isinstance(body, bytes | str) else json.dumps(body)
        try:
            schema = self.pyfunc.metadata.get_input_schema()
            answer = scoring_server.invocations(content, kind, self.pyfunc, schema)
        except MlflowException as error:
            return error.get_http_status_code(), json.loads(error.serialize_as_json())
        return answer.status, json.loads(answer.response) if answer.mimetype == "application/json" else answer.response


def promoted(lab: Lab, name: str, log: Callable[..., Any], spec: str = FAST) -> Door:
    report = lab.wait(name, lab.log(name, log, spec=spec), seconds=900)
    assert report.outcome == "promoted", report.reason
    pyfunc = lab.mlflow.pyfunc.load_model(f"models:/{name}/1")
    return Door(f"{status.endpoints(lab.running).scoring}/models/{name}", pyfunc)


@pytest.fixture(scope="module")
def frames(lab: Lab) -> Door:
    """A classifier of a data frame with a column of texts; pyfunc answers an array of labels."""
    return promoted(lab, "scored-frames", columns(lab), ONE_FORM)


@pytest.fixture(scope="module")
def tensors(lab: Lab) -> Door:
    """A graph with two outputs; pyfunc answers a mapping, or a data frame to a data frame."""
    nodes = [helper.make_node("ReduceSum", ["x"], ["total"], keepdims=1), helper.make_node("Neg", ["x"], ["minus"])]
    nodes[0].input.append("axis")
    graph = helper.make_graph(
        nodes,
        "scored",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [
            helper.make_tensor_value_info("total", TensorProto.FLOAT, ["batch", 1]),
            helper.make_tensor_value_info("minus", TensorProto.FLOAT, ["batch", 3]),
        ],
        [helper.make_tensor("axis", TensorProto.INT64, [1], [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    signature = infer_signature({"x": x}, {"total": x.sum(axis=1, keepdims=True), "minus": -x})
    options = {"signature": signature, "input_example": {"x": x}}
    return promoted(lab, "scored-tensors", lambda **kwargs: lab.mlflow.onnx.log_model(model, **options, **kwargs))


FRAME = pd.DataFrame({"age": [23.0, 51.0, 79.0], "income": [2500.0, 3200.5, 2999.0], "city": ["Ulm", "Köln", "Berlin"]})
RECORDS = FRAME.to_dict(orient="records")
SPLIT = FRAME.to_dict(orient="split")


def requests_of_frames() -> Iterator[tuple[Any, str]]:
    """Right and wrong requests in every form, with their content types."""
    yield {"dataframe_split": SPLIT}, "application/json"
    yield {"dataframe_records": RECORDS}, "application/json; charset=utf-8"
    yield {"inputs": FRAME.to_dict(orient="list")}, "application/json"
    yield {"instances": RECORDS, "params": {"unknown": 1}}, "application/json"
    yield {"dataframe_records": [{**row, "extra": [1]} for row in RECORDS]}, "application/json"
    yield {"dataframe_records": [{**RECORDS[0], "age": "23"}]}, "application/json"
    yield FRAME.to_csv(index=False), "text/csv"
    yield {"dataframe_split": {**SPLIT, "columns": ["age", "income", "town"]}}, "application/json"
    yield {"dataframe_records": [{**RECORDS[0], "age": "old"}]}, "application/json"
    yield {"dataframe_records": [{**RECORDS[0], "city": "Atlantis"}]}, "application/json"
    yield {"dataframe_records": RECORDS, "inputs": RECORDS}, "application/json"
    yield "{", "application/json"
    yield b"\xff", "application/json"
    yield [1, 2], "application/json"
    yield "age\nold", "text/csv"
    yield "<a/>", "application/xml"
    yield {"dataframe_split": SPLIT}, "application/json; charset=latin-1"


def same(ours: Any, theirs: Any) -> bool:
    """Whether two answers are equal but for rounding."""
    if isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-5, abs_tol=1e-6) or (math.isnan(ours) and math.isnan(theirs))
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in theirs)
    return bool(ours == theirs and type(ours) is type(theirs))


def require_same(door: Door, body: Any, kind: str = "application/json") -> None:
    response, (code, answer) = door.post(body, kind), door.mlflow(body, kind)
    assert response.status_code == code, f"{body}: {response.text} instead of {answer}"
    if code == 200:
        assert same(response.json(), answer), f"{body}: {response.text} instead of {answer}"
    elif code != 415:
        assert response.json()["error_code"] == answer["error_code"], f"{body}: {response.text}, {answer}"


def test_a_data_frame_is_answered_or_refused_as_mlflow_does(frames: Door) -> None:
    for body, kind in requests_of_frames():
        require_same(frames, body, kind)


@pytest.mark.slow
def test_tensors_are_answered_or_refused_as_mlflow_does(tensors: Door) -> None:
    x = [[1, 2.5, -3], [4, 5, float("nan")]]
    for body in (
        {"inputs": {"x": x}},
        {"inputs": x},
        {"instances": [{"x": row} for row in x]},
        {"instances": x},
        {"inputs": {"x": [[1, 2]]}},
        {"inputs": {"y": x}},
        {"inputs": {"x": [[1, 2, "three"]]}},
        {"inputs": {"x": [[1, 2, 3], [4, 5]]}},
    ):
        require_same(tensors, body)


def test_mlflows_own_client_needs_nothing_but_another_address(frames: Door) -> None:
    client = frames.client
    client.wait_server_ready(timeout=10)
    assert client.get_version() == scoring_server.VERSION
    answer = client.invoke(FRAME).get_predictions()
    assert answer[0].tolist() == frames.pyfunc.predict(FRAME).tolist()


def test_a_program_gets_what_pyfunc_answers(frames: Door, lab: Lab) -> None:
    ours, theirs = shiplift.predict("scored-frames", FRAME, home=lab.home), frames.pyfunc.predict(FRAME)
    assert ours.tolist() == theirs.tolist()
    ended = shiplift.releases("scored-frames", home=lab.home)
    assert [(each.version, each.outcome) for each in ended] == [(1, "promoted")]
    with pytest.raises(DataInvalid, match="'income'"):
        shiplift.predict("scored-frames", FRAME[["age", "city"]], home=lab.home)
    with pytest.raises(NotFound, match="nobody"):
        shiplift.predict("nobody", FRAME, home=lab.home)


@pytest.mark.slow
def test_many_rows_are_answered_in_their_order(tensors: Door) -> None:
    x = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    answer = tensors.post({"inputs": {"x": x.tolist()}}).json()["predictions"]
    np.testing.assert_allclose(answer["minus"], -x, rtol=1e-6)


def test_a_wrong_request_says_what_is_wrong_and_leaves_its_neighbours_alone(frames: Door) -> None:
    wrong = {
        "'income'": {"dataframe_records": [{"age": 1.0, "city": "Ulm"}]},
        "'age' has 'old' in row 1": {"inputs": {"age": [1.0, "old"], "income": [1.0, 2.0], "city": ["Ulm", "Ulm"]}},
        "row 1 has 2 values": {"dataframe_split": {"columns": list(FRAME), "data": [[1, 2, "Ulm"], [1, 2]]}},
        "levels deep": f'{{"inputs": {"[" * 100_000}{"]" * 100_000}}}',
        str(MAX_BODY_BYTES): b'{"inputs": [' + b"1," * (MAX_BODY_BYTES // 2) + b"1]}",
    }
    good = {"dataframe_split": SPLIT}
    right = frames.post(good).json()

    def ask(about: str) -> tuple[httpx.Response, Any]:
        return frames.post(wrong[about]), frames.post(good).json()

    with ThreadPoolExecutor(4) as pool:
        for about, (response, beside) in zip(wrong, pool.map(ask, wrong), strict=True):
            assert 400 <= response.status_code < 500, response.text
            assert about in response.json()["message"]
            assert beside == right


def test_an_unknown_model_is_named_with_those_in_production(frames: Door) -> None:
    unknown = httpx.post(frames.url.replace("scored-frames", "nobody") + "/invocations", json={"inputs": [1]})
    assert unknown.status_code == 404
    assert "'nobody'" in unknown.json()["message"]
    assert "scored-frames" in unknown.json()["message"]


@pytest.fixture
def deployments(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow's client of this stack, whether the entry point is installed or not."""
    monkeypatch.setenv("SHIPLIFT_HOME", str(lab.home))
    monkeypatch.setitem(plugin_store.registry, "shiplift", plugin)
    return get_deploy_client("shiplift:/local")


def test_mlflow_s_deployments_are_the_models_in_production(frames: Door, deployments: Any) -> None:
    created = deployments.create_deployment("scored-frames", "models:/scored-frames/1")  # follows its release
    assert created == deployments.get_deployment("scored-frames")
    assert created["invocations"] == f"{frames.url}/invocations"
    assert "scored-frames" in {each["name"] for each in deployments.list_deployments()}
    answer = deployments.predict("scored-frames", FRAME).get_predictions("ndarray")
    assert answer.tolist() == frames.pyfunc.predict(FRAME).tolist()
    with pytest.raises(MlflowException, match=r"was logged as .*sklearn"):
        deployments.explain("scored-frames", FRAME)
    with pytest.raises(MlflowException, match="no version 9"):
        deployments.update_deployment("scored-frames", "models:/scored-frames/9")


def test_mlflow_s_command_line_manages_deployments(frames: Door, deployments: Any, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(deployments_cli, [*arguments, "-t", "shiplift"])
        assert done.exit_code == 0, f"{done.output} {done.exception}"
        return done.output

    assert "scored-frames" in run("create", "--name", "scored-frames", "-m", "models:/scored-frames/1")
    assert "scored-frames" in run("list")
    assert "version: 1" in run("get", "--name", "scored-frames")
    request = tmp_path / "request.json"
    FRAME.to_json(request)
    assert json.loads(run("predict", "--name", "scored-frames", "-I", str(request)))["predictions"]
    assert "allow_older" in run("help")


def log_framed(lab: Lab) -> Callable[..., Any]:
    """Author's code that answers a data frame of labels and scores."""

    class Framed(lab.mlflow.pyfunc.PythonModel):  # type: ignore[name-defined, misc]
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            import pandas

            return pandas.DataFrame({"label": model_input["city"].str.upper(), "score": model_input["age"] * 2})

    options = {"python_model": Framed(), "input_example": FRAME}
    return lambda **kwargs: lab.mlflow.pyfunc.log_model(**options, **kwargs | {"pip_requirements": ["pandas==2.3.3"]})


def log_series(lab: Lab) -> Callable[..., Any]:
    """A regression whose signature was inferred from its labels, a series, though `predict` answers an array."""
    from sklearn.linear_model import LinearRegression

    x, y = FRAME[["age", "income"]], FRAME["income"] * 2
    model, signature = LinearRegression().fit(x, y), infer_signature(x, y)
    return lambda **kwargs: lab.mlflow.sklearn.log_model(model, signature=signature, input_example=x, **kwargs)


def log_mixed(lab: Lab) -> Callable[..., Any]:
    """Author's code that answers what no tensor holds: None, lists of several lengths, values of several types."""

    class Mixed(lab.mlflow.pyfunc.PythonModel):  # type: ignore[name-defined, misc]
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            import pandas

            rows = list(zip(model_input["age"].tolist(), model_input["city"].tolist(), strict=True))
            columns = {
                "number": [None if age > 60 else age for age, _ in rows],
                "logical": [None if age > 60 else age > 40 for age, _ in rows],
                "many": [[city] * int(age // 20) for age, city in rows],
                "any": [age if age < 40 else {"city": city} for age, city in rows],
            }
            return pandas.DataFrame({name: pandas.Series(each, dtype=object) for name, each in columns.items()})

    options = {"python_model": Mixed(), "input_example": FRAME}
    return lambda **kwargs: lab.mlflow.pyfunc.log_model(**options, **kwargs | {"pip_requirements": ["pandas==2.3.3"]})


def log_listed(lab: Lab) -> Callable[..., Any]:
    """Author's code that answers a tuple: as many arrays as the example has rows, each with all of these."""

    class Listed(lab.mlflow.pyfunc.PythonModel):  # type: ignore[name-defined, misc]
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            import numpy

            ages = model_input["age"].to_numpy()
            return ages > 40, numpy.stack([ages, ages * 2], axis=1), [None if age > 60 else str(age) for age in ages]

    options = {"python_model": Listed(), "input_example": FRAME}
    return lambda **kwargs: lab.mlflow.pyfunc.log_model(**options, **kwargs | {"pip_requirements": ["pandas==2.3.3"]})


def log_whole(lab: Lab) -> Callable[..., Any]:
    """Author's code that answers labels, beside what holds for all rows; one row's label is no list."""

    class Whole(lab.mlflow.pyfunc.PythonModel):  # type: ignore[name-defined, misc]
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            ages = model_input["age"].to_numpy()
            about = {"version": "v1", "limits": [20, 60], "files": {"a": [b"ab"], "b": None}}
            return {"age": ages.squeeze(), "old": (ages > 60).tolist(), **about}

    options = {"python_model": Whole(), "input_example": FRAME}
    return lambda **kwargs: lab.mlflow.pyfunc.log_model(**options, **kwargs | {"pip_requirements": ["pandas==2.3.3"]})


def log_varied(lab: Lab) -> Callable[..., Any]:
    """Author's code whose answers have other keys from row to row, and none for some."""

    class Varied(lab.mlflow.pyfunc.PythonModel):  # type: ignore[name-defined, misc]
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            rows = zip(model_input["age"].tolist(), model_input["city"].tolist(), strict=True)
            return [{"old": age, "in": (city, None)} if age > 40 else {"young": {"age": age}} for age, city in rows]

    options = {"python_model": Varied(), "input_example": FRAME}
    return lambda **kwargs: lab.mlflow.pyfunc.log_model(**options, **kwargs | {"pip_requirements": ["pandas==2.3.3"]})


@pytest.mark.slow
@pytest.mark.parametrize("log", [log_framed, log_series, log_mixed, log_listed, log_whole, log_varied])
def test_other_answers_have_the_form_of_pyfuncs(lab: Lab, log: Callable[[Lab], Callable[..., Any]]) -> None:
    door = promoted(lab, f"scored-{log.__name__[4:]}", log(lab), PYTHON)
    for count in (3, 1, 2):
        require_same(
            door, {"dataframe_split": {**SPLIT, "index": SPLIT["index"][:count], "data": SPLIT["data"][:count]}}
        )
    require_same(door, {"dataframe_records": [{"age": 1.0}]})


def log_scaled(lab: Lab) -> Callable[..., Any]:
    """Author's code with parameters, one of which changes the form of its answer."""

    class Scaled(lab.mlflow.pyfunc.PythonModel):  # type: ignore[name-defined, misc]
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            scaled = model_input["age"] * params["factor"] + sum(params["more"])
            return scaled.to_frame("scaled") if params["frame"] else scaled.to_numpy()

    params = {"factor": 2.0, "more": [1.0], "frame": False}
    signature = infer_signature(FRAME, np.ones(3), params)
    options = {"python_model": Scaled(), "input_example": FRAME, "signature": signature}
    return lambda **kwargs: lab.mlflow.pyfunc.log_model(**options, **kwargs | {"pip_requirements": ["pandas==2.3.3"]})


@pytest.mark.slow
def test_each_request_is_answered_with_its_own_parameters(lab: Lab, deployments: Any) -> None:
    door = promoted(lab, "scored-scaled", log_scaled(lab), PYTHON)
    asked = [{"factor": 3}, {}, {"more": [1, 2.5]}, {"factor": 0.5, "more": [], "unknown": 1}, {"factor": 2.0}] * 8
    bodies = [{"dataframe_split": SPLIT, "params": params} for params in asked]
    with ThreadPoolExecutor(8) as pool:
        for body, response in zip(bodies, pool.map(door.post, bodies), strict=True):
            assert response.json() == door.mlflow(body)[1], body
    for wrong in ({"factor": "x"}, {"more": 1}, {"frame": 2}):
        require_same(door, {"dataframe_split": SPLIT, "params": wrong})
    assert door.post({"dataframe_split": SPLIT, "params": {"frame": True}}).status_code == 400  # another form
    answer = deployments.predict("scored-scaled", bodies[0]).get_predictions("ndarray")
    assert answer.tolist() == door.mlflow(bodies[0])[1]["predictions"]
    columns = {"age": ("FP64", 2.0), "income": ("FP64", 0.0), "city": ("BYTES", "Ulm")}
    inputs = [{"name": n, "datatype": kind, "shape": [1, 1], "data": [value]} for n, (kind, value) in columns.items()]
    for parameters in ({"factor": 3.5, "frame": False}, {"params": '{"factor": 3.5}'}):
        model = lab.engine.discover("scored-scaled")
        body = {"inputs": inputs, "parameters": parameters}
        response = httpx.post(f"{model.http}{model.path}/infer", json=body)
        assert response.json()["outputs"][0]["data"] == [8.0], response.text


def log_from(lab: Lab, name: str) -> Callable[..., Any]:
    """A model from the code beside this file."""
    code = str(Path(__file__).with_name(f"{name}.py"))
    needs = {"pip_requirements": ["pandas==2.3.3"]}
    return lambda **kwargs: lab.mlflow.pyfunc.log_model(python_model=code, **kwargs | needs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["python_chat", "python_agent"])
def test_chat_models_and_agents_answer_as_behind_mlflow_but_for_times_and_ids(lab: Lab, name: str) -> None:
    door = promoted(lab, f"scored-{name}", log_from(lab, name), PYTHON)
    key, more = ("messages", {"temperature": 0.25}) if name == "python_chat" else ("input", {"max_output_tokens": 7})
    said = [{"role": "user", "content": "hé 👍"}]
    for body in ({key: said}, {key: said, **more}, {"inputs": {key: said, **more}}, {key: said, "stream": True}):
        response, (code, answer) = door.post(body), door.mlflow(body)
        assert (response.status_code, code) == (200, 200), response.text
        for each in (ours := response.json(), answer):
            whole = each.get("predictions", each)
            whole.pop("created", None)
            for item in whole.get("output", []):
                assert item.pop("id")
        assert ours == answer
    for wrong in ({key: 7}, {"neither": said}, {key: [{"content": "nobody's"}]}):
        assert 400 <= door.post(wrong).status_code < 500
