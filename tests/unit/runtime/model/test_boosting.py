from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.conversion import double_graphs, graphs, loaders
from shiplift.runtime.model.tensors import Arrays, feeds
from tests.unit.examples import tensor

SPECS = (
    tensor("age", -1, 1, datatype="FP64"),
    tensor("city", -1, 1, datatype="BYTES"),
    tensor("rooms", -1, 1, datatype="INT64"),
    tensor("zip code", -1, 1, datatype="INT64"),
    tensor("garden", -1, 1, datatype="BOOL"),
)
CITIES, ZIPS = ["Ulm", "Berlin", "Rom", "Bonn"], [89073, 10115, 53111]


def houses(count: int = 400) -> tuple[pd.DataFrame, Any]:
    """A frame with categories in an order that is not the alphabet's, and prices that depend on all columns."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(0, 100, count),
            "city": pd.Categorical(rng.choice(CITIES, count), categories=CITIES),
            "rooms": rng.integers(1, 9, count),
            "zip code": pd.Categorical(rng.choice(ZIPS, count), categories=ZIPS),
            "garden": rng.random(count) > 0.5,
        }
    )
    price = 100 - frame["age"] + 40 * (frame["city"] == "Rom") + 9 * frame["rooms"] + 30 * (frame["zip code"] == 53111)
    return frame, price + 20 * frame["garden"]


def inputs(frame: pd.DataFrame) -> Arrays:
    """The frame as clients send it: each column as (rows, 1), without categories."""
    plain = frame.astype({"city": object, "zip code": np.int64})
    return {name: np.array(plain[name]).reshape(-1, 1) for name in plain}


def saved(how: str, folder: Path) -> Any:
    """A model of the houses, trained in one of the usual ways and saved by MLflow; returns its flavor."""
    import lightgbm
    import mlflow
    import xgboost

    frame, price = houses()
    high = (price > price.median()).astype(int)
    kind: dict[str, Any] = {"enable_categorical": True, "n_estimators": 8}
    if how == "lightgbm classifier":
        model: Any = lightgbm.LGBMClassifier(n_estimators=8, min_child_samples=5, verbose=-1).fit(frame, high)
    elif how == "lightgbm booster":
        model = lightgbm.train({"verbose": -1, "min_data_in_leaf": 5}, lightgbm.Dataset(frame, price), 8)
    elif how == "xgboost classifier":
        model = xgboost.XGBClassifier(**kind).fit(frame, high)
    elif how == "xgboost regressor":
        model = xgboost.XGBRegressor(**kind).fit(frame, price)
    else:
        model = xgboost.train({}, xgboost.DMatrix(frame, price, enable_categorical=True), 8)
    flavor = how.split(maxsplit=1)[0]
    getattr(mlflow, flavor).save_model(model, str(folder), pip_requirements=[])
    return flavor


@pytest.mark.parametrize(
    "how",
    [
        "lightgbm classifier",
        pytest.param("lightgbm booster", marks=pytest.mark.slow),
        pytest.param("xgboost classifier", marks=pytest.mark.slow),
        pytest.param("xgboost regressor", marks=pytest.mark.slow),
        "xgboost booster",
    ],
)
def test_columns_are_categories_as_at_training(tmp_path: Path, how: str) -> None:
    frame, _ = houses()
    asked = inputs(frame)
    asked["city"][:20], asked["zip code"][10:30] = "Paris", 1  # not seen in training
    flavor = saved(how, tmp_path / "model")
    original = loaders.load(tmp_path / "model", flavor, SPECS, (), tabular=True)
    told = {column.input: column for column in original.facts(SPECS, asked).columns}
    assert (told["city"].categories, told["zip code"].categories) == (tuple(CITIES), tuple(ZIPS))
    assert told["age"].thresholds
    expected = original.answer(asked)
    graphs.save(original.to_onnx(asked, 20, tmp_path), tmp_path / "made.onnx")
    specs = onnx_models.signature_of(onnx.load(tmp_path / "made.onnx")).inputs
    assert [spec.model_copy(update={"shape": (-1, 1)}) for spec in specs] == list(SPECS)
    actual = onnx_models.answer(onnx_models.session(tmp_path / "made.onnx"), feeds(asked, specs))
    assert list(actual) == list(expected) == (["label", "probabilities"] if "class" in how else ["variable"])
    for name, array in expected.items():
        np.testing.assert_allclose(np.asarray(actual[name]).reshape(array.shape), array, rtol=1e-4, atol=1e-4)
    assert len(np.unique(next(reversed(expected.values())))) > 5


@pytest.mark.parametrize("how", ["lightgbm classifier", pytest.param("lightgbm booster", marks=pytest.mark.slow)])
def test_lightgbm_in_fp64_has_the_thresholds_and_sums_of_the_model(tmp_path: Path, how: str) -> None:
    frame, _ = houses()
    original = loaders.load(tmp_path / "model", saved(how, tmp_path / "model"), SPECS, (), tabular=True)
    told = {column.input: column for column in original.facts(SPECS, inputs(frame)).columns}
    asked = inputs(frame.sample(3 * len(told["age"].thresholds), replace=True, random_state=0))
    edges = np.array(told["age"].thresholds)
    asked["age"] = np.concatenate([edges, np.nextafter(edges, np.inf), np.nextafter(edges, 0)]).reshape(-1, 1)
    graphs.save(original.to_double(20), tmp_path / "double.onnx")
    actual = onnx_models.answer(onnx_models.session(tmp_path / "double.onnx"), asked)
    for name, array in original.answer(asked).items():
        np.testing.assert_allclose(np.asarray(actual[name]).reshape(array.shape), array, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("flavor", ["lightgbm", "xgboost"])
def test_a_booster_of_two_classes_answers_the_second_s_probability_first(tmp_path: Path, flavor: str) -> None:
    import lightgbm
    import mlflow
    import xgboost

    x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    high = (x[:, 0] > x[:, 1]).astype(int)
    if flavor == "lightgbm":
        model: Any = lightgbm.train({"objective": "binary", "verbose": -1}, lightgbm.Dataset(x, high), 5)
        expected = model.predict(x)
    else:
        model = xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(x, high), 5)
        expected = model.predict(xgboost.DMatrix(x))
    getattr(mlflow, flavor).save_model(model, str(tmp_path / "model"), pip_requirements=[])
    original = loaders.load(tmp_path / "model", flavor, (tensor("x", -1, 3),), (), tabular=False)
    graphs.save(original.to_onnx({"x": x}, 20, tmp_path), tmp_path / "made.onnx")
    for answers in (
        original.answer({"x": x}),
        onnx_models.answer(onnx_models.session(tmp_path / "made.onnx"), {"x": x}),
    ):
        assert set(answers) == {"probability", "label", "probabilities"}
        np.testing.assert_allclose(np.ravel(answers["probability"]), expected, atol=1e-6)


def test_the_answers_are_those_of_the_model_on_its_own_frame(tmp_path: Path) -> None:
    import mlflow

    frame, _ = houses()
    saved("lightgbm classifier", tmp_path / "model")
    model = mlflow.lightgbm.load_model(str(tmp_path / "model"))
    original = loaders.load(tmp_path / "model", "lightgbm", SPECS, (), tabular=True)
    np.testing.assert_allclose(original.answer(inputs(frame))["probabilities"], model.predict_proba(frame), atol=1e-6)


def test_a_column_named_as_an_output_is_refused(tmp_path: Path) -> None:
    import lightgbm
    import mlflow

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"variable": rng.normal(size=99), "x": rng.normal(size=99)})
    model = lightgbm.train({"verbose": -1}, lightgbm.Dataset(frame, frame["x"]), 2)
    mlflow.lightgbm.save_model(model, str(tmp_path / "model"), pip_requirements=[])
    specs = (tensor("variable", -1, 1, datatype="FP64"), tensor("x", -1, 1, datatype="FP64"))
    original = loaders.load(tmp_path / "model", "lightgbm", specs, (), tabular=True)
    with pytest.raises(ExportFailed, match="'variable' has the name of an output"):
        original.to_onnx({}, 20, tmp_path)


def test_a_signature_of_other_data_is_refused(tmp_path: Path) -> None:
    saved("lightgbm classifier", tmp_path / "model")
    texts = tuple(tensor(name, -1, 1, datatype="BYTES") for name in ("zip code", "garden"))
    for specs, tabular, message in (
        (SPECS[:2], False, "2 tensors were logged"),
        ((*SPECS[:3], *texts), True, "2 categorical columns, its signature has 3: city, zip code, garden"),
    ):
        with pytest.raises(ExportFailed, match=message):
            loaders.load(tmp_path / "model", "lightgbm", specs, (), tabular=tabular)


@pytest.mark.parametrize("kind", ["booster", "classifier"])
def test_lightgbm_s_graph_is_right_for_float32_on_both_sides_of_every_threshold(tmp_path: Path, kind: str) -> None:
    import lightgbm
    import mlflow

    x = np.random.default_rng(0).normal(size=(400, 2)).astype(np.float32)
    options: dict[str, Any] = {"n_estimators": 20, "n_jobs": 1, "verbose": -1}
    if kind == "booster":
        model: Any = lightgbm.train(options, lightgbm.Dataset(x, x[:, 0] * x[:, 1]))
    else:
        model = lightgbm.LGBMClassifier(**options).fit(x, (x[:, 0] * x[:, 1] > 0).astype(int))
    mlflow.lightgbm.save_model(model, str(tmp_path / "model"), pip_requirements=[])
    specs = (tensor("x", -1, 2),)
    original = loaders.load(tmp_path / "model", "lightgbm", specs, (), tabular=False)
    thresholds = [np.array(column.thresholds) for column in original.facts(specs, {"x": x}).columns]
    near = [np.concatenate([np.nextafter(np.float32(each), np.float32(way)) for way in (-9, 9)]) for each in thresholds]
    asked = np.repeat(x, 20, axis=0)
    for at in (0, 1):
        asked[at::2, at] = np.resize(np.concatenate([near[at], np.float32(thresholds[at])]), len(asked[at::2]))
    graphs.save(original.to_onnx({"x": x}, 20, tmp_path), tmp_path / "made.onnx")
    served = list(onnx_models.answer(onnx_models.session(tmp_path / "made.onnx"), {"x": asked}).values())[-1]
    right = list(original.answer({"x": asked}).values())[-1]
    np.testing.assert_allclose(served.reshape(right.shape), right, atol=1e-5)


@pytest.mark.parametrize("how", ["binary", "texts", "multi", "value", "values", "frame"])
def test_catboost_answers_in_onnx_as_it_does_itself(tmp_path: Path, how: str) -> None:
    import catboost
    import mlflow

    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    high = x[:, 0] + x[:, 1] > 0
    targets = {"binary": high.astype(int), "texts": np.where(high, "yes", "no"), "multi": np.digitize(x[:, 0], [-1, 1])}
    kind = catboost.CatBoostClassifier if how in targets else catboost.CatBoostRegressor
    frame = pd.DataFrame({name: x[:, at].astype(np.float64) for at, name in enumerate("abcd")})
    loss = {"loss_function": "MultiRMSE"} if how == "values" else {}
    model = kind(iterations=8, verbose=0, allow_writing_files=False, **loss)
    numbers = np.stack([x[:, 0] * 3e5, x[:, 1]], axis=1) if how == "values" else x[:, 0] * 3
    model.fit(frame if how == "frame" else x, targets.get(how, numbers))
    mlflow.catboost.save_model(model, str(tmp_path / "model"), pip_requirements=[])
    specs = tuple(tensor(name, -1, 1, datatype="FP64") for name in "abcd") if how == "frame" else (tensor("x", -1, 4),)
    asked = {name: np.array(frame[name]).reshape(-1, 1) for name in frame} if how == "frame" else {"x": x}
    original = loaders.load(tmp_path / "model", "catboost", specs, (), tabular=how == "frame")
    assert any(column.thresholds for column in original.facts(specs, asked).columns)
    expected = original.answer(asked)
    graphs.save(original.to_onnx(asked, 20, tmp_path), tmp_path / "made.onnx")
    inputs_ = onnx_models.signature_of(onnx.load(tmp_path / "made.onnx")).inputs
    actual = onnx_models.answer(onnx_models.session(tmp_path / "made.onnx"), feeds(asked, inputs_))
    assert list(actual) == list(expected) == (["label", "probabilities"] if how in targets else ["variable"])
    for name, array in expected.items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-4)
        else:
            assert (
                actual[name].tolist()
                == array.tolist()
                == model.predict(x if how != "frame" else frame).ravel().tolist()
            )


def test_catboost_with_categorical_features_is_refused_by_name(tmp_path: Path) -> None:
    import catboost
    import mlflow

    frame, price = houses()
    frame = frame[["age", "city"]]
    model = catboost.CatBoostRegressor(iterations=3, verbose=0, allow_writing_files=False, cat_features=["city"])
    mlflow.catboost.save_model(model.fit(frame, price), str(tmp_path / "model"), pip_requirements=[])
    with pytest.raises(ExportFailed, match="categorical features as ONNX: city"):
        loaders.load(tmp_path / "model", "catboost", SPECS[:2], (), tabular=True)


@pytest.mark.parametrize("city", ["Köln", "ü"])  # as the last category, half a letter is left of ü
def test_categories_that_xgboost_cuts_are_refused(tmp_path: Path, city: str) -> None:
    import mlflow.xgboost
    import xgboost

    frame, price = houses()
    frame["city"] = frame["city"].cat.rename_categories({"Bonn": city})
    model = xgboost.XGBRegressor(enable_categorical=True, n_estimators=2).fit(frame, price)
    mlflow.xgboost.save_model(model, str(tmp_path / "model"), pip_requirements=[])
    with pytest.raises(ExportFailed, match="beyond ASCII: of the column 'city' the model has"):
        loaders.load(tmp_path / "model", "xgboost", SPECS, (), tabular=True)


def test_a_graph_of_trees_alone_takes_fp64_inputs_too(tmp_path: Path) -> None:
    import mlflow.xgboost
    import xgboost

    rows = np.random.default_rng(0).normal(size=(60, 3))
    model = xgboost.XGBRegressor(n_estimators=2).fit(rows, rows[:, 0])
    mlflow.xgboost.save_model(model, str(tmp_path / "model"), pip_requirements=[])
    original = loaders.load(tmp_path / "model", "xgboost", (tensor("x", -1, 3, datatype="FP64"),), (), tabular=False)
    graph = double_graphs.with_wide_inputs(original.to_onnx({"x": rows}, 18, tmp_path), ["x"])
    graphs.save(graph, tmp_path / "made.onnx")
    answers = onnx_models.answer(onnx_models.session(tmp_path / "made.onnx"), {"x": rows})
    np.testing.assert_allclose(answers["variable"], original.answer({"x": rows})["variable"], rtol=1e-4)
