"""Models of tables: scikit-learn, LightGBM, XGBoost, CatBoost, and Keras on rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.case import Case, Logged
from benchmarks.zoo.cases.data import TRUSTED, columns, digits, flats
from shiplift.runtime.model.tensors import Arrays


def label(prediction: Any) -> Arrays:
    """The classes that pyfunc predicts, under the name that production gives them."""
    return {"label": np.asarray(prediction)}


def sklearn_case(name: str, about: str, make: Callable[[], Any], *, classifies: bool = True, **fields: Any) -> Case:
    """An estimator fitted on 300 digits, logged in skops, which is MLflow's default."""

    def build(_: Path) -> Logged:
        import mlflow
        from mlflow.models import infer_signature

        rows, labels = digits()
        model = make().fit(rows[:300], labels[:300])
        asked = rows[400:432]
        signature = infer_signature(rows[:8], model.predict(rows[:8]))
        return Logged(
            log=lambda **options: mlflow.sklearn.log_model(
                model,
                signature=signature,
                input_example=rows[:8],
                pip_requirements=[],
                skops_trusted_types=TRUSTED,
                **options,
            ),
            question=asked,
            inputs={"input": asked},
            answer=label if classifies else None,
        )

    return Case(name=name, flavor="sklearn", about=about, build=build, **fields)


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=200)


def _pipeline() -> Any:
    from sklearn.decomposition import PCA
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), PCA(32), MLPClassifier((32,), max_iter=40, random_state=0))


def _forest() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(50, random_state=0)


def _neighbours() -> Any:
    from sklearn.neighbors import KNeighborsRegressor

    return KNeighborsRegressor(5)


def _ridge() -> Any:
    from sklearn.linear_model import Ridge

    return Ridge()


def _vectors() -> Any:
    from sklearn.svm import SVC

    return SVC(random_state=0)


def _columns(_: Path) -> Logged:
    import mlflow
    from mlflow.models import infer_signature
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    frame, dear = flats(categorical=False)
    prepare = ColumnTransformer([("text", OneHotEncoder(), ["city"]), ("number", StandardScaler(), ["age", "rooms"])])
    model = make_pipeline(prepare, LogisticRegression()).fit(frame, dear)
    asked = frame.iloc[50:82]
    signature = infer_signature(frame.head(), model.predict(frame.head()))
    return Logged(
        log=lambda **options: mlflow.sklearn.log_model(
            model,
            signature=signature,
            input_example=frame.head(),
            pip_requirements=[],
            skops_trusted_types=["numpy.dtype"],
            **options,
        ),
        question=asked,
        inputs=columns(asked),
        answer=label,
    )


def _pickled(_: Path) -> Logged:
    import mlflow

    rows, labels = digits()
    model = _logistic().fit(rows[:300], labels[:300])
    return Logged(
        log=lambda **options: mlflow.sklearn.log_model(
            model, input_example=rows[:8], serialization_format="cloudpickle", pip_requirements=[], **options
        ),
        inputs={},
    )


def _boosted(library: str, make: Callable[[Any, Any], Any], *, classifies: bool) -> Callable[[Path], Logged]:
    """A booster fitted on 300 digits as a matrix."""

    def build(_: Path) -> Logged:
        import mlflow
        from mlflow.models import infer_signature

        rows, labels = digits()
        model, asked = make(rows[:300], labels[:300]), rows[400:432]
        signature = infer_signature(rows[:8], labels[:8] if classifies else labels[:8].astype(np.float32))
        return Logged(
            log=lambda **options: getattr(mlflow, library).log_model(
                model, signature=signature, input_example=rows[:8], pip_requirements=[], **options
            ),
            question=asked,
            inputs={"input": asked},
            answer=label if classifies else None,
        )

    return build


def _lightgbm(rows: Any, targets: Any) -> Any:
    import lightgbm

    parameters = {"objective": "regression", "verbose": -1, "num_threads": 2}
    return lightgbm.train(parameters, lightgbm.Dataset(rows, targets), 50)


def _xgboost(rows: Any, targets: Any) -> Any:
    import xgboost

    return xgboost.XGBClassifier(n_estimators=20).fit(rows, targets)


