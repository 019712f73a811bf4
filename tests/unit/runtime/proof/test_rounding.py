from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.oracle import answers_to
from shiplift.runtime.proof.rounding import rounding

Function = Callable[[Any], Any]


def rounded(function: Function, row: list[float], *, in_double: bool = True) -> Any:
    """How far off a function's answer to a row in FP32 is."""
    rows = {"x": np.array([row], np.float32)}

    def ask(inputs: Arrays) -> Arrays:
        return {"y": function(inputs["x"]).reshape(-1, 1)}

    def precisely(inputs: Arrays) -> Arrays:
        return ask({"x": inputs["x"].astype(np.float64)}) if in_double else {}

    with np.errstate(all="ignore"):
        right = answers_to(ask, rows, batches=False)
        asks = [partial(answers_to, each, batches=False) for each in (ask, precisely)]
        return rounding(asks[0], asks[1], rows, right)


@pytest.mark.parametrize(
    ("function", "row"),
    [
        pytest.param(lambda x: x.var(axis=1), [16777217e8, 16777219e8, 16777217e8], id="variance of equal numbers"),
        pytest.param(lambda x: x.cumsum(axis=1)[:, -1], [0.3, 1e9, 0.4, -1e9, 0.1], id="terms that cancel"),
        pytest.param(lambda x: x.cumsum(axis=1)[:, -1], [1e9, 1e9, -1e9, -1e9], id="terms that cancel by chance"),
    ],
)
def test_what_rounding_alone_decides_is_off_by_more_than_it_is(function: Function, row: list[float]) -> None:
    value = float(function(np.array([row], np.float64))[0])

    assert rounded(function, row)["y"][0] > 0.1 * abs(value)


@pytest.mark.parametrize(
    ("function", "row"),
    [
        pytest.param(lambda x: np.fmod(x[:, 0], 3), [1e9], id="exact, though it depends on the last places"),
        pytest.param(lambda x: x[:, 0] / np.sqrt((x * x).sum(axis=1)), [1e30, 1e30], id="overflow"),
        pytest.param(lambda x: x.sum(axis=1), [np.nan, np.inf, 1.0], id="no numbers"),
    ],
)
def test_exact_answers_and_overflow_are_no_rounding(function: Function, row: list[float]) -> None:
    assert rounded(function, row)["y"].tolist() == [0.0]


def test_without_fp64_nothing_is_known() -> None:
    assert rounded(lambda x: x.sum(axis=1), [1e9, -1e9, 0.1], in_double=False)["y"].tolist() == [0.0]
