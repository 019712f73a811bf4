"""Models that were once promoted with wrong answers: exported and proved in this process."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from shiplift.runtime.admission import proving
from shiplift.runtime.admission.conversion import convert
from shiplift.runtime.admission.verification import verify
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.guest.graphs.guards import Guards
from shiplift.runtime.model import graph_contract, onnx_models
from shiplift.runtime.model.conversion import sklearn_linear
from shiplift.runtime.model.conversion.torch_models import TorchModule, TorchProgram
from shiplift.runtime.model.tensors import Arrays, dump_npz, load_npz
from shiplift.runtime.proof import far_answers
from shiplift.runtime.proof.file import from_file, sets_in
from shiplift.runtime.records.guards import Guard
from shiplift.runtime.records.proof import Form, OfferedGraph, Proof
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.model import Conversion
from tests.unit.examples import save, tensor

# What MLflow writes by itself is read by skops, whose import takes seconds.
PICKLED: dict[str, Any] = {"pip_requirements": [], "serialization_format": "cloudpickle"}
X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
SIGNATURE = Signature(inputs=(tensor("x", -1, 4),), outputs=(tensor("y", -1, 4),))


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What became of a model."""

    file: Path
    signature: Signature
    notes: list[str]
    proof: Proof
    form: str
    dropped: list[Form]

    @property
    def outputs(self) -> list[str]:
        return [spec.name for spec in self.signature.outputs]


@dataclass(kw_only=True)
class Bench:
    """A logged model in a folder, exported as a release does it, but for the sandboxes."""

    home: Path
    flavor: str = "onnx"
    signature: Signature = SIGNATURE
    example: Arrays = field(default_factory=lambda: {"x": X})
    validation: Arrays = field(default_factory=dict)
    tabular: bool = False
    with_trees: bool = True

    @property
    def folder(self) -> Path:
        return self.home / "model"

    def export(self, **settings: Any) -> Exported:
        example, out = self.home / "example.npz", self.home / "out"
        example.write_bytes(dump_npz(self.example))
        result = convert(
            folder=str(self.folder),
            flavor=self.flavor,
            signature=self.signature.model_dump(mode="json"),
            example=str(example),
            out=str(out),
            settings=Conversion(**settings).model_dump(mode="json"),
            tabular=self.tabular,
            seed=1,
            known=self._known(),
        )
        told = verify(
            written=str(out),
            graphs=result["graphs"],
            script="",
            sets=result["sets"],
            questions=result["questions"],
            left_out=result["left_out"],
            guards=result["guards"],
            text="",
            trees=result["trees"] if self.with_trees else None,
            out=str(out),
        )
        json.dumps(told)
        served = OfferedGraph.model_validate(result["graphs"][told["served"]])
        return Exported(
            file=out / served.folder / "model.onnx",
            signature=served.signature,
            notes=[*result["notes"], *served.notes],
            proof=Proof.model_validate(told["proof"]),
            form=told["form"],
            dropped=[Form.model_validate(each) for each in told["dropped"]],
        )

    def _known(self) -> dict[str, Any] | None:
        file = self.home / "validation.npz"
        file.write_bytes(dump_npz(self.validation))
        known = {
            "file": str(file),
            "name": file.name,
            "label": "label",
            "columns": [],
            "unpacked_mb": 9,
            "recorded": None,
            "recorded_name": "",
            "samples": 999,
        }
        return known if self.validation else None


