"""Models whose graph in FP32 answers otherwise: each ends in a form that is right on rows that were not asked."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from shiplift.runtime.admission import exact_trees, second_forms
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import feeds
from shiplift.runtime.records.tensor import Signature
from tests.unit.examples import tensor
from tests.unit.runtime.admission.test_proving import Bench, Exported

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(400, 6)) * [1, 10, 100, 1e-3, 5, 1] + [1e4, 0, 3, 0, 1e6, 0]
VALUES = 3 * ROWS[:, 0] + ROWS[:, 4] + RNG.normal(size=400)
THREE = RNG.integers(0, 3, 400)


def exported(
    home: Path, model: Any, rows: Any, *, datatype: Any = "FP64", classes: int = 0, **settings: Any
) -> Exported:
    """Exports a fitted estimator with rows of it as its example and its validation data."""
    import mlflow.sklearn

    home.mkdir()
    rows = rows.astype(np.float64 if datatype == "FP64" else np.float32)
    outputs = (tensor("y", -1, *([classes] if classes else []), datatype="FP64"),)
    bench = Bench(
        home=home,
        flavor="sklearn",
        signature=Signature(inputs=(tensor("x", -1, rows.shape[1], datatype=datatype),), outputs=outputs),
        example={"x": rows[:5]},
        validation={"x": rows[5:205], "label": np.zeros(len(rows[5:205]))},
    )
    how = {"serialization_format": "cloudpickle", "pip_requirements": []}
    mlflow.sklearn.save_model(model, str(bench.folder), **how)
    return bench.export(**settings)


def right(form: Exported, model: Any, rows: Any) -> bool:
    """Whether the form's graph answers these rows as the model does, in batches."""
    step = 1 if form.signature.batch == 1 else None
    fed = feeds({"x": rows}, form.signature.inputs)
    answers = onnx_models.answer(onnx_models.session(form.file), fed, step=step)
    expected = {next(name for name in answers if name != "probabilities"): model.predict(rows)}
    if "probabilities" in answers:
        expected["probabilities"] = model.predict_proba(rows)
    with np.errstate(invalid="ignore"):
        same = [np.allclose(answers[name].reshape(each.shape), each, 1e-5, 1e-6) for name, each in expected.items()]
    return all(same)


def fresh(rows: Any, datatype: str = "FP64") -> Any:
    """2,000 rows like these, none of which was asked."""
    rng = np.random.default_rng(9)
    picked = rows[rng.integers(0, len(rows), 2000)] + rng.normal(size=(2000, rows.shape[1])) * rows.std(axis=0) / 10
    return picked.astype(np.float64 if datatype == "FP64" else np.float32)


SMOOTH, EDGES = "quadratic", "histograms whose edges are the author's own rows"  # every day


def wrong_in_fp32() -> dict[str, tuple[Any, Any, Any]]:
    """Estimators, and the rows and values that they are fitted to."""
    from sklearn.datasets import load_digits
    from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.tree import DecisionTreeClassifier

    digits, digit = load_digits(return_X_y=True)
    return {
        "naive Bayes on digits": (GaussianNB(), digits, digit),
        SMOOTH: (QuadraticDiscriminantAnalysis(reg_param=0.1), ROWS, THREE),
        "scaled forest": (make_pipeline(StandardScaler(), RandomForestClassifier(9)), ROWS, THREE),
        "scaled tree": (make_pipeline(StandardScaler(), DecisionTreeClassifier()), ROWS, THREE),
        EDGES: (HistGradientBoostingClassifier(max_iter=9), ROWS, THREE),
        "Gaussian process": (GaussianProcessRegressor(), ROWS[:50], VALUES[:50]),
        "neighbours": (KNeighborsClassifier(), ROWS, THREE),
    }


def fitted(name: str) -> tuple[Any, Any]:
    """An estimator of `wrong_in_fp32`, and the rows that it was fitted to."""
    model, rows, values = wrong_in_fp32()[name]
    return model.fit(rows, values), rows


def require_fp64(home: Path, name: str) -> None:
    model, rows = fitted(name)
    form = exported(home / name, model, rows)
    assert form.form == "FP64 graph", (name, form.dropped)
    assert form.dropped[0].name == "FP32 graph"
    assert "the served form" in form.dropped[0].dropped, name
    assert {spec.datatype for spec in form.signature.inputs} == {"FP64"}, name
    assert "FP32" not in {spec.datatype for spec in form.signature.outputs}, "the author declared FP64"
    assert right(form, model, fresh(rows)), name
    assert right(form, model, rows), name


def test_a_model_that_is_wrong_in_fp32_is_served_in_fp64(tmp_path: Path) -> None:
    for name in (SMOOTH, EDGES):
        require_fp64(tmp_path, name)


@pytest.mark.slow
def test_so_are_models_of_other_kinds(tmp_path: Path) -> None:
    for name in wrong_in_fp32().keys() - {SMOOTH, EDGES}:
        require_fp64(tmp_path, name)


def test_clients_of_fp32_send_fp32_to_a_graph_in_fp64(tmp_path: Path) -> None:
    model, rows = fitted("naive Bayes on digits")
    form = exported(tmp_path / "model", model, rows, datatype="FP32")
    assert (form.form, form.signature.inputs[0].datatype) == ("FP64 graph", "FP32")
    assert right(form, model, fresh(rows, "FP32"))


