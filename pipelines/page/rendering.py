"""Turns templates into pages, and holds the files that pages load: nothing else is loaded, so it works offline."""

import hashlib
import time
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment

from shiplift.runtime.gates.report import environment
from shiplift.runtime.store.registry.terms import model_and_version

_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
_FOLDER = files("shiplift.templates") / "page" / "static"
_SCRIPTS = ("page.js", "vendor/htmx.min.js", "vendor/sse.min.js")


@dataclass(frozen=True, kw_only=True)
class StaticFile:
    """A file that pages load: its bytes, their media type, and its digest, which is in its address."""

    body: bytes
    media_type: str
    digest: str


def render(template: str, **variables: Any) -> str:
    """A page, or a part of one."""
    return _environment().get_template(f"page/{template}").render(**variables)


@cache
def static_files() -> dict[str, StaticFile]:
    """The files by the last part of their address. The style is the reports' with what the live page has beside it."""
    reports = environment().get_template("style.html.j2").render()
    style = reports.replace("<style>", "").replace("</style>", "") + (_FOLDER / "page.css").read_text()
    bodies = {"page.css": style.encode(), **{name.rpartition("/")[2]: _read(name) for name in _SCRIPTS}}
    return {name: _file(name, body) for name, body in bodies.items()}


def address(path: str, **query: object) -> str:
    """An address on this page. Names are in the query: in a path, a browser would resolve one like `..`."""
    return f"{path}?{urlencode({name: str(value) for name, value in query.items()})}" if query else path


def page_of(name: str) -> str:
    """The page of a model, or of a version of it (`MODEL/VERSION`); that of all models if the name is empty.

    Raises:
        UsageError, NotAdmitted: it is not a name of a model or a version.
    """
    if not name:
        return "/"
    model, version = model_and_version(name)
    return address("/model", name=model) if version is None else address("/release", model=model, version=version)


def ago(at: float) -> str:
    """How long ago a time (seconds since the epoch) was, in words."""
    seconds = max(0.0, time.time() - at)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


@cache
def _environment() -> Environment:
    made = environment()
    made.globals.update(address=address, static=_static)
    made.filters.update(ago=ago)
    return made


def _static(name: str) -> str:
    return address(f"/static/{name}", v=static_files()[name].digest)


def _file(name: str, body: bytes) -> StaticFile:
    kind = _TYPES[f".{name.rpartition('.')[2]}"]
    return StaticFile(body=body, media_type=kind, digest=hashlib.sha256(body).hexdigest()[:16])


def _read(name: str) -> bytes:
    file = _FOLDER
    for part in name.split("/"):
        file /= part
    return file.read_bytes()
