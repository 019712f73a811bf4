"""Which columns have drifted, of the statistics of all of them."""

from collections.abc import Iterable, Sequence

import numpy as np

from shiplift.runtime.records.drift import ColumnDrift, ColumnState, ColumnStatistics, Drifting


def judged(found: Iterable[ColumnStatistics], drifting: Drifting) -> tuple[ColumnDrift, ...]:
    """Each column's state.

    A column drifts if its PSI exceeds the threshold by more than undrifted values would, and its test is sure of it
    after correction for all columns.
    """
    known = list(found)
    judgeable = [each for each in known if each.p is not None and each.finite]
    corrected = dict(zip(map(id, judgeable), adjusted([each.p or 0.0 for each in judgeable]), strict=True))
    return tuple(_column(each, corrected.get(id(each)), drifting) for each in known)


def adjusted(ps: Sequence[float]) -> list[float]:
    """P-values of several tests, such that the least is below a level by chance as rarely as the level says.

    Holm's correction (1979), which holds however the columns depend on each other.
    """
    order = np.argsort(ps)
    corrected, highest = [1.0] * len(ps), 0.0
    for place, at in enumerate(order):
        highest = max(highest, min(1.0, ps[at] * (len(ps) - place)))
        corrected[at] = highest
    return corrected


def _column(each: ColumnStatistics, p: float | None, drifting: Drifting) -> ColumnDrift:
    fields = each.model_dump(exclude={"p", "few"})
    state: ColumnState = "too few" if each.few else "not compared"
    if p is not None:
        drifts = p < 1 - drifting.confidence and each.psi - each.chance > drifting.threshold
        state = "drifted" if drifts else "steady"
    return ColumnDrift(**fields, state=state, p=1.0 if p is None else p)
