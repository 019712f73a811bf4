"""Whether a column's values in the window differ from those of the reference: PSI, and a test of chance.

PSI says how much they differ, the test how sure that is; a column drifts only by both. Rows of one request come from
one sender at one moment, so they count once in the test. The tests are SciPy's, which is installed wherever releases
run. Evidently and alibi-detect have these tests from there, and bring dashboards, plotly or a deep-learning framework
along; neither knows requests, nor corrects over columns.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import kolmogorov
from scipy.stats import chi2_contingency, fisher_exact

from shiplift.runtime.drift.columns import ComparedColumn
from shiplift.runtime.records.drift import ColumnStatistics

_BINS = 10
_MASS = 0.05  # a value with so much of the reference has a bin of its own
_EXPECTED = 5.0  # rows per cell, of which the chi-squared test needs as many (Cochran, 1954)
_HALF = 0.5  # added to each count, so that an empty bin has a finite logarithm
_NEW = 3  # new categories that are named
_NAME = 40  # characters of a category's name

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """When there is enough to say anything: requests in the window, and the least PSI that has to be visible."""

    min_requests: int
    threshold: float


def compared(column: ComparedColumn, rows: int, requests: int, rules: Rules) -> ColumnStatistics:
    """A column's statistics. `rows` of the window have it, from so many `requests`."""
    known_before, known = int(column.known_before.sum()), int(column.known.sum())
    found = ColumnStatistics(
        column=column.name,
        test="chi-squared" if column.categories else "Kolmogorov-Smirnov",
        rows=rows,
        requests=requests,
        missing=1 - known / rows if rows else 0.0,
        missing_before=1 - known_before / len(column.before) if len(column.before) else 0.0,
    )
    if requests < rules.min_requests:
        note = f"{requests} of the {rules.min_requests} requests that are needed"
        return found.model_copy(update={"few": True, "note": note})
    before, now, note = _counts(column)
    weight = requests / rows  # of a row
    chance = (np.count_nonzero(before + now) - 1) * (1 / len(column.before) + 1 / requests)
    found = found.model_copy(update={"psi": psi(before, now), "chance": max(0.0, chance), "note": note})
    if chance > rules.threshold / 2:
        note = f"{len(column.before)} rows of validation data are too few to see a PSI of {rules.threshold:g}"
        return found.model_copy(update={"few": True, "note": note})
    p = _p_missing(column, weight)
    if known and known_before:
        own = _p_categories(before[:-1], now[:-1] * weight) if column.categories else _p_numbers(column, weight)
        p = min(1.0, 2 * min(p, own))
    return found.model_copy(update={"p": p})


def psi(before: Floats, now: Floats) -> float:
    """The population stability index of two sets of counts over the same bins."""
    kept = (before + now) > 0
    old, new = before[kept] + _HALF, now[kept] + _HALF
    old, new = old / old.sum(), new / new.sum()
    return float(((new - old) * np.log(new / old)).sum())


# --- counts, of which the last is that of missing values ---


def _counts(column: ComparedColumn) -> tuple[Floats, Floats, str]:
    before, now = column.before[column.known_before], column.now[column.known]
    missing = len(column.before) - len(before), len(column.now) - len(now)
    old, new, note = _by_category(before, now) if column.categories else (*_by_bin(before, now), "")
    return np.append(old, float(missing[0])), np.append(new, float(missing[1])), note


def _by_bin(before: NDArray[np.float64], now: NDArray[np.float64]) -> tuple[Floats, Floats]:
    """Bins between the reference's deciles; a value that many rows have is a bin of its own."""
    if not len(before):
        return np.zeros(1), np.array([float(len(now))])
    edges = np.unique(np.quantile(before, np.arange(1, _BINS) / _BINS, method="inverted_cdf"))
    own = np.array([(before == edge).mean() >= _MASS for edge in edges])

    def places(values: NDArray[np.float64]) -> NDArray[np.int64]:
        left, right = np.searchsorted(edges, values, "left"), np.searchsorted(edges, values, "right")
        on_own = (left != right) & own[np.minimum(left, len(edges) - 1)]
        return np.asarray(2 * left + on_own, np.int64)  # an edge without a bin of its own ends the bin below it

    most = 2 * len(edges) + 2
    old, new = np.bincount(places(before), minlength=most), np.bincount(places(now), minlength=most)
    return old.astype(np.float64), new.astype(np.float64)


def _by_category(before: NDArray[np.object_], now: NDArray[np.object_]) -> tuple[Floats, Floats, str]:
    """A bin for each category of the reference, and one for all new ones."""
    names = sorted(set(before.tolist()), key=str)
    place = {name: at for at, name in enumerate(names)}
    old = np.bincount([place[each] for each in before.tolist()], minlength=len(names) + 1)
    new = np.bincount([place.get(each, len(names)) for each in now.tolist()], minlength=len(names) + 1)
    unknown = sorted({str(each) for each in now.tolist() if each not in place})
    shown = ", ".join(repr(each[:_NAME]) for each in unknown[:_NEW])
    more = f" and {len(unknown) - _NEW} more" if len(unknown) > _NEW else ""
    note = f"new categories: {shown}{more}" if unknown else ""
    return old.astype(np.float64), new.astype(np.float64), note


# --- tests ---


def _p_missing(column: ComparedColumn, weight: float) -> float:
    """Fisher's exact test of whether as many values are missing as before."""
    table = [
        [int((~column.known_before).sum()), int(column.known_before.sum())],
        [round((~column.known).sum() * weight), round(column.known.sum() * weight)],
    ]
    return float(fisher_exact(table).pvalue) if sum(table[0]) and sum(table[1]) else 1.0


def _p_numbers(column: ComparedColumn, weight: float) -> float:
    """The Kolmogorov-Smirnov test of two samples; ties make it err to the safe side."""
    before, now = np.sort(column.before[column.known_before]), np.sort(column.now[column.known])
    values = np.concatenate([before, now])
    shares = [np.searchsorted(each, values, "right") / len(each) for each in (before, now)]
    rows = len(now) * weight
    return float(kolmogorov(np.abs(shares[0] - shares[1]).max() * np.sqrt(len(before) * rows / (len(before) + rows))))


def _p_categories(before: Floats, now: Floats) -> float:
    """The chi-squared test; the rarest categories are counted together until there are enough of each."""
    table = np.stack([before, now])
    table = table[:, table.sum(axis=0) > 0]
    table = table[:, np.argsort(table.sum(axis=0))]
    least = table.sum(axis=1).min() / table.sum()
    while table.shape[1] > 2 and table[:, 0].sum() * least < _EXPECTED:
        table = np.concatenate([table[:, :1] + table[:, 1:2], table[:, 2:]], axis=1)
        table = table[:, np.argsort(table.sum(axis=0))]
    if table.shape[1] < 2:
        return 1.0
    if table[:, 0].sum() * least < _EXPECTED:
        return float(fisher_exact(np.rint(table).astype(int)).pvalue)
    return float(chi2_contingency(table, correction=False).pvalue)