def graph_of(bench: Bench, *nodes: Any, shape: tuple[Any, ...] = ("batch", 4), **weights: Any) -> Bench:
    """Logs an ONNX graph from `x` (batch, 4) to `y`."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, list(shape))
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    save(helper.make_graph(list(nodes), "g", [x], [y], constants), bench.folder / "model.onnx")
    (bench.folder / "MLmodel").write_text("flavors: {onnx: {data: model.onnx}}\n")
    contract = graph_contract.read(bench.folder / "model.onnx")
    assert contract
    bench.signature = contract.signature
    return bench


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(proving, "_LIMIT_S", 600)  # all rows are asked, however busy the machine is
    return Bench(home=tmp_path)


MEAN = helper.make_node("ReduceMean", ["x", "axes"], ["mean"], keepdims=1)
CENTRED = (MEAN, helper.make_node("Sub", ["x", "mean"], ["y"]))


def test_a_model_that_treats_rows_one_by_one_is_served_in_batches(bench: Bench) -> None:
    exported = graph_of(bench, helper.make_node("Tanh", ["x"], ["y"])).export()
    assert exported.signature.batch == -1
    assert exported.proof.batches
    assert {"example", "random-7", "range", "zero"} <= {each.origin for each in exported.proof.asked}
    rows = sum(each.rows for each in exported.proof.asked)
    assert rows > 200
    assert {each.name: each.rows for each in exported.proof.settings} == {
        "alone": rows,
        "in batches": rows,
        "at every place of a batch": 12,
        "to several clients": 12,
        "on several threads": rows,
    }


def test_a_model_whose_rows_mix_is_served_one_at_a_time_with_a_warning(bench: Bench) -> None:
    attention = (
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "x"], ["y"]),
    )
    kept = (helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=1),)
    axes = {"axes": np.array([0])}
    cases = (
        ("centred", CENTRED, " from Sub on"),
        ("attention", attention, " from MatMul on"),
        ("one row for all", kept, ""),
    )
    for name, nodes, cause in cases:
        shape = (1, 4) if name == "one row for all" else ("batch", 4)
        exported = graph_of(bench, *nodes, shape=shape, **axes).export()
        assert exported.signature.batch == 1, name
        assert exported.notes[0].startswith("Warning: served one sample at a time, without batching"), name
        assert "in a batch" in exported.notes[0], name
        assert f"its batch{cause}, as to row" in exported.notes[0], name
        assert not exported.proof.batches, name
        running = onnx_models.session(exported.file)
        assert onnx_models.takes_one_sample(running), name
        alone = onnx_models.answer(running, {"x": X[:1]})["y"]
        np.testing.assert_allclose(alone, np.zeros((1, 4)) if name == "centred" else X[:1], atol=1e-6)


def test_a_graph_that_can_t_be_asked_row_by_row_is_refused_with_what_to_do(bench: Bench) -> None:
    whole = (helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0),)
    with pytest.raises(ExportFailed, match=r"the output 'y' has no batch axis: for one row its shape is \[4\]"):
        graph_of(bench, *whole, shape=(4,), axes=np.array([0])).export()


def test_a_model_that_is_not_repeatable_is_refused(bench: Bench) -> None:
    sampled = (
        helper.make_node("RandomUniformLike", ["x"], ["chance"]),
        helper.make_node("Mul", ["x", "chance"], ["y"]),
    )
    with pytest.raises(ExportFailed, match=r"the model is not repeatable: to row 0 .*asked again") as error:
        graph_of(bench, *sampled).export()
    assert "model.eval()" in error.value.do


def test_a_graph_that_is_not_the_model_is_refused_with_the_first_difference(bench: Bench) -> None:
    """The conversion ran the model's code, so the proof takes its graph for anybody's."""
    bench = graph_of(bench, helper.make_node("Tanh", ["x"], ["y"]))
    bench.export()
    file, out = bench.home / "out" / "model" / "model.onnx", bench.home / "out"
    axes = numpy_helper.from_array(np.array([0]), "axes")

    def proved(*nodes: Any) -> None:
        model = onnx.load(file)
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        model.graph.initializer.append(axes)
        onnx.save(model, file)
        graph = OfferedGraph(name="FP32 graph", folder="model", signature=SIGNATURE)
        verify(
            written=str(out),
            graphs=[graph.model_dump(mode="json")],
            script="",
            sets=["example", "random-7"],
            questions=[],
            left_out=[],
            guards=[],
            text="",
            trees=None,
            out=str(out),
        )

    off = (helper.make_node("Sin", ["x"], ["y"]),)
    with pytest.raises(ExportFailed, match=r"to row 0 of the example rows \(alone\) the original answers 0\.12"):
        proved(*off)
    # What it adds is the difference to the mean of the batch, which is nothing for a single row.
    mixing = (
        MEAN,
        helper.make_node("Sub", ["x", "mean"], ["rest"]),
        helper.make_node("Tanh", ["x"], ["tanh"]),
        helper.make_node("Add", ["tanh", "rest"], ["y"]),
    )
    with pytest.raises(ExportFailed, match=r"to row 0 of the example rows \(in batches\)"):
        proved(*mixing)


def test_a_small_target_beside_a_large_one_is_not_lost(bench: Bench) -> None:
    """onnxmltools gives the first of XGBoost's targets alone."""
    xgboost, mlflow = pytest.importorskip("xgboost"), pytest.importorskip("mlflow.xgboost")
    rows = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    targets = np.column_stack([3e5 + 1e5 * rows[:, 0], 80 + 5 * rows[:, 1]])
    model = xgboost.XGBRegressor(n_estimators=5, max_depth=2).fit(rows, targets)
    mlflow.save_model(model, str(bench.folder), pip_requirements=[])
    bench.flavor, bench.signature = "xgboost", SIGNATURE.model_copy(update={"outputs": (tensor("y", -1, 2),)})
    with pytest.raises(ExportFailed, match="column 1"):
        bench.export()


