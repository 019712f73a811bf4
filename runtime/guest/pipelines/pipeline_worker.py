"""Runs the Python functions of a pipeline's author, in a process of its own, which can be killed if one does not end.

`pipeline_pool.py` starts it with the folder of the author's files, its limits, and the files and functions to load, the
latter two as JSON. The two talk over this process's standard input and output.

Process: one of its own below Triton, as `pipeline_worker.py` beside `pipeline_messages.py`.
Python: the server's
Packages: numpy
"""

import ctypes
import importlib.util
import json
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

sys.path[:0] = [path for path in os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep) if path]

import numpy as np
import pipeline_messages as messages


def receive(stream: IO[bytes]) -> bytes | None:
    """Reads a message; None at the end of the stream."""
    prefix = stream.read(messages.PREFIX_BYTES)
    return stream.read(messages.length(prefix)) if len(prefix) == messages.PREFIX_BYTES else None


def _load(folder: str, path: str, name: str) -> Callable[..., Any]:
    """An author's function. Each file is a module of its own, which may import the files beside it."""
    spec = importlib.util.spec_from_file_location(f"step_{len(sys.modules)}", os.path.join(folder, path))
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None or not callable(function):
        raise TypeError(f"{path} has no function {name!r}")
    return function


def _called(function: Callable[..., Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Calls a function; returns its arrays by name, in a form that can be sent."""
    answer = function(**arrays)
    if not isinstance(answer, dict):
        raise TypeError(f"it returned {type(answer).__name__}, not a dict of arrays by tensor")
    given = {str(name): np.asarray(value) for name, value in answer.items()}
    for name, array in given.items():
        if messages.datatype(array) is None:
            raise TypeError(f"{name!r} is an array of {array.dtype}, which is not a tensor's type")
    return given


def _answer(functions: Mapping[str, Callable[..., Any]], message: bytes) -> list[messages.Buffer]:
    """The answer to a call, as buffers. A large answer is written to the file that the call names."""
    header, arrays = messages.unpacked(bytearray(message))
    if "shared" in header:
        header, arrays = messages.unpacked(messages.read_shared(header["shared"], header["bytes"]))
    buffers = messages.packed({}, _called(functions[header["function"]], arrays))
    if messages.size(buffers) <= messages.INLINE_BYTES:
        return buffers
    return messages.packed({"bytes": messages.write_shared(header["answer"], buffers)}, {})


def _error(error: BaseException) -> list[messages.Buffer]:
    return messages.packed({"error": f"{type(error).__name__}: {error}"[:1000]}, {})


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: an endless function must not outlive its model


def _limit(limits: Mapping[str, Any]) -> None:
    """Limits this process, and whatever it starts."""
    for limit, value in (
        (resource.RLIMIT_DATA, limits["memory_mb"] << 20),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_FSIZE, limits["temporary_mb"] << 20),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        lower = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (lower, lower))


def main(folder: str, limits: Mapping[str, Any], wanted: Sequence[tuple[str, str]]) -> None:
    """Answers calls until the pool closes the pipe; `wanted` are the files and functions to load."""
    _die_with_parent()
    _limit(limits)
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the author's prints go to the server's log
    sys.path.insert(0, folder)
    try:
        functions = {f"{path}:{name}": _load(folder, path, name) for path, name in wanted}
    except BaseException as error:
        messages.send(answers, _error(error))
        return
    messages.send(answers, messages.packed({}, {}))
    while (message := receive(calls)) is not None:
        try:
            buffers = _answer(functions, message)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # libraries in Rust panic past `Exception`
            buffers = _error(error)
        messages.send(answers, buffers)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]))
