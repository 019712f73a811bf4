"""The one package that is installed. Its rooms are links to the folders at the top of the repository."""

from importlib import import_module
from typing import Any

_PUBLIC = ("discover", "tracking_uri")


def __getattr__(name: str) -> Any:
    """Imports what programs use when they first do: everything imports this package, and starts fast."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".pipelines.discovery", __name__), name)
