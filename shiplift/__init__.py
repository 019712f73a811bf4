"""The one package that is installed. Its rooms are links to the folders at the top of the repository."""

from importlib import import_module

_PUBLIC = {
    "discover": ".pipelines.discovery",
    "load_ipython_extension": ".pipelines.api.magic",
    "predict": ".pipelines.api.predicting",
    "release": ".pipelines.api.releases",
    "releases": ".pipelines.api.releases",
    "status": ".pipelines.api.releases",
    "tracking_uri": ".pipelines.discovery",
}


def __getattr__(name: str) -> object:
    """Imports what programs use when they first do: everything imports this package, and starts fast."""
    if name == "errors":
        return import_module(".runtime.base.errors", __name__)
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name], __name__), name)


def __dir__() -> list[str]:
    return [*globals(), "errors", *_PUBLIC]