def test_a_graph_that_mixes_rows_though_its_original_does_not_is_served_one_at_a_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """skl2onnx answers one row of labels, which Shiplift corrects."""
    import mlflow.sklearn
    from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

    monkeypatch.setattr(sklearn_linear, "with_rows_of_labels", lambda graph, _: graph)
    rows = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    model = QuadraticDiscriminantAnalysis().fit(rows, (rows[:, 0] > 0).astype(int))
    mlflow.sklearn.save_model(model, str(bench.folder), **PICKLED)
    bench.flavor, bench.example = "sklearn", {"x": rows[:3]}
    exported = bench.export()
    assert exported.signature.batch == 1
    assert "in a batch with row" in exported.notes[0]
    assert not exported.proof.batches


def test_probabilities_come_first_where_the_author_asked_for_them(bench: Bench) -> None:
    import mlflow.sklearn
    from sklearn.linear_model import LogisticRegression

    labels = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
    model = LogisticRegression().fit(X, labels)
    wide, label = (tensor("output", -1, 3, datatype="FP64"),), (tensor("output", -1, datatype="INT64"),)
    cases: list[tuple[Any, dict[str, Any], list[str]]] = [
        (label, {}, ["label", "probabilities"]),
        (label, {"pyfunc_predict_fn": "predict_proba"}, ["probabilities", "label"]),
        (wide, {}, ["probabilities", "label"]),
    ]
    for index, (outputs, how, order) in enumerate(cases):
        case = Bench(home=bench.home / str(index), flavor="sklearn")
        case.home.mkdir()
        mlflow.sklearn.save_model(model, str(case.folder), **PICKLED, **how)
        case.signature = SIGNATURE.model_copy(update={"outputs": outputs})
        assert case.export().outputs == order, (outputs, how)


def test_a_label_that_depends_on_a_tie_is_seen(bench: Bench) -> None:
    import mlflow.sklearn
    from sklearn.ensemble import ExtraTreesClassifier

    rng = np.random.default_rng(0)
    rows = rng.integers(0, 4, size=(400, 4)).astype(np.float32)
    model = ExtraTreesClassifier(20, random_state=0).fit(rows[:200], rng.integers(0, 2, size=200))
    mlflow.sklearn.save_model(model, str(bench.folder), **PICKLED)
    bench.flavor, bench.example = "sklearn", {"x": rows[:5]}
    differs = r"the original answers \d for 'label', the served form answers \d"
    bench.with_trees = False
    with pytest.raises(ExportFailed, match=differs):
        bench.export()
    pytest.importorskip("treelite")
    bench.with_trees = True
    exported = bench.export()  # its exact trees are the model
    assert exported.form == "exact trees"
    assert re.search(differs, exported.dropped[0].dropped)
    assert exported.proof.batches