def _frame(library: str, make: Callable[[Any, Any], Any], *, categorical: bool = True) -> Callable[[Path], Logged]:
    """A classifier fitted on a data frame, with a categorical column if the library is released with those.

    Its own answers are right: MLflow's pyfunc turns categories into text, which LightGBM and XGBoost don't take.
    """

    def build(_: Path) -> Logged:
        import mlflow
        from mlflow.models import infer_signature

        frame, dear = flats()
        frame = frame if categorical else frame[["age", "rooms"]]
        model, asked = make(frame, dear), frame.iloc[50:82]
        signature = infer_signature(frame.head(), model.predict(frame.head()))
        answers = {"label": np.asarray(model.predict(asked)), "probabilities": np.asarray(model.predict_proba(asked))}
        return Logged(
            log=lambda **options: getattr(mlflow, library).log_model(
                model, signature=signature, input_example=frame.head(20), pip_requirements=[], **options
            ),
            question=None if categorical else asked,
            inputs=columns(asked),
            answer=label,
            original=answers if categorical else None,
        )

    return build


def _lightgbm_frame(frame: Any, targets: Any) -> Any:
    import lightgbm

    return lightgbm.LGBMClassifier(n_estimators=20, verbose=-1).fit(frame, targets)


def _xgboost_frame(frame: Any, targets: Any) -> Any:
    import xgboost

    return xgboost.XGBClassifier(n_estimators=20, enable_categorical=True).fit(frame, targets)


def _catboost(frame: Any, targets: Any) -> Any:
    import catboost

    return catboost.CatBoostClassifier(iterations=20, verbose=0, allow_writing_files=False).fit(frame, targets)


def _keras(_: Path) -> Logged:
    import keras
    import mlflow
    from mlflow.models import infer_signature

    rows, labels = digits()
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10, activation="softmax")]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(rows[:300], labels[:300], epochs=2, verbose=0)
    signature = infer_signature(rows[:8], np.asarray(model(rows[:8])))
    return Logged(
        log=lambda **options: mlflow.tensorflow.log_model(
            model, signature=signature, input_example=rows[:8], pip_requirements=[], **options
        ),
        question=rows[400:432],
        inputs={"input": rows[400:432]},
    )


_CATBOOST = "pip install 'shiplift[catboost]'"
TABLES = (
    sklearn_case("sklearn-logistic", "logistic regression", _logistic),
    sklearn_case("sklearn-forest", "random forest of 50 trees", _forest),
    sklearn_case("sklearn-pipeline", "scaler, PCA and a neural network", _pipeline),
    sklearn_case("sklearn-svc", "support vector classifier", _vectors),
    sklearn_case("sklearn-ridge", "ridge regression", _ridge, classifies=False),
    sklearn_case("sklearn-neighbours", "regression on 5 nearest neighbours", _neighbours, classifies=False),
    Case(name="sklearn-columns", flavor="sklearn", about="pipeline on a data frame, one column text", build=_columns),
    Case(
        name="sklearn-cloudpickle",
        flavor="sklearn",
        about="logistic regression as a pickle",
        build=_pickled,
        right="refused",
        reason="pickle",
        why="a pickle can run code",
    ),
    Case(
        name="lightgbm-matrix",
        flavor="lightgbm",
        about="regression, 50 trees",
        build=_boosted("lightgbm", _lightgbm, classifies=False),
    ),
    Case(
        name="lightgbm-columns",
        flavor="lightgbm",
        about="classifier on a data frame, one column categorical",
        build=_frame("lightgbm", _lightgbm_frame),
    ),
    Case(
        name="xgboost-matrix",
        flavor="xgboost",
        about="classifier, 10 classes",
        build=_boosted("xgboost", _xgboost, classifies=True),
    ),
    Case(
        name="xgboost-columns",
        flavor="xgboost",
        about="classifier on a data frame, one column categorical",
        build=_frame("xgboost", _xgboost_frame),
    ),
    Case(
        name="catboost-columns",
        flavor="catboost",
        about="classifier on a data frame of numbers",
        build=_frame("catboost", _catboost, categorical=False),
        needs=("catboost",),
        install=_CATBOOST,
    ),
    Case(
        name="keras-dense",
        flavor="tensorflow",
        about="two dense layers",
        build=_keras,
        needs=("tensorflow", "keras"),
        install="pip install 'shiplift[keras]'",
    ),
)
