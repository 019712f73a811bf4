"""Part c: scikit-learn's estimators as people log them, on arrays and data frames."""

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.proof.case import Case, Form
from benchmarks.proof.cases.making import fitted, flats, numbers

_TREES: tuple[Form, ...] = ("graph", "trees")


def made(path: str, **settings: Any) -> Callable[[], Any]:
    """A constructor of scikit-learn, by module and class."""

    def make() -> Any:
        import importlib

        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(f"sklearn.{module}"), name)(**settings)

    return make


def piped(*makers: Callable[[], Any]) -> Callable[[], Any]:
    """A constructor of a pipeline."""

    def make() -> Any:
        from sklearn.pipeline import make_pipeline

        return make_pipeline(*(maker() for maker in makers))

    return make


def _columns(model: Callable[[], Any]) -> Callable[[], Any]:
    """Text columns one-hot, others scaled, then a model."""

    def make() -> Any:
        from sklearn.compose import ColumnTransformer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler

        encoder = OneHotEncoder(handle_unknown="ignore")
        prepare = ColumnTransformer(
            [("text", encoder, ["city"]), ("number", StandardScaler(), ["age", "rooms", "heated"])]
        )
        return make_pipeline(prepare, model())

    return make


def _around(path: str, make_inner: Callable[[], Any], **settings: Any) -> Callable[[], Any]:
    def make() -> Any:
        import importlib

        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(f"sklearn.{module}"), name)(make_inner(), **settings)

    return make


def _both() -> list[tuple[str, Any]]:
    tree = made("tree.DecisionTreeRegressor", max_depth=4, random_state=0)
    return [("ridge", made("linear_model.Ridge")()), ("tree", tree())]


def _stacked() -> Any:
    from sklearn.ensemble import StackingRegressor

    return StackingRegressor(_both(), cv=3)


def _voted() -> Any:
    from sklearn.ensemble import VotingRegressor

    return VotingRegressor(_both())


def _counts() -> Any:
    import numpy as np

    rows, targets = numbers()()
    return rows, np.round(np.exp(targets))


_case = partial(fitted, part="c", flavor="sklearn")
_SCALER = made("preprocessing.StandardScaler")
_THREE = numbers(classes=3)
_TWO = numbers(classes=2)
_FLOATS = numbers()

