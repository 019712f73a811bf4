"""The benchmark of the proof: its sabotages change answers, its fresh rows are fresh, its results are judged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.proof.__main__ import chosen
from benchmarks.proof.asking import compared, judged, renamed
from benchmarks.proof.fresh import rows_like
from benchmarks.proof.goals import missed
from benchmarks.proof.results import Result, Results, Sabotage, read, write
from benchmarks.proof.sabotages.graph_nodes import NODES
from benchmarks.proof.sabotages.graph_weights import WEIGHTS
from benchmarks.proof.sabotages.mutation import Files
from benchmarks.proof.sabotages.table import MUTATIONS
from benchmarks.proof.table import CASES, SABOTAGED
from shiplift.runtime.proof.answers import Answers

ROWS = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_table_has_models_and_sabotages_enough_and_no_name_twice() -> None:
    assert sum(case.part == "a" for case in CASES) >= 40
    assert sum(case.part == "c" for case in CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.name for case in CASES} >= SABOTAGED
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


def test_models_are_chosen_by_pattern_part_and_what_is_done() -> None:
    names = [case.name for case in chosen(["torch-*"], "c", None, "exported")]
    assert names[0] == "torch-mlp"
    done = Results(machine={}).including(result(name="torch-mlp"))
    assert "torch-mlp" not in [case.name for case in chosen(["torch-*"], "c", done, "exported")]
    assert "torch-mlp" in [case.name for case in chosen(["torch-*"], "c", done, "released")]
    assert chosen(["torch-*"], "a", None, "exported") == []
    with pytest.raises(SystemExit, match="no model is called 'x'"):
        chosen(["x"], "a", None, "exported")


# --- fresh rows ------------------------------------------------------------------------------------------------------


def test_fresh_rows_have_the_type_and_shape_of_the_data_and_depend_on_the_seed() -> None:
    data = np.random.default_rng(0).normal(size=(50, 3, 2)).astype(np.float32)
    rows = rows_like(data, 400, 1)
    assert (rows.shape, rows.dtype) == ((400, 3, 2), np.float32)
    np.testing.assert_array_equal(rows, rows_like(data, 400, 1))
    assert not np.array_equal(rows, rows_like(data, 400, 2))


def test_fresh_rows_lie_between_neighbours_beyond_the_ends_and_have_odd_values() -> None:
    data = np.arange(10, dtype=np.float64).reshape(-1, 1)
    values = rows_like(data, 2000, 0, odd=(np.nan, -999.0)).ravel()
    assert 4.5 in values
    assert np.nextafter(4.5, 5) in values
    assert np.nanmax(values) > 9
    assert np.isnan(values).any()
    assert -999.0 in values


def test_fresh_rows_of_a_data_frame_keep_its_columns() -> None:
    import pandas as pd

    frame = pd.DataFrame({"n": [1, 2, 3], "x": [0.5, 1.5, 2.5], "t": ["a", "b", "c"]})
    rows = rows_like(frame, 30, 0)
    assert list(rows.dtypes.astype(str)) == list(frame.dtypes.astype(str))
    assert set(rows["t"]) <= {"a", "b", "c"}


# --- comparing -------------------------------------------------------------------------------------------------------


def test_rows_are_wrong_alone_or_in_batches_and_unrefused_where_only_the_original_raises() -> None:
    right = Answers(outputs={"": np.array([[1.0], [2.0], [0.0]])}, errors=("", "", "ValueError: no"))
    answers = {"y": np.array([[1.0], [3.0], [7.0]]), "more": np.zeros((3, 1))}
    seen = compared(renamed(right, "y"), [("alone", Answers.of(answers))])
    assert (seen.rows, seen.wrong, seen.unrefused) == (3, 1, 1)
    assert "row 1" in seen.first


def test_a_form_need_not_serve_the_probabilities_that_pyfunc_does_not_answer() -> None:
    right = renamed(Answers.of({"": np.array([1, 2]), "probabilities": np.ones((2, 2))}), "output")
    assert compared(right, [("alone", Answers.of({"output": np.array([1, 2])}))]).wrong == 0
    assert compared(right, [("alone", Answers.of({"more": np.array([1, 2])}))]).wrong == 2
    served = Answers.of({"output": np.array([1, 2]), "probabilities": np.zeros((2, 2))})
    assert compared(right, [("alone", served)]).wrong == 2


def test_a_model_whose_rows_mix_is_wrong_only_in_batches() -> None:
    right = Answers.of({"": ROWS.sum(axis=1)})

    def ask(inputs: dict[str, Any]) -> dict[str, Any]:
        rows = inputs["input"]
        return {"y": rows.sum(axis=1) + (rows.mean() if len(rows) > 1 else 0)}

    assert judged(right, ask, {"input": ROWS}, "y", batches=False, seed=0).wrong == 0
    assert judged(right, ask, {"input": ROWS}, "y", batches=True, seed=0).wrong > 0


# --- sabotages -------------------------------------------------------------------------------------------------------


def network() -> onnx.ModelProto:
    """Ids of a table beside numbers, a hidden layer, and two outputs."""
    rng = np.random.default_rng(0)
    weights = {
        "table": rng.normal(size=(9, 4)).astype(np.float32),
        "w": rng.normal(size=(4, 3)).astype(np.float32),
        "b": rng.normal(size=3).astype(np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Gather", ["rows", "one"], ["mean0"], axis=1),
        helper.make_node("Squeeze", ["mean0", "one"], ["mean"]),
        helper.make_node("Add", ["mean", "x"], ["sum"]),
        helper.make_node("Add", ["sum", "z"], ["h0"]),
        helper.make_node("Sub", ["h0", "z"], ["h1"]),
        helper.make_node("Sub", ["h1", "z"], ["h"]),
        helper.make_node("Gemm", ["h", "w", "b"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"], axis=-1),
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    initializers.append(numpy_helper.from_array(np.array([1]), "one"))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4]),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, [None, 4]),
        helper.make_tensor_value_info("ids", TensorProto.INT64, [None, 2]),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 3]) for name in ("y", "scores")]
    graph = helper.make_graph(nodes, "network", inputs, outputs, initializers)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


def trees() -> onnx.ModelProto:
    """A classifier of one small tree that knows missing values, and its classes."""
    import skl2onnx
    from sklearn.ensemble import HistGradientBoostingClassifier

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 4)).astype(np.float32)
    labels = (rows[:, 0] > -0.4) + 0
    missing = rng.random(200) < 0.3
    rows[missing, 0], labels[missing] = np.nan, 0
    fitted = HistGradientBoostingClassifier(max_iter=1, max_depth=2).fit(rows, labels)
    return skl2onnx.to_onnx(fitted, rows[:1], options={id(fitted): {"zipmap": False}}, target_opset=20)


def answers(model: onnx.ModelProto, rows: dict[str, Any]) -> list[Any]:
    import onnxruntime as ort

    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(sorted(node.name for node in session.get_outputs()), rows))


def near_thresholds(model: onnx.ModelProto) -> Any:
    """Rows around every threshold of the trees, and missing ones."""
    node = next(node for node in model.graph.node if node.op_type.startswith("TreeEnsemble"))
    found = {attribute.name: attribute for attribute in node.attribute}
    values = np.array(found["nodes_values"].floats, np.float32)
    up = np.nextafter(values, np.float32(np.inf))
    down = np.nextafter(values, np.float32(-np.inf))
    each = np.unique(np.concatenate([values, up, down, [np.nan]]).astype(np.float32))
    rows = np.random.default_rng(0).normal(size=(4, 20, len(each), 4)).astype(np.float32)
    for column in range(4):
        rows[column, :, :, column] = each
    return rows.reshape(-1, 4)


_OF_NETWORK = {
    *("weight-flipped", "usual-weight-flipped", "bias-missing", "other-versions-weights", "ids-off-by-one"),
    *("softmax-missing", "outputs-swapped", "columns-transposed", "inputs-swapped", "position-transposed"),
    *("negative-is-zero", "neighbours-answer", "neighbours-leak", "scaled-answer"),
}
_OF_TREES = {
    *("classes-shifted", "threshold-one-ulp", "root-one-ulp", "leaf-changed", "missing-branch-dropped"),
    *("softmax-missing", "missing-is-zero", "negative-is-zero"),
}


@pytest.mark.parametrize(
    ("make", "expected"), [(network, _OF_NETWORK), pytest.param(trees, _OF_TREES, marks=pytest.mark.slow)]
)
def test_sabotages_change_what_a_graph_answers(
    tmp_path: Path, make: Callable[[], onnx.ModelProto], expected: set[str]
) -> None:
    model = make()
    if make is network:
        ids = np.array([[1, 2], [8, 0], [3, 6], [5, 1], [7, 4]])
        rows: dict[str, Any] = {"x": ROWS, "z": ROWS[::-1].copy(), "ids": ids}
    else:
        rows = {model.graph.input[0].name: near_thresholds(model)}
    before, changed = answers(model, rows), set[str]()
    for mutation in (*WEIGHTS, *NODES):
        file = tmp_path / f"{mutation.name}.onnx"
        onnx.save(model, file)
        if mutation.apply(Files(folder=tmp_path, graph=file)) is not None:
            after = answers(onnx.load(file), rows)
            changed |= set() if all(map(np.array_equal, before, after)) else {mutation.name}
    assert expected <= changed


# --- results ---------------------------------------------------------------------------------------------------------


def result(**fields: Any) -> Result:
    plain = {"name": "m", "part": "c", "flavor": "onnx", "depth": "exported", "outcome": "right", "good": True}
    return Result(**plain | fields)


def sabotage(name: str, *, caught: bool) -> Sabotage:
    return Sabotage(name=name, model="m", depth="exported", caught=caught, what="a weight", by="x" if caught else "")


def test_results_are_read_back_with_the_newest_of_each(tmp_path: Path) -> None:
    first = Results(machine={}).including(result(outcome="wrong", good=False), sabotage("m/x", caught=False))
    again = first.including(result(), result(depth="released"), sabotage("m/x", caught=True))
    assert [each.outcome for each in again.cases] == ["right", "right"]
    assert [each.caught for each in again.sabotages] == [True]
    write(tmp_path / "proof.json", again)
    assert read(tmp_path / "proof.json") == again
    assert read(tmp_path / "none.json") is None


def test_results_say_what_was_not_run() -> None:
    results = Results(machine={}).including(result(name="m")).finished(["m", "n"])
    assert results.not_run == {"exported": ("n",), "released": ("m", "n")}
    assert results.date


def test_each_missed_goal_is_told() -> None:
    results = Results(machine={}).including(
        result(name="slow", depth="released", seconds=40, proof_seconds=5),
        result(name="bad", depth="released", outcome="wrong", good=False, first="row 3 differs"),
        *(sabotage(f"m/{at}", caught=at > 1) for at in range(60)),
    )
    told = "\n".join(missed(results, "abcd"))
    assert "slow: the proof took 5 s of 40 s" in told
    assert "bad: wrong: row 3 differs" in told
    assert "m/0: not caught" in told
    assert "part c has 2 models, the goal is 60" in told
    assert missed(results, "d", ["bad"]) == []
