import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.precision import metrics

sklearn = pytest.importorskip("sklearn.metrics")

_pairs = st.integers(2, 60).flatmap(
    lambda n: st.tuples(
        npst.arrays(np.int64, n, elements=st.integers(0, 4)), npst.arrays(np.int64, n, elements=st.integers(0, 4))
    )
)
_matrices = npst.arrays(np.float64, (7, 3), elements=st.just(0.0) | st.floats(0.01, 100) | st.floats(-100, -0.01))
_values = st.tuples(_matrices, _matrices)


@settings(deadline=None, max_examples=30)
@given(_pairs)
def test_accuracy_is_scikit_learn_s(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    got, expected = pair
    value, error = metrics.score("accuracy", {"label": got}, expected)
    assert value == pytest.approx(sklearn.accuracy_score(expected, got))
    assert error == pytest.approx(math.sqrt(value * (1 - value) / (len(got) - 1)))


@settings(deadline=None, max_examples=15)
@given(_pairs)
def test_f1_is_scikit_learn_s_macro_average(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    got, expected = pair
    value, error = metrics.score("f1", {"label": got}, expected)
    assert value == pytest.approx(sklearn.f1_score(expected, got, average="macro", zero_division=0))
    assert 0 <= error < 1


@settings(deadline=None, max_examples=15)
@given(_pairs)
def test_the_f1_of_a_class_is_scikit_learn_s(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    got, expected = pair
    classes = np.unique(expected)
    theirs = sklearn.f1_score(expected, got, labels=classes, average=None, zero_division=0)
    for label, score in zip(classes, theirs, strict=True):
        value, error = metrics.class_f1({"label": got}, expected, label)
        assert value == pytest.approx(score)
        assert 0 <= error < 1


def test_the_f1_of_a_class_with_a_name_has_a_bootstrap_error() -> None:
    expected = np.repeat(["cat", "dog"], 100).astype(object)
    got = np.where(np.arange(200) % 10 == 0, "dog", expected)
    value, error = metrics.class_f1({"label": got}, expected, "cat")
    assert value == pytest.approx(90 * 2 / 190)
    assert 0.01 < error < 0.04


@settings(deadline=None, max_examples=30)
@given(_values)
def test_mae_is_scikit_learn_s(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    value, _ = metrics.score("mae", {"out": pair[0]}, pair[1])
    assert value == pytest.approx(sklearn.mean_absolute_error(pair[1], pair[0]))


@settings(deadline=None, max_examples=30)
@given(_values)
def test_cosine_is_scikit_learn_s_pairwise_similarity(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    from sklearn.metrics.pairwise import cosine_similarity

    value, _ = metrics.score("cosine", {"out": pair[0]}, pair[1])
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
    assert metrics.score("accuracy", {"label": np.array([1])}, np.array([1])) == (1.0, math.inf)


def test_a_smaller_mean_error_is_better_and_a_larger_anything_else() -> None:
    assert [metrics.better(metric) for metric in ("accuracy", "f1", "cosine", "mae")] == [1, 1, 1, -1]


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
    assert metrics.predicted(outputs).tolist() == classes


def test_texts_are_compared_as_texts() -> None:
    got = {"label": np.array([b"cat", "dog", "dog"], dtype=object)}
    assert metrics.score("accuracy", got, np.array(["cat", "dog", "cat"]))[0] == pytest.approx(2 / 3)


def test_class_numbers_may_be_logged_as_floats_and_in_a_column() -> None:
    assert metrics.score("accuracy", {"label": np.array([1, 2])}, np.array([[1.0], [2.0]]))[0] == 1.0


@pytest.mark.parametrize("metric", ["accuracy", "f1"])
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.eye(3), "labels of shape (3, 3)"),
        (np.array(["a", "b", "c"]), "text"),
        (np.arange(5), "labels of shape (5,)"),
    ],
)
def test_labels_that_cannot_be_compared_are_refused_not_counted_as_wrong(
    metric: Any, labels: Any, message: str
) -> None:
    with pytest.raises(DataInvalid) as error:
        metrics.score(metric, {"logits": np.eye(3, dtype=np.float32)}, labels)
    assert message in error.value.what


@pytest.mark.parametrize("metric", ["mae", "cosine"])
@pytest.mark.parametrize("labels", [np.zeros((3, 2)), np.full((3, 3), "a"), np.zeros(0)])
def test_expected_outputs_of_another_shape_or_kind_are_refused(metric: Any, labels: Any) -> None:
    with pytest.raises(DataInvalid, match=f"metric {metric} needs labels"):
        metrics.score(metric, {"out": np.eye(3, dtype=np.float32)}, labels)


def test_zero_vectors_have_no_direction_and_no_nan() -> None:
    assert metrics.score("cosine", {"out": np.zeros((2, 3))}, np.ones((2, 3)))[0] == 0
