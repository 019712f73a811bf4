"""Guards in front of a graph: what they refuse gets an error, and its neighbours in a batch get their answers."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from sklearn.compose import make_column_transformer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from tritonclient.utils import InferenceServerException

from shiplift.runtime.base.errors import ServerFailed, ShipliftError
from shiplift.runtime.guest.graphs.guards import Guards
from shiplift.runtime.records.guards import Guard
from shiplift.runtime.records.kinds.exported import ExportedGraph
from shiplift.runtime.records.precision import Engine
from shiplift.runtime.serving.machine.server import Server
from tests.integration.backends import DTYPES, ask, lookup, model, put, served, server_for
from tests.integration.conftest import Lab
from tests.integration.test_ladder import log

pytestmark = pytest.mark.integration

TYPES = ("FP32", "FP64", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")


def told(server: Server, arrays: dict[str, NDArray[Any]], name: str = "m") -> Any:
    """The answer `y`, or the error."""
    try:
        return ask(server, arrays, name=name).as_numpy("y").tolist()
    except InferenceServerException as error:
        return error.message()


def together(server: Server, requests: list[dict[str, NDArray[Any]]], name: str = "m") -> list[Any]:
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda arrays: told(server, arrays, name), requests))


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_the_neighbours_of_a_refused_request_are_answered(tmp_path: Path, engine: Engine) -> None:
    guards = (Guard(input="x", low=0, high=3),)
    with served(tmp_path, lookup(), engine=engine, guards=guards, delay_us=400_000) as server:
        ids = [np.array([[each]], np.int64) for each in (1, -1, 2, 4, 3)]
        answers = together(server, [{"x": each} for each in ids])
        assert [answers[at] for at in (0, 2, 4)] == [[[1.0]], [[2.0]], [[3.0]]]
        assert "input 'x', row 0 is -1, and the least that the model takes is 0" in answers[1]
        assert "input 'x', row 0 is 4, and the most that the model takes is 3" in answers[3]
        several = told(server, {"x": np.array([[1], [2], [7]], np.int64)})
        assert "input 'x', row 2 is 7" in several


def cities() -> Any:
    """The number of a city, 0 if it is another one."""
    node = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_strings=["Rom", "Wien"], values_floats=[1.0, 2.0]
    )
    x = helper.make_tensor_value_info("x", TensorProto.STRING, ["n", 1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([node], "g", [x], [y]), ir_version=10, opset_imports=opsets)


def test_texts_are_guarded_by_a_list_of_them(tmp_path: Path) -> None:
    guards = (Guard(input="x", values=("Rom", "Wien")),)
    with served(tmp_path, cities(), guards=guards, delay_us=400_000) as server:
        texts = [np.array([[each.encode()]], object) for each in ("Wien", "Rom ", "Rom", "")]
        answers = together(server, [{"x": each} for each in texts])
        assert (answers[0], answers[2]) == ([[2.0]], [[1.0]])
        takes = ", none of the 2 values that the model takes: send one of 'Rom', 'Wien'"
        assert f"input 'x', row 0 is 'Rom '{takes}" in answers[1]
        assert f"input 'x', row 0 is ''{takes}" in answers[3]


def limits(kind: str) -> Iterator[Guard]:
    """Guards of all sorts for the input of a type, whose columns hold small numbers."""
    yield Guard(input=kind, column=0, low=1, high=4)
    yield Guard(input=kind, column=1, values=(0, 2, 5))
    if kind.startswith("FP"):
        yield Guard(input=kind, column=1, missing=False)
        yield Guard(input=kind, column=2, missing=False, low=0.0, high=5.0)
        yield Guard(input=kind, infinite=False)


def test_every_type_is_judged_as_the_proof_judges_it(tmp_path: Path) -> None:
    guards = tuple(guard for kind in TYPES for guard in limits(kind))
    nodes = [helper.make_node("Cast", [kind], [f"{kind}-y"], to=TensorProto.FLOAT) for kind in TYPES]
    nodes.append(helper.make_node("Sum", [f"{kind}-y" for kind in TYPES], ["y"]))
    graph = model(nodes, [(kind, kind, ["n", 3]) for kind in TYPES], [("y", "FP32", ["n", 3])])
    judge, rng = Guards(guard.entry() for guard in guards), np.random.default_rng(0)
    good = {kind: np.array([[2, 5, 3]], DTYPES[kind]) for kind in TYPES}
    numbers = [-1, 0, 1, 2, 4, 5, 6, 100]
    with served(tmp_path, graph, guards=guards) as server:
        seen = set()
        for at in range(120):
            kind = TYPES[at % len(TYPES)]
            special = [np.nan, np.inf, -np.inf] if kind.startswith("FP") else [2**63] if kind == "UINT64" else []
            allowed = [each for each in numbers if each >= 0 or not kind.startswith("U")]
            array = good[kind].copy()
            array[0, rng.integers(3)] = rng.choice(np.array([*allowed, *special], DTYPES[kind]))
            why, answer = judge.reason(good | {kind: array}), told(server, good | {kind: array})
            refused = isinstance(answer, str)
            assert refused == bool(why), (kind, array, why, answer)
            if refused and "2147" not in why:
                assert why.split(" is ")[0] in answer
                seen.add((why.rpartition(", ")[2].split()[0], kind[0]))
        assert len(seen) > 4


def test_a_file_of_guards_that_is_none_is_an_error_of_its_model(tmp_path: Path) -> None:
    put(tmp_path, lookup(), guards=(Guard(input="x", low=0, high=3),))
    file = tmp_path / "models" / "m" / "1" / "guards.json"
    right = file.read_text()
    entry = '{"input": "x", "values": %s}'
    with server_for(tmp_path) as (server, client):
        wrong = ("", "{}", "[1]", "[{]", '[{"input": "x', '[{"input": 1}]', f"[{entry % '[1, a]'}]", f"[{entry % '[1'}")
        for text in wrong:
            file.write_text(text)
            with pytest.raises(ServerFailed, match=r"guards\.json in the model's package can't be read"):
                client.load("m")
        file.write_text(right)
        client.load("m")
        assert told(server, {"x": np.array([[2]], np.int64)}) == [[2.0]]


@pytest.mark.slow
def test_production_refuses_what_a_released_model_refuses_and_the_report_says_so(lab: Lab) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"code": rng.choice([1, 2, 5, 9], 80), "age": rng.uniform(0, 90, 80)})
    encoded = make_column_transformer((OneHotEncoder(), ["code"]), (StandardScaler(), ["age"]))
    model = make_pipeline(encoded, Ridge()).fit(table, rng.normal(size=80))
    report = lab.wait("guarded", log(lab, "guarded", "sklearn", model, table), seconds=400)
    assert report.outcome == "promoted", report.reason
    assert "'code': one of 4 values; 'age': no NaN, nothing infinite" in report.guarded_by
    story = lab.engine.story(report)
    assert story.exported
    assert isinstance(story.exported, ExportedGraph)
    assert story.exported.proof
    assert story.exported.proof.refused > 5
    served = lab.engine.discover("guarded")
    good = {"code": np.array([[2], [9]]), "age": np.array([[30.0], [40.0]])}
    right = model.predict(pd.DataFrame({name: array[:, 0] for name, array in good.items()}))
    np.testing.assert_allclose(next(iter(served.infer(good).values())).ravel(), right, rtol=1e-5)
    for name, value, why in (
        ("code", 3, "row 1 is 3, none of the 4 values that the model takes: send one of 1, 2, 5, 9"),
        ("age", np.nan, "row 1 is nan, which is not taken: send a number"),
        ("age", np.inf, "row 1 is inf, which is not taken: send a finite number"),
    ):
        bad = {key: array.copy() for key, array in good.items()}
        bad[name][1, 0] = value
        with pytest.raises(ShipliftError, match=re.escape(f"input '{name}', {why}")):
            served.infer(bad)
