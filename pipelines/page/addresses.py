"""What the query of an address names."""

from starlette.requests import Request

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.store.registry.terms import model_and_version


def text_in(request: Request, name: str) -> str:
    """A text that has to be there.

    Raises:
        UsageError: it is not.
    """
    value = request.query_params.get(name, "")
    if not value:
        raise UsageError(f"the address lacks `{name}`", do="Go back to the models.")
    return value


def number_in(request: Request, name: str, default: int) -> int:
    """A positive number; the default if it is none."""
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and 0 < len(text) < 10 and int(text) else default


def version_in(request: Request) -> tuple[str, int]:
    """A model and a version of it.

    Raises:
        UsageError, NotAdmitted: one of them is missing, or can't be one.
    """
    name, version = model_and_version(f"{text_in(request, 'model')}/{text_in(request, 'version')}")
    assert version is not None  # noqa: S101 - there is a slash
    return name, version
