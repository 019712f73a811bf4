"""What the command line asks of a running stack: order, cancel, find, read, infer."""

import contextlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.releases import Accepted, Releases
from shiplift.runtime.base.errors import DataInvalid, NotFound, Temporary, UsageError
from shiplift.runtime.base.names import release_name, serving_name
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.spec.document import parse
from shiplift.runtime.store.registry import FOLDER, TAG, Registry, check_name
from shiplift.runtime.store.registry_rest import RestRegistry, version_exists

_POLL_S = 0.05
_CANCEL_S = 120


@dataclass(frozen=True, kw_only=True)
class Ordered:
    """An accepted release, and how to watch it."""

    accepted: Accepted
    releases: Releases
    alive: Callable[[], bool]


def split(name: str) -> tuple[str, int | None]:
    """`digits/3` as a model and a version; the version is None where there is none.

    Raises:
        UsageError: the version is not a positive number.
        NotAdmitted: the model's name can't be one.
    """
    model, slash, version = name.rpartition("/")
    if not slash:
        return check_name(name), None
    if not (version.isascii() and version.isdecimal() and len(version) <= 10) or int(version) < 1:
        raise UsageError(f"{version!r} is not a version number", do="Write MODEL/VERSION, such as digits/3.")
    return check_name(model), int(version)


def order(home: Path, name: str, spec: str, *, again: bool, allow_older: bool) -> Ordered:
    """Orders a release of a version, or of a model's newest one.

    Raises:
        StackDown: the stack does not run.
        NotFound: the registry has no such version.
        SpecInvalid: the spec given by hand is wrong.
    """
    parse(spec)
    running = stack.require(home)
    model, version = split(name)
    if version is None:
        version = RestRegistry(running.registry_uri).newest_of(model).version
    elif not version_exists(running.registry_uri, model, version):
        raise NotFound(f"the registry has no version {version} of {model!r}", do="See `shiplift status`.")
    releases = Releases(home)
    trigger = Trigger(kind="manual", requested_at=time.time(), allow_older=allow_older)
    accepted = releases.accept(Request(model=model, version=version, spec=spec), trigger, again=again)
    return Ordered(accepted=accepted, releases=releases, alive=lambda: running.runs("dispatcher"))


def cancel(releases: Releases, model: str, version: int) -> str:
    """Cancels a version's release under way, and waits; gives its name, empty if there was none."""
    for name in releases.of(model, version):
        if releases.active(name):
            cancel_and_wait(releases, name)
            return name
    return ""


def cancel_and_wait(releases: Releases, name: str) -> None:
    """Interrupts a release's process and waits until it has cleaned up; a queued one is taken off the queue.

    Raises:
        Temporary: it did not end in time.
    """
    deadline = time.monotonic() + _CANCEL_S
    asked = False
    while releases.active(name) and time.monotonic() < deadline:
        worker = releases.worker(name)
        if worker and not asked:
            asked = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGINT)
        elif not worker and not asked:
            (releases.folder(name) / "queued").unlink(missing_ok=True)
        time.sleep(_POLL_S)
    if releases.active(name):
        raise Temporary(f"release {name} did not stop within {_CANCEL_S} s", do="Run the same command again.")


def report_of(home: Path, model: str, version: int) -> ReleaseReport:
    """The newest report of a version: from this home, else from the registry.

    Raises:
        NotFound: it was never released.
    """
    releases = Releases(home)
    found = [
        (releases.folder(name) / "result.json", result)
        for name in releases.of(model, version)
        if (result := releases.result(name))
    ]
    if found:
        return max(found, key=lambda pair: pair[0].stat().st_mtime)[1]
    return _report_in_registry(home, model, version)


def _report_in_registry(home: Path, model: str, version: int) -> ReleaseReport:
    registry = Registry(stack.require(home).registry_uri)
    info = registry.version(model, version)
    name = info.tags.get(f"{TAG}release", "")
    run_id = registry.run_of(info) if name else ""
    text = registry.read_text(run_id, f"{FOLDER}/releases/{name}/release.json") if name else None
    page = registry.read_text(run_id, f"{FOLDER}/releases/{name}/report.html") if name else None
    if text is None:
        raise NotFound(f"{model}/{version} was never released", do=f"Run `shiplift release {model}/{version}`.")
    local = home / "reports" / f"{release_name(model, version, '')}.html"
    if page:
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_text(page)
    return ReleaseReport.model_validate_json(text).model_copy(update={"report": str(local) if page else ""})