def test_where_the_original_raises_the_graph_must_not_answer(bench: Bench) -> None:
    import mlflow.sklearn
    import pandas as pd
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder

    colours = np.array([["red"], ["green"], ["blue"]], dtype=object)
    model = make_pipeline(OrdinalEncoder(), LinearRegression()).fit(pd.DataFrame({"x": colours[:, 0]}), [1.0, 2, 3])
    mlflow.sklearn.save_model(model, str(bench.folder), **PICKLED)
    bench.flavor, bench.tabular, bench.example = "sklearn", True, {"x": colours}
    bench.signature = Signature(inputs=(tensor("x", -1, 1, datatype="BYTES"),), outputs=(tensor("y", -1),))
    bench.validation = {"x": np.array([["red"], ["pink"]]), "label": np.zeros(2)}
    proof = bench.export().proof  # it refuses pink, as the original does
    assert proof.guards == (Guard(input="x", values=("blue", "green", "red")),)
    assert (proof.unrefused, proof.refused > 5) == (None, True)
    kept = [
        from_file(arrays, name) for arrays in [load_npz(bench.home / "out" / "asked.npz")] for name in sets_in(arrays)
    ]
    refused = [row for rows, right in kept for row in rows.inputs["x"][~right.answered, 0]]
    assert "pink" in refused  # the packaged server is asked refused rows, too
    assert len(refused) > 5


@pytest.mark.slow
def test_a_row_that_no_guard_can_part_from_others_is_told(bench: Bench) -> None:
    import mlflow.sklearn
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    rows = np.random.default_rng(0).uniform(-3, 3, (40, 4))
    model = make_pipeline(FunctionTransformer(np.reciprocal), LinearRegression()).fit(rows, rows[:, 0])
    mlflow.sklearn.save_model(model, str(bench.folder), **PICKLED)
    bench.flavor, bench.example = "sklearn", {"x": rows[:9]}
    bench.signature = Signature(inputs=(tensor("x", -1, 4, datatype="FP64"),), outputs=(tensor("y", -1),))
    proof = bench.export().proof  # refuses zero, which the regression gets as infinity
    assert proof.unrefused
    assert proof.unrefused.likely
    assert proof.unrefused.served == "answers"
    assert "made rows that the original refuses (ValueError: " in " ".join(proof.left_out)
    assert [(guard.low, guard.high) for guard in proof.guards] == [(None, None)]  # NaN alone


@pytest.mark.slow
def test_operators_in_training_mode_are_named() -> None:
    torch = pytest.importorskip("torch")
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(4))
    for training, named in ((True, ("dropout", "batch_norm")), (False, ())):
        program = torch.export.export(layers.train(training), (torch.from_numpy(X),))
        names = TorchProgram(program, (tensor("x", -1, 4),), ("y",)).training
        assert [name.partition(".")[0] for name in names] == list(named)


