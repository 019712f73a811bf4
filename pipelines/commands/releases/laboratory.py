"""The folder that `shiplift lab` opens: a notebook connected to a served model, and the version's data."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from shiplift.pipelines.engines.protocol import Engine
from shiplift.pipelines.page.requests import example
from shiplift.pipelines.page.snippets import snippets
from shiplift.runtime.base.errors import MissingTool, NotFound, UsageError
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.text import printable
from shiplift.runtime.serving.discovery import ServedModel

_NEEDED = ("jupyterlab", "nbformat")
_UNITS = {"s": 1, "m": 60, "h": 3600}
_EXAMPLE = "example.npz"
_CONNECT = """\
import time

import numpy as np

import shiplift

served = shiplift.discover(MODEL, home=HOME)
served.signature"""
_COMPARE = """\
for report in shiplift.releases(MODEL, home=HOME):
    print(report.version, report.outcome, report.reason)
    for check in report.checks:
        print("   ", check.name, check.measured, check.limit, check.verdict.value)"""
_ASK = """\
inputs = {name: array[:1] for name, array in example.items()}
served.infer(inputs)"""
_PROFILE = """\
times_ms = []
for _ in range(200):
    began = time.perf_counter()
    served.infer(inputs)
    times_ms.append((time.perf_counter() - began) * 1000)
{f"p{part}_ms": round(float(np.percentile(times_ms, part)), 3) for part in (50, 95, 99)}"""


def require_jupyter() -> None:
    """Checks that JupyterLab is installed.

    Raises:
        MissingTool: it is not.
    """
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise MissingTool(f"{missing[0]} is not installed here", do="Install it: `pip install 'shiplift[lab]'`.")


def seconds_of(idle: str) -> int:
    """The seconds in `90s`, `30m` or `2h`.

    Raises:
        UsageError: it is not such a time, or not between a minute and a week.
    """
    matched = re.fullmatch(r"([0-9]{1,6})([smh])", idle)
    seconds = int(matched[1]) * _UNITS[matched[2]] if matched else 0
    if not 60 <= seconds <= 7 * 24 * 3600:
        raise UsageError(f"--idle {idle!r} is not a time from 60s to 168h", do="Write it as 90s, 30m or 2h.")
    return seconds


def write(engine: Engine, model: str, folder: Path | None, home: Path) -> Path:
    """Writes the notebook and the data of the version that serves; returns the notebook's path.

    Raises:
        NotFound: production does not serve the model.
        UsageError: the folder can't be written.
    """
    served = engine.discover(model)
    name = serving_name(model)
    to = folder or Path(f"lab-{name}")
    notebook = to / f"{name}.ipynb"
    try:
        to.mkdir(parents=True, exist_ok=True)
        data = _data(engine, served, to)
        if not notebook.exists():
            notebook.write_text(_notebook(served, home.resolve(), data))
    except OSError as error:
        raise UsageError(f"{to} can't be written: {error.strerror}", do="Name another with --folder.") from error
    return notebook


def start(notebook: Path, idle_s: int, port: int | None) -> int:
    """Runs JupyterLab until it is stopped, or nobody has worked in it for so long; returns its exit code.

    It listens on the loopback interface, and makes its own token.
    """
    command = [
        *(sys.executable, "-m", "jupyterlab", notebook.name),
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.shutdown_no_activity_timeout={idle_s}",
        f"--MappingKernelManager.cull_idle_timeout={idle_s}",
        *([f"--ServerApp.port={port}"] if port else []),
    ]
    with subprocess.Popen(command, cwd=notebook.parent) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue  # JupyterLab got it too, and asks whether to stop


def _data(engine: Engine, served: ServedModel, to: Path) -> tuple[str, ...]:
    """Writes the example and the validation data of the serving version; returns the names of the files."""
    try:
        admitted = engine.story(engine.report(served.model, served.version)).admitted
    except NotFound:
        return ()
    if admitted is None:
        return ()
    store, datasets = engine.store(), admitted.datasets
    (to / _EXAMPLE).write_bytes(store.read(admitted.contract.example))
    if datasets.validation is None:
        return (_EXAMPLE,)
    name = Path(datasets.validation_name).name or "validation.npz"
    (to / name).write_bytes(store.read(datasets.validation))
    return (_EXAMPLE, name)


def _plain(text: str) -> str:
    """A name in Markdown as text, whatever characters it has."""
    return re.sub(r"([^\w\s-])", r"\\\1", printable(text), flags=re.ASCII)


def _notebook(served: ServedModel, home: Path, data: tuple[str, ...]) -> str:
    import nbformat

    make = nbformat.v4
    cells = [
        make.new_markdown_cell(text) if kind == "text" else make.new_code_cell(text)
        for kind, text in _cells(served, home, data)
    ]
    text: str = nbformat.writes(make.new_notebook(cells=cells, metadata={"language_info": {"name": "python"}}))
    return text


def _cells(served: ServedModel, home: Path, data: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The cells: a kind, `text` or `code`, and the source."""
    yield "text", f"# {_plain(served.model)}\n\nVersion {served.version} served when this was written."
    yield "code", f"MODEL, HOME = {served.model!r}, {str(home)!r}\n\n{_CONNECT}"
    yield "text", "## Releases, and how they ended"
    yield "code", "shiplift.releases(MODEL, home=HOME)"
    yield "code", _COMPARE
    if data:
        yield "text", f"## Ask production\n\nThe version's data: {', '.join(map(_plain, data))}."
        yield "code", f"example = dict(np.load({_EXAMPLE!r}, allow_pickle=False))\n{_ASK}"
        yield "text", "## Profile it\n\nOne client, one row at a time. A report has what the load test measured."
        yield "code", _PROFILE
    if served.invocations:
        yield "text", "## The same request by other clients"
        for client, text in snippets(served, example(served)).items():
            if client != "curl":
                yield "code", text
