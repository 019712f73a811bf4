"""Generated cases: every estimator of scikit-learn that predicts or transforms, on each kind of input that it takes.

A case is called `sklearn/ESTIMATOR/INPUT`. The estimator is fitted and logged by the plainest documented calls.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.case import Case, Logged

INPUTS = ("array", "frame", "mixed", "sparse")
_ROWS, _FRESH, _SEED = 150, 200, 7
_NAMES = ("sepal length (cm)", "sepal width (cm)", "petal length (cm)", "petal width (cm)", "leaves")


class Impossible(Exception):
    """scikit-learn or MLflow themselves do not take such a model or input."""


def estimators() -> Iterator[tuple[str, Callable[[], Any]]]:
    """The name of each estimator that predicts or transforms, and how it is made."""
    from sklearn.utils import all_estimators

    for name, kind in all_estimators():
        if hasattr(kind, "predict") or hasattr(kind, "transform"):
            yield name, partial(_made, kind)


def _made(kind: Any) -> Any:
    from sklearn.utils._test_common.instance_generator import _construct_instances

    made = next(iter(_construct_instances(kind)))
    if "random_state" in made.get_params(deep=False):
        made.set_params(random_state=0)
    return made


def cases() -> tuple[Case, ...]:
    """All cases, estimator by estimator."""
    return tuple(
        Case(
            name=f"sklearn/{name}/{kind}",
            flavor="sklearn",
            about=f"{name} from {kind}",
            build=partial(_built, make, kind),
            input=kind,
        )
        for name, make in estimators()
        for kind in INPUTS
    )


def _built(make: Callable[[], Any], kind: str, _: Path) -> Logged:
    """An estimator, fitted on the first rows; it will be asked the rest.

    Raises:
        Impossible: it can't be fitted on such data.
    """
    estimator = make()
    data, target = _data(kind, estimator)
    estimator = _behind_columns(estimator) if kind == "mixed" else estimator
    try:
        known = rows(data, slice(0, _ROWS))
        fitted = estimator.fit(known, None if target is None else target[:_ROWS])
        return logged(fitted, known, rows(data, slice(_ROWS, None)))
    except Exception as error:
        raise Impossible(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


def logged(fitted: Any, known: Any, fresh: Any, **options: Any) -> Logged:
    """A fitted estimator as MLflow's documentation logs it; `fresh` rows are asked."""
    import mlflow
    from mlflow.models import infer_signature

    method = options.get("pyfunc_predict_fn") or ("predict" if hasattr(fitted, "predict") else "transform")
    example, ask = rows(known, slice(0, 40)), getattr(fitted, method)
    told = method != "predict" or (hasattr(example, "columns") and "category" in example.dtypes.astype(str).tolist())
    fresh = sent(fresh)
    given = {
        "input_example": example,
        "pip_requirements": [],
        "serialization_format": "cloudpickle",
        **({"signature": infer_signature(example, dense(ask(example)))} if told else {}),
        **options,
    }
    return Logged(
        log=partial(mlflow.sklearn.log_model, fitted, **given),
        save=partial(mlflow.sklearn.save_model, fitted, **given),
        inputs={},
        question=fresh,
        original=None if method.startswith("predict") else {"": dense(ask(fresh))},
    )


def rows(data: Any, chosen: slice) -> Any:
    """Some rows of a frame, an array or a sparse matrix."""
    return data.iloc[chosen] if hasattr(data, "iloc") else data[chosen]


def sent(data: Any) -> Any:
    """Rows as clients send them: with texts in place of categories, for pyfunc takes no others; a sparse matrix dense.

    No protocol carries a sparse one. scikit-learn itself answers otherwise to it where neighbours are equally near.
    """
    if not hasattr(data, "columns"):
        return dense(data)
    return data.astype({name: object for name in data.columns if str(data[name].dtype) == "category"})


def dense(answers: Any) -> Any:
    """Answers as an array, (rows, ...)."""
    return answers.toarray() if hasattr(answers, "toarray") else np.asarray(answers)


# --- data ------------------------------------------------------------------------------------------------------------


def _data(kind: str, estimator: Any) -> tuple[Any, Any]:
    """Data of a kind that fits the estimator's tags, and a target."""
    from sklearn.utils import get_tags
    from sklearn.utils.estimator_checks import _enforce_estimator_tags_X, _enforce_estimator_tags_y

    rng = np.random.default_rng(_SEED)
    count, tags = _ROWS + _FRESH, get_tags(estimator)
    classes = rng.integers(0, 3, count)
    numbers = rng.normal(size=(count, 5)) + classes[:, None] * [1.5, -1, 0.5, 1, 0]
    target = (
        classes
        if tags.estimator_type in ("classifier", None)
        else numbers @ [1.0, 2, 3, 0.5, 0] + rng.normal(size=count)
    )
    if tags.estimator_type is None and not tags.target_tags.required:
        target = classes
    if tags.input_tags.one_d_array or tags.input_tags.string:
        raise Impossible("it takes no table")
    numbers = _enforce_estimator_tags_X(estimator, numbers)
    target = np.asarray(_enforce_estimator_tags_y(estimator, target))
    if kind == "sparse":
        return _sparse(rng, classes), target
    if kind == "mixed":
        return _mixed(rng, numbers), target
    return (numbers if kind == "array" else _frame(numbers)), target


def _frame(numbers: Any) -> Any:
    """Four columns of doubles, named as in iris, and one of integers."""
    import pandas as pd

    frame = pd.DataFrame(numbers, columns=[*_NAMES[: numbers.shape[1]]])
    last = frame.columns[-1]
    return frame.assign(**{last: np.round(3 * frame[last]).astype(np.int64)})


def _mixed(rng: np.random.Generator, numbers: Any) -> Any:
    """Texts, categories, booleans and numbers, some of them missing."""
    import pandas as pd

    count = len(numbers)
    age = np.where(rng.random(count) < 0.1, np.nan, 40 + 9 * numbers[:, 0])
    return pd.DataFrame(
        {
            "age": age,
            "height (cm)": 170 + 9 * numbers[:, 1],
            "visits": rng.integers(0, 9, count),
            "city": rng.choice(["Ulm", "Berlin", "Rom"], count),
            "plan": pd.Categorical(rng.choice(["basic", "pro"], count)),
            "member": numbers[:, 2] > 0,
        }
    )


def _sparse(rng: np.random.Generator, classes: Any) -> Any:
    """Counts of 12 words, most of them zero."""
    import scipy.sparse

    counts = rng.poisson(0.2 + 0.5 * (classes[:, None] == np.arange(12) % 3), (len(classes), 12))
    return scipy.sparse.csr_matrix(counts.astype(np.float64))


def _behind_columns(estimator: Any) -> Any:
    """The estimator behind the usual preparation of a table."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler
    from sklearn.utils import get_tags

    scaler = MinMaxScaler() if get_tags(estimator).input_tags.positive_only else StandardScaler()
    prepare = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), scaler), ["age", "height (cm)", "visits"]),
            ("categories", OneHotEncoder(handle_unknown="ignore"), ["city", "plan"]),
            ("flags", "passthrough", ["member"]),
        ],
        sparse_threshold=0,
    )
    return make_pipeline(prepare, estimator)