_CLASSIFIERS: dict[str, tuple[Callable[[], Any], str, tuple[Form, ...]]] = {
    "logistic": (piped(_SCALER, made("linear_model.LogisticRegression")), "logistic regression", ("graph",)),
    "sgd": (
        piped(_SCALER, made("linear_model.SGDClassifier", loss="log_loss", random_state=0)),
        "SGD with log loss",
        ("graph",),
    ),
    "linear-svc": (piped(_SCALER, made("svm.LinearSVC", random_state=0)), "linear SVC", ("graph",)),
    "svc": (piped(_SCALER, made("svm.SVC", random_state=0)), "SVC of 3 classes", ("graph",)),
    "bayes": (made("naive_bayes.GaussianNB"), "Gaussian naive Bayes", ("graph",)),
    "mlp": (
        piped(_SCALER, made("neural_network.MLPClassifier", hidden_layer_sizes=(16,), max_iter=60, random_state=0)),
        "a perceptron of 16",
        ("graph",),
    ),
    "lda": (made("discriminant_analysis.LinearDiscriminantAnalysis"), "linear discriminants", ("graph",)),
    "qda": (made("discriminant_analysis.QuadraticDiscriminantAnalysis"), "quadratic discriminants", ("graph",)),
    "tree": (made("tree.DecisionTreeClassifier", max_depth=6, random_state=0), "a tree", _TREES),
    "forest": (made("ensemble.RandomForestClassifier", n_estimators=25, random_state=0), "a forest", _TREES),
    "extra-trees": (made("ensemble.ExtraTreesClassifier", n_estimators=25, random_state=0), "extra trees", _TREES),
    "boosting": (made("ensemble.GradientBoostingClassifier", n_estimators=20, random_state=0), "boosting", _TREES),
    "hist-boosting": (
        made("ensemble.HistGradientBoostingClassifier", max_iter=20, random_state=0),
        "histogram boosting",
        _TREES,
    ),
    "ada": (made("ensemble.AdaBoostClassifier", n_estimators=20, random_state=0), "AdaBoost", ("graph", "python")),
    "bagging": (
        made("ensemble.BaggingClassifier", n_estimators=8, random_state=0),
        "bagged trees",
        ("graph", "trees", "python"),
    ),
    "neighbours": (
        piped(_SCALER, made("neighbors.KNeighborsClassifier", n_neighbors=5)),
        "5 nearest neighbours",
        ("graph", "python"),
    ),
    "one-vs-rest": (
        _around("multiclass.OneVsRestClassifier", made("linear_model.LogisticRegression")),
        "one against the rest",
        ("graph",),
    ),
    "calibrated": (
        _around("calibration.CalibratedClassifierCV", made("linear_model.LogisticRegression"), cv=3),
        "a calibrated classifier",
        ("graph",),
    ),
}
_REGRESSORS: dict[str, tuple[Callable[[], Any], str, tuple[Form, ...]]] = {
    "linear": (made("linear_model.LinearRegression"), "least squares", ("graph",)),
    "ridge": (made("linear_model.Ridge"), "ridge", ("graph",)),
    "lasso": (made("linear_model.Lasso", alpha=0.01), "lasso", ("graph",)),
    "bayesian": (made("linear_model.BayesianRidge"), "Bayesian ridge", ("graph",)),
    "huber": (made("linear_model.HuberRegressor", max_iter=500), "Huber", ("graph",)),
    "polynomial": (
        piped(_SCALER, made("preprocessing.PolynomialFeatures"), made("linear_model.Ridge")),
        "ridge on products",
        ("graph",),
    ),
    "pca": (
        piped(_SCALER, made("decomposition.PCA", n_components=3), made("linear_model.Ridge")),
        "ridge on principal components",
        ("graph",),
    ),
    "pls": (made("cross_decomposition.PLSRegression"), "partial least squares", ("graph",)),
    "svr": (piped(_SCALER, made("svm.SVR")), "SVR", ("graph",)),
    "process": (
        piped(_SCALER, made("gaussian_process.GaussianProcessRegressor", alpha=0.1)),
        "a Gaussian process",
        ("graph", "python"),
    ),
    "tree-regressor": (made("tree.DecisionTreeRegressor", max_depth=6, random_state=0), "a tree", _TREES),
    "forest-regressor": (
        made("ensemble.RandomForestRegressor", n_estimators=25, random_state=0),
        "a forest",
        _TREES,
    ),
    "boosting-regressor": (
        made("ensemble.GradientBoostingRegressor", n_estimators=30, random_state=0),
        "boosting",
        _TREES,
    ),
    "hist-boosting-regressor": (
        made("ensemble.HistGradientBoostingRegressor", max_iter=30, random_state=0),
        "histogram boosting",
        _TREES,
    ),
    "mlp-regressor": (
        piped(_SCALER, made("neural_network.MLPRegressor", hidden_layer_sizes=(16,), max_iter=80, random_state=0)),
        "a perceptron of 16",
        ("graph",),
    ),
    "neighbours-regressor": (
        piped(_SCALER, made("neighbors.KNeighborsRegressor", n_neighbors=5)),
        "5 nearest neighbours",
        ("graph", "python"),
    ),
    "stacking": (
        _stacked,
        "a stack of ridge and a tree",
        ("graph", "python"),
    ),
    "voting": (_voted, "the mean of ridge and a tree", ("graph", "python")),
}


RIGHT_SKLEARN: tuple[Case, ...] = (
    *(
        _case(f"sklearn-{name}", about=about, make=make, data=_THREE, classifies=True, forms=forms)
        for name, (make, about, forms) in _CLASSIFIERS.items()
    ),
    *(
        _case(f"sklearn-{name}", about=about, make=make, data=_FLOATS, forms=forms)
        for name, (make, about, forms) in _REGRESSORS.items()
    ),
    _case(
        "sklearn-forest-binary",
        about="a forest of two classes",
        make=made("ensemble.RandomForestClassifier", n_estimators=31, random_state=0),
        data=_TWO,
        classifies=True,
        forms=_TREES,
    ),
    _case(
        "sklearn-poisson",
        about="Poisson regression on counts",
        make=piped(_SCALER, made("linear_model.PoissonRegressor")),
        data=_counts,
    ),
    _case(
        "sklearn-isolation",
        about="an isolation forest",
        make=made("ensemble.IsolationForest", n_estimators=25, random_state=0),
        data=_FLOATS,
        forms=_TREES,
    ),
    _case(
        "sklearn-kmeans",
        about="5 means",
        make=piped(_SCALER, made("cluster.KMeans", n_clusters=5, n_init=2, random_state=0)),
        data=_FLOATS,
    ),
    _case(
        "sklearn-frame-logistic",
        about="one-hot and scaled columns, logistic regression",
        make=_columns(made("linear_model.LogisticRegression")),
        data=flats(),
        classifies=True,
    ),
    _case(
        "sklearn-frame-ridge",
        about="one-hot and scaled columns, ridge",
        make=_columns(made("linear_model.Ridge")),
        data=flats(classes=False),
    ),
    _case(
        "sklearn-frame-mlp",
        about="one-hot and scaled columns, a perceptron",
        make=_columns(made("neural_network.MLPClassifier", hidden_layer_sizes=(8,), max_iter=60, random_state=0)),
        data=flats(),
        classifies=True,
    ),
)
