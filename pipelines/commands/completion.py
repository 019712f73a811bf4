"""Completion of models' names and versions in a shell: what the registry has, or nothing if it does not answer."""

from collections.abc import Iterator
from typing import Any


def models(incomplete: str) -> list[str]:
    """The models whose names begin like this."""
    return [name for name in _asked(_names) if name.startswith(incomplete)]


def versions(incomplete: str) -> list[str]:
    """The same as `MODEL/VERSION`, once a model's name is complete; until then `MODEL/`."""
    model, slash, _ = incomplete.rpartition("/")
    if not slash:
        return [f"{name}/" for name in models(incomplete)]
    return [name for name in _asked(lambda engine: _versions(engine, model)) if name.startswith(incomplete)]


def _asked(ask: Any) -> list[str]:
    """What an engine answers; nothing if it can't: a shell that completes a word has no place for an error."""
    from shiplift.pipelines.commands import edge
    from shiplift.runtime.base.errors import ShipliftError

    try:
        return sorted(ask(edge.engine(None, None)))
    except (ShipliftError, OSError, ValueError):
        return []


def _names(engine: Any) -> Iterator[str]:
    yield from engine.champions() or ()


def _versions(engine: Any, model: str) -> Iterator[str]:
    for each in getattr(engine.status(model), "versions", ()):
        yield f"{model}/{each.version}"
