"""False alarms of drift, and what is found: 200 windows of data that did not drift, then windows that did.

    python -m benchmarks.drifting [--windows 200] [--reference 600] [--requests 500]

Every window has 40 columns: normal, skewed, with mass at a point, constant, counts, categories, with missing values.
Reference and window are drawn anew each time. Prints how many windows raised an alarm, how many would have by a test of
each column alone at 1 %, or by its PSI alone, and how many of the windows whose first column moved were found.
"""

import argparse
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.drift.columns import columns
from shiplift.runtime.drift.comparison import Rules, compared
from shiplift.runtime.drift.judging import judged
from shiplift.runtime.records.drift import ColumnStatistics, Drifting

_SETTINGS = Drifting(every_s=3600, window_s=86400, threshold=0.2, confidence=0.99, min_requests=200)
_RULES = Rules(min_requests=_SETTINGS.min_requests, threshold=_SETTINGS.threshold)
_NORMAL = 30
_MOVES = (0.25, 0.5, 0.75, 1.0)  # standard deviations


def drawn(rng: np.random.Generator, rows: int, moved: float = 0.0) -> dict[str, NDArray[Any]]:
    """Rows of 40 columns; the first has moved by so many standard deviations."""
    numbers = rng.normal(size=(rows, _NORMAL))
    numbers[:, 0] += moved
    some = rng.random(rows)
    return {
        "numbers": numbers,
        "skewed": rng.lognormal(size=(rows, 3)),
        "often zero": np.where(some < 0.7, 0, rng.random(rows)),
        "constant": np.ones(rows),
        "counts": rng.poisson(3, rows),
        "rare": some < 0.02,
        "categories": rng.choice(list("abcdefgh"), rows, p=[0.3, 0.3, 0.2, 0.1, 0.05, 0.03, 0.01, 0.01]).astype(object),
        "missing": np.where(some < 0.1, np.nan, rng.normal(size=rows)),
        "nothing": np.full(rows, np.nan),
    }


def compared_all(before: dict[str, NDArray[Any]], now: dict[str, NDArray[Any]]) -> list[ColumnStatistics]:
    """The statistics of every column of a window in which each row is a request."""
    return [
        compared(each, len(rows), len(rows), _RULES)
        for name, rows in now.items()
        for each in columns(name, before[name], rows)
    ]


def drifts(found: Iterable[ColumnStatistics]) -> bool:
    """Whether a window raises an alarm."""
    return any(each.state == "drifted" for each in judged(found, _SETTINGS))


def main() -> None:
    """Counts alarms."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--windows", type=int, default=200)
    parser.add_argument("--reference", type=int, default=600)
    parser.add_argument("--requests", type=int, default=500)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    alarms = alone = by_psi = 0
    for _ in range(options.windows):
        found = compared_all(drawn(rng, options.reference), drawn(rng, options.requests))
        alarms += drifts(found)
        alone += any((each.p if each.p is not None else 1.0) < 0.01 for each in found)
        by_psi += any(each.psi > _SETTINGS.threshold for each in found)
    print(json.dumps({"windows": options.windows, "alarms": alarms, "each_column_alone": alone, "psi_alone": by_psi}))
    for moved in _MOVES:
        windows = [compared_all(drawn(rng, options.reference), drawn(rng, options.requests, moved)) for _ in range(20)]
        print(json.dumps({"moved_by": moved, "windows": 20, "found": sum(map(drifts, windows))}))


if __name__ == "__main__":
    main()
