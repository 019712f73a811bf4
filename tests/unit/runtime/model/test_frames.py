"""scikit-learn's models of data frames as graphs: logged as MLflow's documentation does, and asked fresh rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_selector
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest, RandomForestClassifier, VotingRegressor
from sklearn.feature_selection import RFE
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler

from benchmarks.zoo.export_only import column
from benchmarks.zoo.exporting import export
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.guest.python.pyfunc import Model
from shiplift.runtime.guest.python.values import MISSING
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.contracts import read_model
from shiplift.runtime.model.conversion import loaders
from shiplift.runtime.model.conversion.sklearn_missing import as_sent
from shiplift.runtime.model.tensors import Arrays

RNG = np.random.default_rng(0)
NUMBERS = ["age", "height (cm)", "visits"]


def people(count: int = 240) -> pd.DataFrame:
    """Numbers, of which some ages are missing, texts, integers that mean categories, and booleans."""
    age = RNG.uniform(0, 90, count)
    return pd.DataFrame(
        {
            "age": np.where(RNG.random(count) < 0.1, np.nan, age),
            "city": RNG.choice(["Ulm", "Berlin", "Rom"], count),
            "height (cm)": RNG.normal(170, 9, count),
            "visits": RNG.integers(0, 9, count),
            "zip/code": RNG.choice([89073, 10115, 53111], count),
            "member": RNG.random(count) > 0.5,
        }
    )


def prepared(*, remainder: Any = "drop") -> ColumnTransformer:
    """The usual preparation of such a table, in another order than its columns'."""
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    encode = OneHotEncoder(handle_unknown="ignore")
    return ColumnTransformer(
        [("categories", encode, ["zip/code", "city"]), ("numbers", numbers, ["visits", "age"])], remainder=remainder
    )


def models() -> Iterator[tuple[str, Any, Any]]:
    """Fitted models of the frames that they come with."""
    features, species = load_iris(return_X_y=True, as_frame=True)
    yield "iris, as documented", LogisticRegression(max_iter=500).fit(features, species), features
    frame = people()
    full = frame[NUMBERS].fillna(40)
    dear = (full["age"] + 20 * (frame["city"] == "Rom") > 60).astype(int)
    price = full["age"] * 2 + frame["visits"] + 1
    both = np.column_stack([dear, full["visits"] > 4]).astype(int)
    kinds = ColumnTransformer(
        [
            ("texts", OrdinalEncoder(), make_column_selector(dtype_include=[object, "str"])),
            ("numbers", SimpleImputer(), make_column_selector(dtype_include=np.number)),
        ]
    )
    targets = TransformedTargetRegressor(Ridge(), func=np.log1p, inverse_func=np.expm1)
    union = FeatureUnion([("all", prepared()), ("few", ColumnTransformer([("flag", "passthrough", ["member"])]))])
    voting = VotingRegressor([("one", make_pipeline(prepared(), Ridge())), ("two", make_pipeline(kinds, Ridge()))])
    yield "numbers, some of them integers", LogisticRegression(max_iter=999).fit(full, dear), full
    yield "columns by name", make_pipeline(prepared(), LogisticRegression(max_iter=999)).fit(frame, dear), frame
    yield (
        "the other columns",
        make_pipeline(prepared(remainder="passthrough"), Ridge()).fit(frame.fillna(1), price),
        frame.fillna(1),
    )
    yield "columns by type", make_pipeline(kinds, Ridge()).fit(frame, price), frame
    yield (
        "a search",
        GridSearchCV(make_pipeline(prepared(), Ridge()), {"ridge__alpha": [1, 2]}).fit(frame, price),
        frame,
    )
    yield "a search for features", make_pipeline(prepared(), RFE(LogisticRegression())).fit(frame, dear), frame
    yield "a union", make_pipeline(union, Ridge()).fit(frame, price), frame
    yield "a vote", voting.fit(frame, price), frame
    yield "a target", make_pipeline(prepared(), targets).fit(frame, price), frame
    yield (
        "a target around it",
        TransformedTargetRegressor(make_pipeline(prepared(), Ridge()), transformer=StandardScaler()).fit(frame, price),
        frame,
    )
    yield "a function", make_pipeline(FunctionTransformer(np.log1p), LinearRegression()).fit(full, price), full
    yield "several labels", KNeighborsClassifier().fit(full, both), full
    yield "a forest", RandomForestClassifier(3, random_state=0).fit(full, dear), full
    yield "a forest of several labels", RandomForestClassifier(3, random_state=0).fit(full, both), full
    yield "several classifiers", MultiOutputClassifier(LogisticRegression(max_iter=999)).fit(full, both), full
    yield "several targets", MultiOutputRegressor(Ridge()).fit(full, np.column_stack([price, full["visits"]])), full
    yield "outliers", make_pipeline(StandardScaler(), IsolationForest(n_estimators=20, random_state=0)).fit(full), full
    yield "clusters", make_pipeline(prepared(), KMeans(3, random_state=0, n_init=1)).fit(frame), frame


