"""Finds models whose aliases were moved by hand, on either engine, and has them moved back.

Checking a model takes several requests, so it is checked only if its aliases or its serving version have changed since
the last check that found them right.
"""

from collections.abc import Callable, Container, Iterator, MutableMapping
from typing import Protocol

from shiplift.runtime.base.errors import ShipliftError, Temporary
from shiplift.runtime.store.registry.terms import CHAMPION, PREVIOUS

State = tuple[int, int, int]  # the version that serves, and those that `champion` and `previous` name


class ListedRegistry(Protocol):
    """The part of a registry that the sweep needs."""

    def models(self) -> Iterator[tuple[str, int, dict[str, int]]]:
        """Each model's name, highest version number and aliases."""
        ...


def undeclared(registry: ListedRegistry, declared: Container[str]) -> Iterator[tuple[str, int]]:
    """The models that have a champion but are unknown to production, with the champion's version."""
    for model, _, aliases in registry.models():
        if model not in declared and (champion := aliases.get(CHAMPION, 0)):
            yield model, champion


def sweep(
    registry: ListedRegistry,
    serving: Callable[[str], int],
    look_into: Callable[[str, State], bool],
    known: MutableMapping[str, State],
    *,
    tell: Callable[[str], object],
) -> None:
    """Checks each model that production serves and whose state is not in `known`.

    `look_into` returns whether the state is right. If it is, the state is added to `known`.

    Raises:
        Temporary: the registry or production does not respond.
    """
    for model, _, aliases in registry.models():
        version = serving(model)
        state = (version, aliases.get(CHAMPION, 0), aliases.get(PREVIOUS, 0))
        if not version or known.get(model) == state:
            continue
        known.pop(model, None)
        try:
            if look_into(model, state):
                known[model] = state
        except Temporary:
            raise
        except ShipliftError as error:  # one model's error must not stop the others
            tell(f"the aliases of {model!r} can't be checked: {error}")