@pytest.mark.parametrize("kind", ["linear", pytest.param("forest", marks=pytest.mark.slow)])
def test_a_model_that_is_right_in_fp32_keeps_its_form(tmp_path: Path, kind: str) -> None:
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.linear_model import LinearRegression

    unit = ((ROWS - ROWS.mean(axis=0)) / ROWS.std(axis=0)).astype(np.float32).astype(np.float64)
    model = (LinearRegression() if kind == "linear" else RandomForestRegressor(5)).fit(unit, VALUES)
    form = exported(tmp_path / kind, model, unit)
    assert form.form == "FP32 graph", form.dropped
    assert not form.dropped
    assert not (tmp_path / kind / "out" / second_forms.FOLDER).exists(), "it needs no second graph"
    assert right(form, model, fresh(unit, "FP32").astype(np.float64))


@pytest.mark.slow
def test_clients_that_send_fp32_have_a_graph_in_fp32_whatever_the_signature_says(tmp_path: Path) -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    unit = ((ROWS - ROWS.mean(axis=0)) / ROWS.std(axis=0)).astype(np.float32).astype(np.float64)
    model = HistGradientBoostingClassifier(max_iter=9).fit(unit, THREE)
    assert exported(tmp_path / "signature", model, unit).form == "FP64 graph"
    form = exported(tmp_path / "float32", model, unit, inputs="float32")
    assert form.form == "FP32 graph", form.dropped
    assert right(form, model, fresh(unit, "FP32").astype(np.float64))


@pytest.mark.slow
def test_labels_of_times_in_milliseconds_are_those_of_fp64(tmp_path: Path) -> None:
    """FP32 takes two minutes for one: few rows have another label, all of them near the boundary."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    times = np.column_stack([1.7e12 + rng.integers(0, 10_000_000_000, 400), rng.normal(size=400)])
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(times, (times[:, 0] > 1.7e12 + 5e9).astype(int))
    form = exported(tmp_path / "times", model, times)
    assert form.form == "FP64 graph", form.dropped
    assert "jump rows" in form.dropped[0].dropped


def test_trees_behind_a_scaler_are_right_in_fp32_where_rows_are_logged_in_it(tmp_path: Path) -> None:
    """scikit-learn scales in FP32 what is FP32, and divides."""
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows = ROWS.astype(np.float32)
    model = make_pipeline(StandardScaler(), GradientBoostingRegressor(n_estimators=9)).fit(rows, VALUES)
    form = exported(tmp_path / "model", model, rows, datatype="FP32")
    assert form.form == "FP32 graph", form.dropped
    assert [each.rows > 20 for each in form.proof.asked if each.origin == "jump"] == [True]


def test_trees_that_compare_fp64_are_served_in_it_where_rows_are_that_close(tmp_path: Path) -> None:
    """Steps of an ulp of FP64: FP32 takes the author's own rows for one."""
    pytest.importorskip("treelite")
    from sklearn.ensemble import HistGradientBoostingClassifier

    steps = 1 + np.arange(400)[:, None] * 1e-9
    model = HistGradientBoostingClassifier(max_iter=9, min_samples_leaf=5).fit(steps, np.arange(400) // 40 % 2)
    form = exported(tmp_path / "model", model, steps)
    assert (form.form, form.signature.inputs[0].datatype) == ("FP64 graph", "FP64"), form.dropped
    assert [each.name for each in form.dropped] == ["FP32 graph", "exact trees"]
    assert right(form, model, steps)


@pytest.mark.slow
def test_a_booster_that_compares_fp64_is_served_in_it_to_clients_of_fp64(tmp_path: Path) -> None:
    lightgbm, mlflow_lightgbm = pytest.importorskip("lightgbm"), pytest.importorskip("mlflow.lightgbm")
    pytest.importorskip("treelite")
    steps = 1 + np.arange(400)[:, None] * 1e-9
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = lightgbm.LGBMClassifier(n_estimators=9, min_child_samples=5, verbose=-1, max_bin=400)
        model.fit(steps, np.arange(400) // 40 % 2)
    bench = Bench(
        home=tmp_path,
        flavor="lightgbm",
        signature=Signature(inputs=(tensor("x", -1, 1, datatype="FP64"),), outputs=(tensor("y", -1),)),
        example={"x": steps[:5]},
        validation={"x": steps, "label": np.zeros(400)},
    )
    mlflow_lightgbm.save_model(model, str(bench.folder), pip_requirements=[])
    form = bench.export()
    assert (form.form, form.signature.inputs[0].datatype) == ("FP64 graph", "FP64"), form.dropped
    assert form.dropped[0].name == "FP32 graph"


def test_a_threshold_of_a_forest_that_is_off_by_an_ulp_is_none_of_the_model_s(tmp_path: Path) -> None:
    pytest.importorskip("treelite")
    from sklearn.ensemble import RandomForestRegressor

    rows = ROWS.astype(np.float32)
    model = RandomForestRegressor(5, random_state=0).fit(rows, VALUES)
    form = exported(tmp_path / "model", model, rows, datatype="FP32")
    assert form.form == "FP32 graph"
    graph = onnx.load(form.file).graph
    exact_trees.require_own_splits(form.file.parents[1], graph)
    (values,) = (field.floats for node in graph.node for field in node.attribute if field.name == "nodes_values")
    values[0] = np.nextafter(np.float32(values[0]), np.float32(np.inf))
    with pytest.raises(ExportFailed, match=r"it splits column \d at .*, and no node of the model does that"):
        exact_trees.require_own_splits(form.file.parents[1], graph)
