"""What drifted is found, and what did not is not: numbers, categories, texts, missing values, rows of few requests."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shiplift.runtime.drift.columns import Unlike, columns
from shiplift.runtime.drift.comparison import Rules, compared
from shiplift.runtime.drift.judging import adjusted, judged
from shiplift.runtime.records.drift import ColumnDrift, Drifting

DRIFTING = Drifting(every_s=3600, window_s=86400, threshold=0.2, confidence=0.99, min_requests=200)
RULES = Rules(min_requests=200, threshold=0.2)


def found(before: Any, now: Any, *, requests: int = 0) -> dict[str, ColumnDrift]:
    rows = len(now)
    parts = [compared(each, rows, requests or rows, RULES) for each in columns("x", before, now)]
    return {each.column: each for each in judged(parts, DRIFTING)}


def normal(rows: int, seed: int, **changes: float) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=rows, **changes).astype(np.float32)


def some(values: list[str], rows: int, seed: int, p: list[float] | None = None) -> NDArray[np.object_]:
    return np.random.default_rng(seed).choice(values, rows, p=p).astype(object)


def with_nan(values: NDArray[np.float32], share: float) -> NDArray[np.float32]:
    return np.where(np.random.default_rng(5).random(len(values)) < share, np.nan, values)


BEFORE = normal(600, 0)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (BEFORE, normal(1000, 1, loc=1)),
        (BEFORE, normal(1000, 1, scale=3)),
        (BEFORE, with_nan(normal(1000, 1), 0.2)),
        (BEFORE, np.full(1000, np.nan)),
        (np.full(600, np.nan), normal(1000, 1)),
        (np.ones(600), np.full(1000, 1.5)),
        (BEFORE, np.full(1000, np.inf)),
        (np.arange(600) % 5, np.arange(1000) % 2),
        (np.ones(600, np.bool_), np.zeros(1000, np.bool_)),
        (some(["a", "b", "c"], 600, 0), some(["a", "b", "c"], 1000, 1, [0.8, 0.1, 0.1])),
    ],
    ids=[
        "shift",
        "scale",
        "missing",
        "all missing",
        "known at last",
        "constant",
        "inf",
        "integers",
        "bool",
        "categories",
    ],
)
def test_what_drifted_is_found(before: Any, now: Any) -> None:
    each = found(before, now)["x"]
    assert (each.state, each.rows) == ("drifted", 1000)
    assert each.psi > 0.2


def test_new_categories_and_longer_texts_are_found() -> None:
    new = found(some(["a", "b"], 600, 0), some(["a", "b", "c\x1b[31m"], 1000, 1))["x"]
    assert (new.state, new.note) == ("drifted", "new categories: 'c\\x1b[31m'")
    texts = [np.array([f"{i} " * (i % 7 + 1) for i in range(n)], object) for n in (600, 1000)]
    longer = found(texts[0], [text.encode() * 3 for text in texts[1]])
    assert {each.state for each in longer.values()} == {"drifted"}
    assert set(longer) == {"x (characters)", "x (words)"}
    assert {each.state for each in found(texts[0], texts[1]).values()} == {"steady"}


def test_images_are_compared_by_what_they_are_like() -> None:
    rng = np.random.default_rng(0)
    before, now = rng.random((300, 20, 20)), rng.random((300, 400))
    assert {each.state for each in found(before, list(now)).values()} == {"steady"}
    assert {found(before, list(now * 0.5))[f"x ({of})"].state for of in ("mean", "spread", "greatest")} == {"drifted"}


@pytest.mark.parametrize("seed", range(3))
def test_undrifted_windows_raise_no_alarm(seed: int) -> None:
    """Benchmarks count the alarms of 200 windows: `python -m benchmarks.drifting`."""
    rng = np.random.default_rng(seed)
    for _ in range(10):
        rows = [
            np.column_stack([rng.normal(size=(n, 20)), np.where(rng.random(n) < 0.7, 0, rng.random(n)), np.ones(n)])
            for n in (500, 400)
        ]
        assert {each.state for each in found(*rows).values()} == {"steady"}


def test_few_requests_say_nothing_however_many_rows_they_have() -> None:
    few = found(BEFORE, normal(5000, 1, loc=3), requests=150)["x"]
    assert (few.state, few.note) == ("too few", "150 of the 200 requests that are needed")
    short = found(BEFORE[:40], normal(5000, 1, loc=3))["x"]
    assert (short.state, short.note) == ("too few", "40 rows of validation data are too few to see a PSI of 0.2")
    assert found(BEFORE, normal(5000, 1, loc=3), requests=200)["x"].state == "drifted"


def test_rows_of_one_request_count_once() -> None:
    """300 requests of 20 equal rows each: by rows, chance would look like drift."""
    rng = np.random.default_rng(8)
    alarms = sum(
        found(BEFORE, np.repeat(rng.normal(size=300), 20), requests=300)["x"].state == "drifted" for _ in range(50)
    )
    assert alarms == 0


def test_what_is_unlike_is_said() -> None:
    with pytest.raises(Unlike, match="have 3 values, the validation data 2"):
        list(columns("x", np.ones((10, 2)), np.ones((10, 3))))
    with pytest.raises(Unlike, match="a captured row has 1 values"):
        list(columns("x", np.ones((10, 2)), [[1.0, 2.0], [1.0], None]))
    with pytest.raises(Unlike, match="captured values are texts"):
        list(columns("x", np.ones(10), ["a", "b"]))


def test_p_values_are_corrected_for_the_number_of_columns() -> None:
    assert adjusted([0.01, 0.04, 0.03, 0.9]) == pytest.approx([0.04, 0.09, 0.09, 0.9])
    assert adjusted([]) == []
