"""What guards refuse, and what a client is told: the input, the row, the column, the value, and what to send."""

from typing import Any

import numpy as np
import pytest

from shiplift.runtime.guest.graphs.guards import Guards

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("entry", "array", "why"),
    [
        ({"low": 0}, np.array([[3], [-2]]), "input 'x', row 1 is -2, and the least that the model takes is 0"),
        ({"high": 9}, np.array([[3, 10]]), "input 'x', row 0, column 1 is 10, and the most that the model takes is 9"),
        ({"column": 1, "high": 9}, np.array([[99, 10]]), "input 'x', row 0, column 1 is 10, and the most"),
        ({"column": 1, "high": 9}, np.array([[99, 9]]), ""),
        ({"missing": False}, np.array([[1.0, NAN]]), "row 0, column 1 is nan, which is not taken: send a number"),
        ({"infinite": False}, np.array([[1.0, NAN]]), ""),
        ({"infinite": False}, np.array([[-INF]]), "row 0 is -inf, which is not taken: send a finite number"),
        ({"low": 0.5}, np.array([[NAN, INF]]), ""),
        ({"low": 0.5}, np.array([[-INF]]), "row 0 is -inf, and the least that the model takes is 0.5"),
        ({"low": 1, "high": 2**40}, np.array([[2**40 + 1]]), f"and the most that the model takes is {2**40}"),
        ({"low": -1, "high": 0}, np.array([[3]]), "row 0 is 3, and the most that the model takes is 0"),
        ({"values": [0.1, 2]}, np.array([[0.1, 2, NAN]], np.float32), ""),
        ({"values": [1, 5]}, np.array([[4]]), "4, none of the 2 values that the model takes: send one of 1, 5"),
        ({"values": [*range(9)]}, np.array([[9]]), "send one of 0, 1, 2, 3, 4, 5, 6, 7, ..."),
        ({"values": ["Rom", "Wien"]}, np.array([["Wien"], ["rom"]], object), "row 1 is 'rom', none of the 2 values"),
        ({"high": 9}, np.zeros((2, 3, 4)), ""),
        ({"high": 9}, np.full((2, 3, 4), 10), "input 'x', row 0 is 10"),
    ],
)
def test_the_first_value_that_is_refused_is_told(entry: dict[str, Any], array: Any, why: str) -> None:
    guards = Guards([{"input": "x", **entry}])
    told = guards.reason({"x": array})
    assert why in told
    assert bool(told) == bool(why)
    assert guards.refused({"x": array}).any() == bool(why)
