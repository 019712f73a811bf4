"""All models of parts a and c, and those of them whose exports are sabotaged."""

from benchmarks.proof.case import Case
from benchmarks.proof.cases.right_boosters import RIGHT_BOOSTERS
from benchmarks.proof.cases.right_networks import RIGHT_NETWORKS
from benchmarks.proof.cases.right_sklearn import RIGHT_SKLEARN
from benchmarks.proof.cases.right_texts import RIGHT_TEXTS
from benchmarks.proof.cases.wide_tables import WIDE_TABLES
from benchmarks.proof.cases.wrong_networks import WRONG_NETWORKS
from benchmarks.proof.cases.wrong_tables import WRONG_TABLES
from benchmarks.proof.cases.wrong_texts import WRONG_TEXTS

CASES: tuple[Case, ...] = (
    *RIGHT_SKLEARN,
    *RIGHT_BOOSTERS,
    *RIGHT_NETWORKS,
    *RIGHT_TEXTS,
    *WRONG_NETWORKS,
    *WRONG_TABLES,
    *WRONG_TEXTS,
    *WIDE_TABLES,
)

# A few of each family and engine, all small: a sabotage of a small model is no easier to find, and the proof runs once
# for each.
SABOTAGED = frozenset(
    {
        *("sklearn-logistic", "sklearn-bayes", "sklearn-mlp", "sklearn-ridge", "sklearn-svr", "sklearn-kmeans"),
        *("sklearn-tree", "sklearn-forest", "sklearn-hist-boosting", "sklearn-boosting-regressor", "sklearn-isolation"),
        *("sklearn-frame-logistic", "sklearn-frame-ridge", "a-tree-missing", "a-scaler-tree", "a-forest-ties"),
        *("lightgbm-regressor", "lightgbm-binary", "xgboost-regressor", "xgboost-binary", "catboost-classifier"),
        *("torch-mlp", "torch-batchnorm", "torch-cnn", "torch-lstm", "torch-attention", "torch-table", "torch-bag"),
        *("torch-double", "a-torch-hashed-ids", "a-torch-large-ids", "a-torch-outputs", "onnx-two-outputs"),
        *("text-classifier", "text-sentences", "image-classifier", "python-tensor", "python-frame"),
    }
)
