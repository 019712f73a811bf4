"""How large the tables are that ids look up in: of graphs, and of PyTorch's models in each of their forms."""

from typing import Any

import numpy as np
import onnx
import skl2onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.ensemble import RandomForestClassifier

from shiplift.runtime.model.reading import lookups, onnx_graphs
from shiplift.runtime.model.reading.recording import facts_of
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.facts import ModelFacts
from shiplift.runtime.records.tensor import TensorSpec

IDS = (
    TensorSpec(name="ids", datatype="INT64", shape=(-1, -1)),
    TensorSpec(name="pair", datatype="INT64", shape=(-1, 2)),
)
EXAMPLE: Arrays = {"ids": np.array([[5, 7, 9], [1, 2, 3]]), "pair": np.array([[4, 8], [6, 1]])}


def _tables(facts: ModelFacts) -> dict[tuple[str, int | None], int | None]:
    return {(column.input, column.index): column.table_rows for column in facts.columns}


def test_the_tables_of_a_torch_model_are_seen_in_every_form() -> None:
    import torch

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.users = torch.nn.Embedding(1000, 4), torch.nn.Embedding(50, 4)
            self.weights = torch.nn.Parameter(torch.ones(70, 4))

        def forward(self, ids: Any, pair: Any) -> Any:
            return self.words(ids).mean(1) + self.users(pair[:, 1]) + self.weights[pair[:, 0]]

    module, arguments = Model().eval(), tuple(torch.from_numpy(array) for array in EXAMPLE.values())
    sizes = ({0: torch.export.Dim("batch"), 1: torch.export.Dim.DYNAMIC}, {0: torch.export.Dim("batch")})
    program = torch.export.export(module, arguments, dynamic_shapes=sizes).module()
    script = torch.jit.trace(module, arguments)
    for form in (module, program, script):
        facts = lookups.facts_of(lambda form=form: form(*arguments), IDS, EXAMPLE)  # type: ignore[misc]
        assert _tables(facts) == {("ids", None): 1000, ("pair", 1): 50, ("pair", 0): 70}


def test_the_steps_of_a_torch_model_are_asked_in_its_floats() -> None:
    import torch

    rows = np.linspace(-3, 3, 8, dtype=np.float32).reshape(2, 4)
    inputs = (TensorSpec(name="x", datatype="FP32", shape=(-1, 4)),)

    def forward(x: Any) -> Any:
        return torch.floor_divide(x, 0.7) + (x > 0.25) + torch.div(x, 1e9, rounding_mode="floor") + x / 0.3

    (column,) = lookups.facts_of(lambda: forward(torch.from_numpy(rows)), inputs, {"x": rows}).columns
    assert {0.0, 0.25, 0.7, 5 * 0.7, -0.7} <= set(column.thresholds)
    assert not {0.3, 1e9} & set(column.thresholds)


def test_a_torch_model_that_fails_has_no_facts() -> None:
    facts = lookups.facts_of(lambda: 1 / 0, IDS, EXAMPLE)
    assert not facts.columns
    assert "division by zero" in facts.notes[0]


def _graph(*nodes: onnx.NodeProto, inputs: tuple[TensorSpec, ...], tables: dict[str, int]) -> onnx.GraphProto:
    values = [helper.make_tensor_value_info(spec.name, TensorProto.INT64, None) for spec in inputs]
    weights = [numpy_helper.from_array(np.ones((rows, 2), np.float32), name) for name, rows in tables.items()]
    return helper.make_graph(list(nodes), "g", values, [helper.make_tensor_value_info("y", 1, None)], weights)


def test_tables_and_categories_of_a_graph() -> None:
    graph = _graph(
        helper.make_node("Cast", ["ids"], ["cast"], to=TensorProto.INT32),
        helper.make_node("Gather", ["words", "cast"], ["a"]),
        helper.make_node("Gather", ["large", "cast"], ["b"]),
        helper.make_node("Gather", ["words", "cast"], ["c"], axis=1),
        helper.make_node(
            "LabelEncoder", ["pair"], ["d"], domain="ai.onnx.ml", keys_strings=["Köln"], values_int64s=[1]
        ),
        inputs=IDS,
        tables={"words": 1000, "large": 3000},
    )
    facts = onnx_graphs.facts_of(graph, IDS)
    assert _tables(facts)["ids", None] == 1000
    assert {column.input: column.categories for column in facts.columns}["pair"] == ("Köln",)


def test_the_table_of_a_graph_s_only_input_is_of_all_its_elements() -> None:
    ids = (TensorSpec(name="ids", datatype="INT64", shape=(-1, 8)),)
    graph = _graph(helper.make_node("Gather", ["words", "ids"], ["y"]), inputs=ids, tables={"words": 1000})
    assert _tables(onnx_graphs.facts_of(graph, ids)) == {("ids", None): 1000}


def test_trees_of_a_graph_are_those_of_the_model() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 4))
    model = RandomForestClassifier(3, max_depth=4).fit(rows, rows[:, 0] > 0)
    matrix = (TensorSpec(name="X", datatype="FP32", shape=(-1, 4)),)
    graph = skl2onnx.to_onnx(model, rows[:1].astype(np.float32)).graph
    read, own = onnx_graphs.facts_of(graph, matrix), facts_of(model, matrix)
    assert len(read.boxes) == len(own.boxes)
    for left, right in zip(
        (c for c in read.columns if c.thresholds), (c for c in own.columns if c.thresholds), strict=True
    ):
        assert np.array_equal(np.array(left.thresholds, np.float32), np.array(right.thresholds, np.float32))


def test_a_broken_graph_has_no_facts() -> None:
    graph = _graph(
        helper.make_node("TreeEnsembleRegressor", ["ids"], ["y"], domain="ai.onnx.ml"), inputs=IDS, tables={}
    )
    facts = onnx_graphs.facts_of(graph, IDS)
    assert not facts.columns
    assert facts.notes[0].startswith("The graph could not be read")
