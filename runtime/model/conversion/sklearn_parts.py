"""The fitted estimators within an estimator, however deep: steps, transformers, and what others were made of."""

from collections.abc import Iterator
from typing import Any


def parts(model: Any) -> Iterator[Any]:
    """The estimator and those within it, each once."""
    return _within(model, set())


def _within(value: Any, seen: set[int]) -> Iterator[Any]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, list | tuple):
        for item in value:
            yield from _within(item, seen)
    elif hasattr(value, "get_params") and not isinstance(value, type):
        yield value
        for item in vars(value).values():
            yield from _within(item, seen)