def test_outputs_of_a_torch_model_are_known_by_name_in_whatever_order() -> None:
    torch = pytest.importorskip("torch")
    names = ("negative", "double", "positive")

    class Split(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return {"positive": x.relu(), "negative": -(-x).relu(), "double": 2 * x}

    original = TorchModule(Split(), (tensor("x", -1, 4),), names)
    answers, precise = original.answer({"x": X}), original.in_double({"x": X})
    assert {name: array.dtype.kind for name, array in precise.items()} == dict.fromkeys(names, "f")
    assert all(array.itemsize == 8 for array in precise.values())
    assert set(answers) == set(names)
    np.testing.assert_array_equal(answers["negative"], np.minimum(X, 0))
    np.testing.assert_array_equal(answers["double"], 2 * X)


def log_program(bench: Bench, forward: Any, *inputs: Any) -> Any:
    """Logs a module's program, of any number of rows; returns the module."""
    import torch

    module = type("Module", (torch.nn.Module,), {"forward": forward})().eval()
    rows = {0: torch.export.Dim("b")}
    program = torch.export.export(module, inputs, dynamic_shapes=(rows,) * len(inputs))
    (bench.folder / "data").mkdir(parents=True)
    torch.export.save(program, bench.folder / "data" / "model.pt2")
    (bench.folder / "MLmodel").write_text("flavors: {pytorch: {model_data: data}}\n")
    bench.flavor = "pytorch"
    return module


@pytest.mark.slow
def test_torch_models_are_exported_by_name_and_served_alone_where_rows_mix(bench: Bench) -> None:
    torch = pytest.importorskip("torch")

    def logged(name: str, forward: Any, *outputs: str) -> Bench:
        case = Bench(home=bench.home / name)
        case.home.mkdir()
        log_program(case, forward, torch.zeros(2, 4))
        case.signature = Signature(
            inputs=(tensor("x", -1, 4),), outputs=tuple(tensor(output, -1, 4) for output in outputs)
        )
        return case

    split = logged("split", lambda _, x: {"positive": x.relu(), "negative": -(-x).relu()}, "negative", "positive")
    running = onnx_models.session(split.export().file)
    np.testing.assert_array_equal(onnx_models.answer(running, {"x": X})["negative"], np.minimum(X, 0))

    largest = logged("largest", lambda _, x: x.amax(1, keepdim=True).expand(-1, 4), "y").export()
    assert largest.proof.guards == (Guard(input="x", missing=False),)  # its graph looks past NaN

    centred = logged("centred", lambda _, x: x - x.mean(dim=0, keepdim=True), "y").export()
    assert centred.signature.batch == 1
    assert centred.notes[0].startswith("Warning: served one sample at a time")


@pytest.mark.slow
def test_networks_are_limited_to_what_they_answer_rightly_but_not_for_rounding(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far_answers, "_SECONDS", 600)  # however busy the machine is
    monkeypatch.setattr(proving, "_FAR_S", 600)
    torch = pytest.importorskip("torch")
    log_program(bench, lambda _, x: x.var(1, keepdim=True), torch.zeros(2, 4))
    bench.signature = Signature(inputs=SIGNATURE.inputs, outputs=(tensor("y", -1, 1),))

    (guard,) = bench.export().proof.guards  # its squares overflow before they are divided

    assert guard.high is not None
    assert 1e12 < guard.high <= 1e17  # what is left of equal large numbers is no reason for a limit


@pytest.mark.slow
def test_inputs_of_an_attention_are_limited_to_what_they_are_answered_rightly_together(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far_answers, "_SECONDS", 600)  # however busy the machine is
    monkeypatch.setattr(proving, "_FAR_S", 600)
    torch = pytest.importorskip("torch")

    def forward(_: Any, q: Any, k: Any) -> Any:
        q, k = q.unsqueeze(1), k.unsqueeze(1)
        return torch.nn.functional.scaled_dot_product_attention(q, k, k).squeeze(1)

    module = log_program(bench, forward, torch.zeros(2, 3, 4), torch.zeros(2, 3, 4))
    rng = np.random.default_rng(0)
    bench.example = {name: rng.normal(size=(5, 3, 4)).astype(np.float32) for name in "qk"}
    bench.signature = Signature(inputs=(tensor("q", -1, 3, 4), tensor("k", -1, 3, 4)), outputs=(tensor("y", -1, 3, 4),))
    exported = bench.export()
    guards = Guards(guard.entry() for guard in exported.proof.guards)
    running, answered = onnx_models.session(exported.file), 0
    for _ in range(300):
        far = {name: rng.normal(size=(1, 3, 4)) * 10.0 ** rng.uniform(0, 38) for name in "qk"}
        arrays = {name: np.clip(array, -3e38, 3e38).astype(np.float32) for name, array in far.items()}
        if guards.reason(arrays):
            continue
        answered += 1
        right = module(*(torch.from_numpy(array) for array in arrays.values())).numpy()
        served = onnx_models.answer(running, arrays)["y"]
        assert (np.isnan(served) == np.isnan(right)).all(), arrays
    assert answered > 10
