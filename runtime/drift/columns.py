"""Which columns are compared of a tensor: its values, its elements, or measures of what is too large to compare.

The reference alone decides, so that the same columns are compared every time. Another kind of column is a class here
and a line in `KINDS`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.guest.python.values import MISSING

MAX_ELEMENTS = 256  # of a row that are compared one by one
_FEW_INTEGERS, _FEW_TEXTS = 20, 100  # so many different values are categories
_PER_CATEGORY = 10  # reference rows for each category, at least on average
_LONGEST = 100_000  # characters of a text that are looked at

Values = NDArray[Any]
Known = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class ComparedColumn:
    """One column, in the reference and in the window: 1-D numbers as float64, or categories as objects.

    `known_before` and `known` say which values are not missing.
    """

    name: str
    categories: bool
    before: Values
    known_before: Known
    now: Values
    known: Known


class Unlike(Exception):
    """Captured values that can't be compared with the reference; the text says why."""


def columns(name: str, before: Values, now: Sequence[Any] | Values) -> Iterator[ComparedColumn]:
    """The columns of a tensor of which the reference has `before`, rows first, and the window has `now`.

    Raises:
        Unlike: they can't be compared.
    """
    kind = next(make for fits, make in KINDS if fits(before))
    yield from kind(name, before, now)


# --- the kinds ---


def _is_text(before: Values) -> bool:
    return before.dtype.kind in "OSU"


def _is_wide(before: Values) -> bool:
    return before.ndim > 1 and before[0].size > MAX_ELEMENTS


def _numbers(name: str, before: Values, now: Any) -> Iterator[ComparedColumn]:
    """Each element of a row is a column."""
    old = before.reshape(len(before), -1)
    new = _matrix(now, old.shape[1])
    for at in range(old.shape[1]):
        element = f"{name}[{at}]" if old.shape[1] > 1 else name
        yield _number(element, old[:, at], new[:, at], whole=old.dtype.kind in "biu")


def _measures(name: str, before: Values, now: Any) -> Iterator[ComparedColumn]:
    """Of rows with many elements, such as images: their mean, spread, least and greatest value."""
    old = before.reshape(len(before), -1).astype(np.float64)
    new = _rows(now)
    for title, of in (("mean", np.mean), ("spread", np.std), ("least", np.min), ("greatest", np.max)):
        values = np.array([of(row) if row.size else np.nan for row in new], np.float64)
        yield _number(f"{name} ({title})", of(old, axis=1), values, whole=False)


def _texts(name: str, before: Values, now: Any) -> Iterator[ComparedColumn]:
    """Texts of a few kinds are categories. Of others, their lengths are compared."""
    old, new = [_text(each) for each in before.reshape(len(before), -1)], [_text(each) for each in now]
    different = {text for text in old if text is not None}
    if len(different) <= min(_FEW_TEXTS, len(old) // _PER_CATEGORY):
        yield _category(name, old, new)
        return
    for title, of in (("characters", len), ("words", _words)):
        measures = [np.array([np.nan if t is None else of(t) for t in each], np.float64) for each in (old, new)]
        yield _number(f"{name} ({title})", *measures, whole=False)


KINDS: tuple[tuple[Callable[[Values], bool], Callable[[str, Values, Any], Iterator[ComparedColumn]]], ...] = (
    (_is_text, _texts),
    (_is_wide, _measures),
    (lambda _: True, _numbers),
)


# --- what they share ---


def _number(name: str, before: Values, now: Values, *, whole: bool) -> ComparedColumn:
    old, new = before.astype(np.float64), now.astype(np.float64)
    known_before, known = ~np.isnan(old), ~np.isnan(new)
    few = len(np.unique(old[known_before])) if whole else 0
    if whole and few <= min(_FEW_INTEGERS, len(old) // _PER_CATEGORY):
        old, new = old.astype(object), new.astype(object)
        return ComparedColumn(name=name, categories=True, before=old, known_before=known_before, now=new, known=known)
    return ComparedColumn(name=name, categories=False, before=old, known_before=known_before, now=new, known=known)


def _category(name: str, before: list[str | None], now: list[str | None]) -> ComparedColumn:
    old, new = np.array(before, object), np.array(now, object)
    known_before, known = (np.array([each is not None for each in values], np.bool_) for values in (before, now))
    return ComparedColumn(name=name, categories=True, before=old, known_before=known_before, now=new, known=known)


def _matrix(now: Any, width: int) -> Values:
    """Captured rows as a matrix of float64; missing values are NaN."""
    if isinstance(now, np.ndarray) and now.dtype.kind in "biuf":
        wide = now.reshape(len(now), -1)
        if wide.shape[1] != width:
            raise Unlike(f"captured rows have {wide.shape[1]} values, the validation data {width}")
        return wide.astype(np.float64)
    wide = np.full((len(now), width), np.nan)
    for at, row in enumerate(_rows(now)):
        if row.size not in (width, 0):
            raise Unlike(f"a captured row has {row.size} values, the validation data have {width}")
        wide[at, : row.size] = row
    return wide


def _rows(now: Any) -> list[NDArray[np.float64]]:
    try:
        return [np.empty(0) if each is None else np.asarray(each, np.float64).ravel() for each in now]
    except (TypeError, ValueError):
        raise Unlike("captured values are texts, those of the validation data are numbers") from None


def _text(item: Any) -> str | None:
    """A text, as a clients sends it; several in one row are one. None: it is missing."""
    if isinstance(item, list | np.ndarray):
        parts = [_text(each) for each in item]
        return None if not parts or None in parts else "\n".join(map(str, parts))
    if item is None or item == MISSING or (isinstance(item, float) and np.isnan(item)):
        return None
    text = item.decode(errors="replace") if isinstance(item, bytes) else str(item)
    return None if text == MISSING else text[:_LONGEST]


def _words(text: str) -> int:
    return len(text.split())
