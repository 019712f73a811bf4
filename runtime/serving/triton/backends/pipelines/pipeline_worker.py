"""Runs the Python functions of a pipeline's author: a process of its own, which can be killed when one does not end.

`pipeline_model.py` starts it with the folder of the author's files, the MiB that it may allocate, and the files and
functions to load as JSON. They talk over its standard input and output: a message is a JSON header with its length
before it, then the tensors' bytes. It is copied into bundles, so it can't import anything from Shiplift.
"""

import ctypes
import importlib.util
import json
import os
import resource
import struct
import sys

sys.path[:0] = [path for path in os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep) if path]

import numpy as np

MOST_BYTES = 1 << 30  # of one message
_LENGTH = struct.Struct("<I")
_KINDS = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16, "FP32": np.float32,
    "FP64": np.float64,
}  # fmt: skip


class Ended(Exception):
    """The other side has closed the connection, or breaks the rules."""


def datatype(array):
    """The Triton datatype of an array; None if there is none."""
    if array.dtype.kind in "OSU":
        return "BYTES"
    return next((name for name, kind in _KINDS.items() if array.dtype == kind), None)


def send(stream, header, arrays):
    """Writes a message: `header`, and the arrays by name."""
    bodies = {name: _packed(array) for name, array in arrays.items()}
    tensors = [
        {"name": name, "datatype": datatype(array), "shape": list(array.shape), "bytes": len(bodies[name])}
        for name, array in arrays.items()
    ]
    text = json.dumps({**header, "tensors": tensors}).encode()
    stream.write(_LENGTH.pack(len(text)) + text)
    for body in bodies.values():
        stream.write(body)
    stream.flush()


def receive(stream):
    """Reads a message; returns its header and its arrays by name."""
    header = json.loads(_exactly(stream, _LENGTH.unpack(_exactly(stream, _LENGTH.size))[0]))
    arrays = {}
    for tensor in header.pop("tensors"):
        body = _exactly(stream, tensor["bytes"])
        arrays[tensor["name"]] = _unpacked(tensor["datatype"], body).reshape(tensor["shape"])
    return header, arrays


def _exactly(stream, size):
    if not 0 <= size <= MOST_BYTES:
        raise Ended(f"a message of {size} bytes, the limit is {MOST_BYTES}")
    body, at = bytearray(size), 0
    while at < size:
        read = stream.readinto(memoryview(body)[at:])
        if not read:
            raise Ended("the process has ended")
        at += read
    return body


def _packed(array):
    if datatype(array) != "BYTES":
        return np.ascontiguousarray(array).tobytes()
    texts = [item if isinstance(item, bytes) else str(item).encode() for item in array.ravel().tolist()]
    return b"".join(_LENGTH.pack(len(text)) + text for text in texts)


def _unpacked(kind, body):
    if kind != "BYTES":
        return np.frombuffer(body, dtype=_KINDS[kind])
    texts, at = [], 0
    while at < len(body):
        (size,) = _LENGTH.unpack_from(body, at)
        texts.append(bytes(body[at + _LENGTH.size : at + _LENGTH.size + size]))
        at += _LENGTH.size + size
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array


def _load(folder, path, name):
    """An author's function. Each file is a module of its own, which may import those beside it."""
    spec = importlib.util.spec_from_file_location(f"step_{len(sys.modules)}", os.path.join(folder, path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise TypeError(f"{path} has no function {name!r}")
    return function


def _called(function, arrays):
    """What a function returns, as arrays by name that can be sent."""
    answer = function(**arrays)
    if not isinstance(answer, dict):
        raise TypeError(f"it returned {type(answer).__name__}, not a dict of arrays by tensor")
    arrays = {str(name): np.asarray(value) for name, value in answer.items()}
    for name, array in arrays.items():
        if datatype(array) is None:
            raise TypeError(f"{name!r} is an array of {array.dtype}, which is no type of a tensor")
    return arrays


def _die_with_parent():
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: what does not end must not outlive its model


def main(folder, memory_mb, wanted):
    _die_with_parent()
    resource.setrlimit(resource.RLIMIT_DATA, (memory_mb << 20, memory_mb << 20))
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an author prints goes to the server's log
    sys.path.insert(0, folder)
    try:
        functions = [_load(folder, path, name) for path, name in wanted]
    except BaseException as error:
        send(answers, {"error": f"{type(error).__name__}: {error}"}, {})
        return
    send(answers, {}, {})
    while True:
        try:
            header, arrays = receive(requests)
        except Ended:
            return
        try:
            send(answers, {}, _called(functions[header["function"]], arrays))
        except Exception as error:
            send(answers, {"error": f"{type(error).__name__}: {error}"}, {})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