def saved(model: Any, frame: Any, folder: Path, **options: Any) -> Any:
    """A model saved as MLflow's documentation does, as its loader sees it, and its contract."""
    import mlflow

    mlflow.sklearn.save_model(
        model, str(folder), input_example=frame.head(40), pip_requirements=[], serialization_format="pickle", **options
    )
    logged = read_model(folder)
    inputs, outputs = logged.signature.inputs, logged.signature.outputs
    return loaders.load(folder, logged.flavor, inputs, outputs, tabular=logged.tabular), logged


def served(original: Any, logged: Any, frame: Any, folder: Path) -> Arrays:
    """What the graph answers to a frame as clients send it."""
    graph = original.to_onnx(logged.example, 18, folder)
    return onnx_models.answer(onnx_models.session(graph.SerializeToString()), sent(frame, logged))


def sent(frame: Any, logged: Any) -> Arrays:
    return {spec.name: column(frame[spec.name], spec) for spec in logged.signature.inputs}


def test_frames_of_many_shapes_become_graphs(tmp_path: Path) -> None:
    for number, (name, model, frame) in enumerate(models()):
        original, logged = saved(model, frame, tmp_path / str(number))
        answers = served(original, logged, frame, tmp_path)
        first = next(iter(answers.values()))
        expected = model.predict(frame)
        np.testing.assert_allclose(first.reshape(expected.shape), expected, rtol=1e-3, atol=1e-3, err_msg=name)
        assert len(answers) == len(original.answer(sent(frame, logged))), name
        assert not any("/" in output for output in answers), name


@pytest.mark.slow
def test_the_iris_example_of_the_documentation_is_proved_as_a_graph(tmp_path: Path) -> None:
    import mlflow

    features, species = load_iris(return_X_y=True, as_frame=True)
    model = LogisticRegression(max_iter=500).fit(features, species)
    mlflow.sklearn.save_model(model, str(tmp_path / "model"), input_example=features, pip_requirements=[])
    assert (tmp_path / "model" / "model.skops").is_file()  # MLflow's default
    graph = export(tmp_path / "model", tmp_path / "work", pickle="refuse")
    assert [spec.name for spec in graph.inputs] == list(features.columns)
    fresh = features + np.random.default_rng(0).normal(scale=0.3, size=features.shape)
    answers = graph.answer({spec.name: column(fresh[spec.name], spec) for spec in graph.inputs})
    np.testing.assert_array_equal(answers["label"], model.predict(fresh))
    np.testing.assert_allclose(answers["probabilities"], model.predict_proba(fresh), atol=1e-4)


def test_missing_values_are_filled_in_fp64_too(tmp_path: Path) -> None:
    frame = people()
    model = make_pipeline(prepared(), Ridge()).fit(frame, frame["visits"] * 2.0)
    original, logged = saved(model, frame, tmp_path / "model")
    original.to_onnx(logged.example, 18, tmp_path)
    session = onnx_models.session(original.to_double(18).SerializeToString())
    answers = onnx_models.answer(session, sent(frame, logged))
    np.testing.assert_allclose(answers["variable"].ravel(), model.predict(frame), rtol=1e-6)