def log_lines(home: Path, name: str, *, lines: int, follow: bool) -> Iterator[str]:
    """The last lines of a log, and then, if asked, new ones as they come.

    Raises:
        NotFound: there is no such log.
    """
    file = _log_file(home, name)
    with file.open(errors="replace") as log:
        yield from (line.rstrip("\n") for line in deque(log, maxlen=lines))
        while follow:
            line = log.readline()
            if line:
                yield line.rstrip("\n")
            else:
                time.sleep(_POLL_S)


def _log_file(home: Path, name: str) -> Path:
    if name in stack.NAMES:
        file = home / "logs" / f"{name}.log"
    else:
        releases = Releases(home)
        model, version = split(name)
        wanted = {*releases.of(model, version), *({name} & set(releases.names()))}
        files = [releases.folder(one) / "log.txt" for one in wanted]
        file = max((f for f in files if f.is_file()), key=lambda f: f.stat().st_mtime, default=home / "logs" / name)
    if not file.is_file():
        raise NotFound(f"there is no log of {name!r}", do=f"Logs are: {', '.join(stack.NAMES)}, or MODEL/VERSION.")
    return file


# --- requests -------------------------------------------------------------------------------------------------------


def infer(home: Path, model: str, file: Path, *, sequence: bool = False) -> dict[str, Any]:
    """Sends one request made from a file to production; gives `{"model", "version", "outputs": {name: list}}`.

    `sequence`: its samples go one after the other, as one sequence of a model that remembers.

    Raises:
        DataInvalid: the file's arrays are not the model's inputs.
        NotFound: the model is not served.
        ServerFailed: Triton refuses the request.
    """
    from shiplift.runtime.serving.triton.client import TritonClient, one_by_one  # noqa: PLC0415 - 0.2 s

    running = stack.require(home)
    name = serving_name(check_name(model))
    with TritonClient(f"{stack.HOST}:{running.grpc_port}") as client:
        if not client.ready(name):
            raise NotFound(f"production does not serve {model!r}", do="See `shiplift status`.")
        signature = client.signature(name)
        arrays = _request_arrays(file)
        given = _matched(arrays, [spec.name for spec in signature.inputs], file)
        if sequence:
            outputs = one_by_one(client, name, signature, given, sequence=True)
        else:
            outputs = client.ask(name, signature, given)
        version = client.versions(name)[0]
    return {
        "model": model,
        "version": version,
        "outputs": {key: np.vectorize(_plain, otypes=[object])(value).tolist() for key, value in outputs.items()},
    }


def readable(answer: dict[str, Any]) -> str:
    """An answer for a person."""
    lines = [f"{answer['model']} version {answer['version']}"]
    return "\n".join(lines + [f"{name}: {value}" for name, value in answer["outputs"].items()])


def _request_arrays(file: Path) -> dict[str, Any]:
    from shiplift.runtime.model.tensors import load_npz  # noqa: PLC0415

    if not file.is_file():
        raise UsageError(f"there is no file {file}", do="Give an NPZ or JSON file.")
    if file.suffix == ".npz":
        return dict(load_npz(file))
    try:
        said = json.loads(file.read_text())
        named = said if isinstance(said, dict) else {"": said}
        return {name: np.array(value) for name, value in named.items()}
    except (ValueError, RecursionError) as error:
        raise DataInvalid(
            f"{file.name} is neither NPZ nor JSON of arrays: {error}", do="See `shiplift infer --help`."
        ) from error


def _matched(arrays: dict[str, Any], names: list[str], file: Path) -> dict[str, Any]:
    if len(names) == 1 and len(arrays) == 1:
        return {names[0]: next(iter(arrays.values()))}
    missing = [name for name in names if name not in arrays]
    if missing:
        raise DataInvalid(
            f"{file.name} has no {', '.join(missing)}; the model's inputs are {', '.join(names)}",
            do="Name each array after the input it is for.",
        )
    return {name: arrays[name] for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.item() if isinstance(value, np.generic) else value
