import functools
import math
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid, MissingTool
from shiplift.runtime.precision.scoring import metrics
from shiplift.runtime.precision.scoring.classes import f1_of, predicted
from shiplift.runtime.records.precision import SCALES


@functools.cache
def sklearn() -> Any:
    """Imported by the tests that compare: it takes a second."""
    return pytest.importorskip("sklearn.metrics")


def class_f1(outputs: Any, labels: Any, label: Any) -> metrics.Score:
    return metrics.score_of(f1_of(label), metrics.rows_of("f1", outputs, labels))


_pairs = st.integers(2, 60).flatmap(
    lambda n: st.tuples(
        npst.arrays(np.int64, n, elements=st.integers(0, 4)), npst.arrays(np.int64, n, elements=st.integers(0, 4))
    )
)
_matrices = npst.arrays(np.float64, (7, 3), elements=st.just(0.0) | st.floats(0.01, 100) | st.floats(-100, -0.01))
_values = st.tuples(_matrices, _matrices)


@given(_pairs)
def test_accuracy_is_scikit_learn_s(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    got, expected = pair
    value, error, _ = metrics.score("accuracy", {"label": got}, expected)
    assert value == pytest.approx(sklearn().accuracy_score(expected, got))
    assert error == pytest.approx(math.sqrt(value * (1 - value) / (len(got) - 1)))


@given(_pairs)
def test_f1_is_scikit_learn_s_macro_average(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    got, expected = pair
    value, error, _ = metrics.score("f1", {"label": got}, expected)
    assert value == pytest.approx(sklearn().f1_score(expected, got, average="macro", zero_division=0))
    assert 0 <= error < 1


@given(_pairs)
def test_the_f1_of_a_class_is_scikit_learn_s(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    got, expected = pair
    classes = np.unique(expected)
    theirs = sklearn().f1_score(expected, got, labels=classes, average=None, zero_division=0)
    for label, score in zip(classes, theirs, strict=True):
        value, error, _ = class_f1({"label": got}, expected, label)
        assert value == pytest.approx(score)
        assert 0 <= error < 1


def test_the_f1_of_a_class_with_a_name_has_a_bootstrap_error() -> None:
    expected = np.repeat(["cat", "dog"], 100).astype(object)
    got = np.where(np.arange(200) % 10 == 0, "dog", expected)
    value, error, _ = class_f1({"label": got}, expected, "cat")
    assert value == pytest.approx(90 * 2 / 190)
    assert 0.01 < error < 0.04


@given(_values)
def test_mae_is_scikit_learn_s(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    value, *_ = metrics.score("mae", {"out": pair[0]}, pair[1])
    assert value == pytest.approx(sklearn().mean_absolute_error(pair[1], pair[0]))


@given(_values)
def test_cosine_is_scikit_learn_s_pairwise_similarity(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    from sklearn.metrics.pairwise import cosine_similarity

    value, *_ = metrics.score("cosine", {"out": pair[0]}, pair[1])
    assert value == pytest.approx(np.diag(cosine_similarity(*pair)).mean(), abs=1e-6)


def test_an_error_shrinks_with_the_samples() -> None:
    rng = np.random.default_rng(0)
    for metric, outputs, labels in (
        ("accuracy", rng.integers(0, 2, 4000), rng.integers(0, 2, 4000)),
        ("f1", rng.integers(0, 2, 4000), rng.integers(0, 2, 4000)),
        ("mae", rng.normal(size=4000), rng.normal(size=4000)),
    ):
        few = metrics.score(metric, {"label": outputs[:40]}, labels[:40])[1]  # type: ignore[arg-type]
        many = metrics.score(metric, {"label": outputs}, labels)[1]  # type: ignore[arg-type]
        assert many < few / 5


def test_a_single_sample_has_no_certainty() -> None:
    assert metrics.score("accuracy", {"label": np.array([1])}, np.array([1]))[:2] == (1.0, math.inf)


def test_a_smaller_error_or_loss_is_better_and_a_larger_anything_else() -> None:
    smaller = {metric for metric, scale in SCALES.items() if scale.better < 0}
    assert smaller == {"mae", "rmse", "mape", "log_loss", "wer", "cer"}


@settings(max_examples=settings().max_examples // 4)  # each resamples several scores
@given(st.integers(2, 4), st.integers(30, 60), st.integers(0, 1000))
def test_roc_auc_and_log_loss_are_scikit_learn_s(classes: int, samples: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, samples)])
    logits = rng.normal(size=(len(labels), classes)).astype(np.float32)
    likely = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    auc, error, _ = metrics.score("roc_auc", {"logits": logits}, labels)
    scores = likely[:, 1] if classes == 2 else likely
    assert auc == pytest.approx(sklearn().roc_auc_score(labels, scores, multi_class="ovr"), abs=1e-6)
    assert 0 < error < 1
    for outputs in ({"logits": logits}, {"label": labels, "probabilities": likely}):
        loss, *_ = metrics.score("log_loss", outputs, labels)
        assert loss == pytest.approx(sklearn().log_loss(labels, likely, labels=range(classes)), rel=1e-4)


def test_the_score_of_one_class_alone_is_a_probability_or_a_logit() -> None:
    labels = np.array([0, 1, 1, 0, 1])
    probability = np.array([[0.2], [0.9], [0.6], [0.4], [0.3]], np.float32)
    logit = np.log(probability / (1 - probability))
    expected = sklearn().roc_auc_score(labels, probability[:, 0])
    for output in (probability, logit, logit[:, 0]):
        assert metrics.score("roc_auc", {"score": output}, labels)[0] == pytest.approx(expected)


def test_names_of_classes_are_numbered_alphabetically_if_there_is_one_for_each_score() -> None:
    scores = {"scores": np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], np.float32)}
    assert metrics.score("roc_auc", scores, np.array(["cat", "dog", "cat"]))[0] == 1
    with pytest.raises(DataInvalid, match="3 names of classes"):
        metrics.score("roc_auc", scores, np.array(["cat", "dog", "emu"]))
    with pytest.raises(DataInvalid, match="classes from 0 to 2"):
        metrics.score("log_loss", scores, np.array([0, 1, 2]))
    with pytest.raises(DataInvalid, match="no output has scores"):
        metrics.score("log_loss", {"label": np.array([0, 1, 1])}, np.array([0, 1, 1]))


def test_roc_auc_is_undefined_where_all_samples_are_of_one_class() -> None:
    assert math.isnan(metrics.score("roc_auc", {"scores": np.eye(2, dtype=np.float32)}, np.array([1, 1]))[0])


@settings(max_examples=settings().max_examples // 4)  # each resamples several scores
@given(_values)
def test_errors_of_regressions_are_scikit_learn_s(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    actual, expected = pair
    outputs = {"out": actual}
    assert metrics.score("rmse", outputs, expected)[0] == pytest.approx(
        math.sqrt(np.mean((actual - expected) ** 2))
    )  # over all numbers, of every column alike
    assert metrics.score("r2", outputs, expected)[0] == pytest.approx(sklearn().r2_score(expected, actual))
    assert metrics.score("mape", outputs, expected)[0] == pytest.approx(
        sklearn().mean_absolute_percentage_error(expected, actual)
    )


def test_numbers_that_are_not_finite_have_no_score() -> None:
    for metric in ("rmse", "r2", "mape"):
        got = metrics.score(metric, {"out": np.array([1.0, np.nan])}, np.array([1.0, 2.0]))
        assert math.isnan(got[0])


def test_recall_counts_the_nearest_neighbours_that_are_kept() -> None:
    rng = np.random.default_rng(0)
    expected = rng.normal(size=(700, 16))
    assert metrics.score("recall_at_10", {"embedding": 3 * expected}, expected)[0] == 1  # lengths don't count
    value, error, _ = metrics.score("recall_at_10", {"embedding": expected + rng.normal(size=(700, 16))}, expected)
    assert 0.05 < value < 0.9
    assert 0 < error < 0.05


def test_recall_is_that_of_scikit_learn_s_neighbours() -> None:
    from sklearn.neighbors import NearestNeighbors

    rng = np.random.default_rng(1)
    expected, actual = rng.normal(size=(2, 60, 8))

    def neighbours(vectors: NDArray[Any]) -> list[set[int]]:
        index = NearestNeighbors(metric="cosine", n_neighbors=11).fit(vectors)
        return [set(row) - {i} for i, row in enumerate(index.kneighbors(vectors, return_distance=False).tolist())]

    shared = [len(a & b) / 10 for a, b in zip(neighbours(actual), neighbours(expected), strict=True)]
    assert metrics.score("recall_at_10", {"embedding": actual}, expected)[0] == pytest.approx(np.mean(shared))


@pytest.mark.slow
def test_ndcg_counts_where_the_nearest_neighbours_went() -> None:
    rng = np.random.default_rng(0)
    expected = rng.normal(size=(600, 16))
    assert metrics.score("ndcg_at_10", {"embedding": 3 * expected}, expected)[0] == pytest.approx(1)
    noisy = expected + rng.normal(size=(600, 16))
    value, error, _ = metrics.score("ndcg_at_10", {"embedding": noisy}, expected)
    assert 0.05 < value < 0.9
    assert 0 < error < 0.05
    a_bit = metrics.score("ndcg_at_10", {"embedding": expected + rng.normal(0, 0.05, (600, 16))}, expected)
    assert value < a_bit.value < 1


def test_ndcg_is_scikit_learn_s_over_all_neighbours() -> None:
    rng = np.random.default_rng(1)
    expected, actual = rng.normal(size=(2, 30, 8))

    def similar(vectors: NDArray[Any]) -> NDArray[Any]:
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.where(np.eye(30, dtype=bool), -2, unit @ unit.T)

    worth = np.zeros((30, 30))
    for row, order in enumerate(np.argsort(-similar(expected), axis=1)):
        worth[row, order[:10]] = np.arange(10, 0, -1)
    theirs = sklearn().ndcg_score(worth, similar(actual), k=10)
    assert metrics.score("ndcg_at_10", {"embedding": actual}, expected)[0] == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("outputs", "classes"),
    [
        ({"logits": np.array([[0.1, 0.9], [0.8, 0.2]], np.float32)}, [1, 0]),
        ({"sigmoid": np.array([[0.1], [0.8]], np.float32)}, [0, 1]),
        ({"sigmoid": np.array([0.1, 0.8], np.float32)}, [0, 1]),
        ({"probabilities": np.array([[0.1, 0.9]]), "label": np.array([7])}, [7]),
        ({"top_scores": np.array([[0.9, 0.1]]), "top_labels": np.array([[4, 2]])}, [4]),
        ({"class": np.array([[3], [2]])}, [3, 2]),
        ({"label": np.array(["cat", "dog"], dtype=object)}, ["cat", "dog"]),
    ],
)
def test_a_class_is_read_from_labels_or_from_scores(outputs: Any, classes: list[Any]) -> None:
    assert predicted(outputs).tolist() == classes


def test_texts_are_compared_as_texts() -> None:
    got = {"label": np.array([b"cat", "dog", "dog"], dtype=object)}
    assert metrics.score("accuracy", got, np.array(["cat", "dog", "cat"]))[0] == pytest.approx(2 / 3)


def test_class_numbers_may_be_logged_as_floats_and_in_a_column() -> None:
    assert metrics.score("accuracy", {"label": np.array([1, 2])}, np.array([[1.0], [2.0]]))[0] == 1.0


@pytest.mark.parametrize("metric", ["accuracy", "f1"])
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.eye(3), "the labels float64 [3, 3]"),
        (np.array(["a", "b", "c"]), "text"),
        (np.arange(5), "the labels int64 [5]"),
    ],
)
def test_labels_that_cannot_be_compared_are_refused_not_counted_as_wrong(
    metric: Any, labels: Any, message: str
) -> None:
    with pytest.raises(DataInvalid) as error:
        metrics.score(metric, {"logits": np.eye(3, dtype=np.float32)}, labels)
    assert message in error.value.what


@pytest.mark.parametrize("metric", ["mae", "cosine", "rmse", "r2", "mape", "recall_at_10", "ndcg_at_10"])
@pytest.mark.parametrize("labels", [np.zeros((3, 2)), np.full((3, 3), "a"), np.zeros(0)])
def test_expected_outputs_of_another_shape_or_kind_are_refused(metric: Any, labels: Any) -> None:
    with pytest.raises(DataInvalid, match=rf"metric {metric} takes .*the labels (float64|text) \["):
        metrics.score(metric, {"out": np.eye(3, dtype=np.float32)}, labels)


def test_zero_vectors_have_no_direction_and_no_nan() -> None:
    assert metrics.score("cosine", {"out": np.zeros((2, 3))}, np.ones((2, 3)))[0] == 0


def test_a_library_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rapidfuzz.distance.Levenshtein", None)
    with pytest.raises(MissingTool, match="rapidfuzz") as error:
        metrics.score("wer", {"text": np.array(["a"], dtype=object)}, np.array(["a"]))
    assert "shiplift[metrics]" in error.value.do