def test_the_method_that_pyfunc_calls_comes_first(tmp_path: Path) -> None:
    frame = people()
    dear = frame["city"] == "Rom"
    model = make_pipeline(prepared(), RandomForestClassifier(5, random_state=0)).fit(frame, dear)
    plain = make_pipeline(prepared(), LogisticRegression()).fit(frame, dear)
    for number, (fitted, method, name) in enumerate(
        [
            (model, "predict", "label"),
            (model, "predict_proba", "probabilities"),
            (plain, "predict_log_proba", "log_probabilities"),
        ]
    ):
        original, logged = saved(fitted, frame, tmp_path / str(number), pyfunc_predict_fn=method)
        answers, asked = served(original, logged, frame, tmp_path), original.answer(sent(frame, logged))
        assert next(iter(asked)) == name
        np.testing.assert_allclose(asked[name], getattr(fitted, method)(frame), rtol=1e-4)
        np.testing.assert_allclose(answers[name], asked[name], atol=1e-4)


@pytest.mark.parametrize("fitted", [LogisticRegression(), RandomForestClassifier(5, random_state=0)])
def test_a_classifier_of_booleans_answers_booleans(fitted: Any, tmp_path: Path) -> None:
    frame = people()
    model = make_pipeline(prepared(), fitted).fit(frame, frame["city"] == "Rom")
    original, logged = saved(model, frame, tmp_path / "model")
    answers = served(original, logged, frame, tmp_path)
    assert answers["label"].dtype == np.bool_
    np.testing.assert_array_equal(answers["label"], model.predict(frame))
    original.to_onnx(logged.example, 18, tmp_path)
    double = onnx_models.session(original.to_double(18).SerializeToString())
    assert onnx_models.answer(double, sent(frame, logged))["label"].dtype == np.bool_


def test_a_score_of_all_rows_is_no_answer_to_each(tmp_path: Path) -> None:
    frame = people()[["visits"]]
    model = LogisticRegression().fit(frame, frame["visits"] > 4)
    with pytest.raises(ExportFailed, match=r"rates all rows with one number"):
        saved(model, frame, tmp_path / "model", pyfunc_predict_fn="score")


def test_a_method_that_pyfunc_cannot_call_is_refused_by_name(tmp_path: Path) -> None:
    frame = people()[["visits"]]
    model = LogisticRegression().fit(frame, frame["visits"] > 4)
    with pytest.raises(ExportFailed, match=r"'decision_function'`, which mlflow\.pyfunc can't call"):
        saved(model, frame, tmp_path / "model", pyfunc_predict_fn="decision_function")


def test_a_model_that_only_transforms_is_asked_to(tmp_path: Path) -> None:
    from mlflow.models import infer_signature

    frame = people()
    for number, model in enumerate((prepared().fit(frame), make_pipeline(prepared(), PCA(3)).fit(frame))):
        signature = infer_signature(frame, np.asarray(model.transform(frame)))
        original, logged = saved(model, frame, tmp_path / str(number), signature=signature)
        answers = served(original, logged, frame, tmp_path)
        np.testing.assert_allclose(next(iter(answers.values())), model.transform(frame), atol=1e-4)


def test_boosters_inside_a_pipeline_become_part_of_its_graph(tmp_path: Path) -> None:
    import catboost
    import lightgbm
    import xgboost

    frame, quiet = people(), {"verbose": 0, "allow_writing_files": False}
    dear, price = (frame["city"] == "Rom").astype(int), frame["visits"] * 2.0 + frame["member"]
    for number, model in enumerate(
        (
            lightgbm.LGBMClassifier(n_estimators=5, verbose=-1),
            lightgbm.LGBMRegressor(n_estimators=5, verbose=-1),
            xgboost.XGBClassifier(n_estimators=5),
            xgboost.XGBRegressor(n_estimators=5),
            catboost.CatBoostClassifier(iterations=5, **quiet),
            catboost.CatBoostRegressor(iterations=5, **quiet),
        )
    ):
        target = dear if hasattr(model, "predict_proba") else price
        columns = [("categories", OneHotEncoder(), ["city"]), ("numbers", "passthrough", ["visits", "age", "member"])]
        fitted = make_pipeline(ColumnTransformer(columns), model).fit(frame, target)
        original, logged = saved(fitted, frame, tmp_path / str(number))
        answers = served(original, logged, frame, tmp_path)
        first = next(iter(answers.values())).reshape(-1)
        np.testing.assert_allclose(first, fitted.predict(frame), atol=1e-4, err_msg=str(model))


