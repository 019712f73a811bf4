"""Input and output that the commands share: settings, the engine, files, results. Imports nothing slow at the top."""

import os
import sys
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

if TYPE_CHECKING:
    from shiplift.pipelines.engines.protocol import Engine
    from shiplift.pipelines.installation.values import Values
    from shiplift.pipelines.settings import Settings
    from shiplift.runtime.records.base import Record

R = TypeVar("R", bound="Record")
_MAX_REASON_CHARACTERS = 500
HOME: ContextVar[Path | None] = ContextVar("home", default=None)  # the value of `--home`


def settings(**options: Any) -> "Settings":
    """The settings: command-line options first, then environment variables, then defaults.

    Raises:
        UsageError: a variable has an invalid value.
    """
    from shiplift.pipelines.settings import resolved

    return resolved(**{"home": HOME.get(), **options})


def home() -> Path:
    """The folder that holds all state."""
    return settings().root


def engine(name: str | None, namespace: str | None) -> "Engine":
    """The engine to use. Commands choose it only here."""
    from shiplift.pipelines.engines.table import choose

    return choose(settings(engine=name or None, namespace=namespace or None))


def values(file: Path | None, namespace: str | None) -> "Values":
    """The values of an installation."""
    from shiplift.pipelines.installation.values import read

    return read(file, namespace=namespace or os.environ.get("SHIPLIFT_NAMESPACE", ""))


def version_of(name: str) -> tuple[str, int]:
    """The model and the version in `MODEL/VERSION`.

    Raises:
        UsageError: the name has no version.
    """
    from shiplift.runtime.base.errors import UsageError
    from shiplift.runtime.store.registry.terms import model_and_version

    model, version = model_and_version(name)
    if version is None:
        raise UsageError(f"{name!r} has no version", do="Write MODEL/VERSION, such as digits/3.")
    return model, version


def reason(text: str) -> str:
    """The reason for a decision, as one line.

    Raises:
        UsageError: it is too long for the registry and the cluster.
    """
    from shiplift.runtime.base.errors import UsageError

    line = " ".join(text.split())
    if len(line) > _MAX_REASON_CHARACTERS:
        what = f"the reason has {len(line)} characters; the limit is {_MAX_REASON_CHARACTERS}"
        raise UsageError(what, do="Say it shorter, and link to the rest.")
    return line


def read(path: Path) -> str:
    """The content of a text file that the user named.

    Raises:
        UsageError: the file can't be read.
    """
    from shiplift.runtime.base.errors import UsageError

    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}", do="Give the path of a YAML file.") from error


def say(message: str) -> None:
    """Prints a message for people on stderr; stdout is for results."""
    from shiplift.runtime.base.text import printable

    typer.echo(printable(message, lines=True), err=True)


def print_result(result: R, show: Callable[[R], None], *, as_json: bool) -> None:
    """Prints a result on stdout, as JSON or with `show`."""
    if as_json:
        typer.echo(result.model_dump_json())
    else:
        show(result)


def has_display() -> bool:
    """Whether a browser could show a page. Only Linux can tell that none can."""
    known = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform != "linux" or any(os.environ.get(name) for name in known)