def test_columns_may_have_any_name_but_an_output_s(tmp_path: Path) -> None:
    names = ["x y", "größe", "a/b", "1", "features_0", "x", "-"]
    frame = pd.DataFrame(RNG.normal(size=(60, len(names))), columns=[*names])
    selecting = ColumnTransformer([("some", StandardScaler(), names[::-1])])
    for number, model in enumerate((Ridge(), make_pipeline(selecting, Ridge()))):
        fitted = model.fit(frame, frame["x y"] + frame["größe"])
        original, logged = saved(fitted, frame, tmp_path / str(number))
        answers = served(original, logged, frame, tmp_path)
        np.testing.assert_allclose(answers["variable"].ravel(), fitted.predict(frame), atol=1e-4)


def test_a_frame_of_a_thousand_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame(RNG.normal(size=(60, 1000)), columns=[f"gene {at}" for at in range(1000)])
    model = LogisticRegression().fit(frame, frame["gene 0"] > 0)
    original, logged = saved(model, frame, tmp_path / "model")
    answers = served(original, logged, frame, tmp_path)
    np.testing.assert_array_equal(answers["label"], model.predict(frame))


def test_missing_texts_are_a_category_or_imputed_in_the_graph_as_by_scikit_learn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"city": rng.choice(np.array(["Ulm", "Bonn", None], dtype=object), 90), "age": rng.normal(size=90)}
    )
    dear = (frame["age"] + frame["city"].isna() > 0.3).astype(int)
    encoder = OneHotEncoder(handle_unknown="ignore")
    imputed = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    for number, prepare in enumerate((encoder, imputed)):
        columns = ColumnTransformer([("texts", prepare, ["city"]), ("rest", "passthrough", ["age"])])
        model = make_pipeline(columns, LogisticRegression()).fit(frame, dear)
        original, logged = saved(model, frame, tmp_path / str(number))
        answers = served(original, logged, frame, tmp_path)
        np.testing.assert_allclose(answers["probabilities"], model.predict_proba(frame), rtol=1e-4)


def test_a_missing_text_is_the_one_that_the_encoder_learned(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number, missing in enumerate((None, np.nan)):
        city = rng.choice(np.array(["Ulm", "Bonn", missing], dtype=object), 90)
        frame = pd.DataFrame({"city": pd.Series(city, dtype=object), "age": rng.normal(size=90)})
        columns = ColumnTransformer(
            [("city", OneHotEncoder(handle_unknown="ignore"), ["city"])], remainder="passthrough"
        )
        dear = (frame["age"] + frame["city"].isna() > 0.3).astype(int)
        model = make_pipeline(columns, LogisticRegression()).fit(frame, dear)
        original, logged = saved(model, frame, tmp_path / str(number))
        expected = model.predict(frame)
        answers = [original.answer(sent(frame, logged)), served(original, logged, frame, tmp_path)]
        for answer in answers:
            np.testing.assert_array_equal(answer["label"], expected)
        pyfunc = Model({"model": str(tmp_path / str(number)), "outputs": []})
        np.testing.assert_array_equal(pyfunc.answer(sent(frame, logged))["output"], expected)


def test_an_ordinal_encoder_that_knows_missing_texts_is_left_as_it_is() -> None:
    texts = np.array([["a"], [np.nan]], dtype=object)
    encoder = OrdinalEncoder().fit(texts)
    assert as_sent(encoder) is encoder
    told = as_sent(OneHotEncoder().fit(texts))
    assert told.categories_[0].tolist() == ["a", MISSING]
