"""The process that runs an author's Python: what travels to it and back, and what it does with functions that fail."""

import importlib.util
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from shiplift.runtime.serving.bundles.repository import PIPELINE_WORKER


def _worker() -> Any:
    spec = importlib.util.spec_from_file_location("pipeline_worker", PIPELINE_WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


wire = _worker()
NUMBERS = st.sampled_from(["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"])
SHAPES = st_numpy.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
ARRAYS = NUMBERS.flatmap(lambda kind: st_numpy.arrays(np.dtype(kind), SHAPES))
TEXTS = st_numpy.arrays(np.dtype(object), SHAPES, elements=st.binary(max_size=9))


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=5), ARRAYS | TEXTS, max_size=3))
def test_what_is_sent_is_received(arrays: dict[str, Any]) -> None:
    stream = io.BytesIO()
    wire.send(stream, {"function": 3}, arrays)
    header, received = wire.receive(io.BytesIO(stream.getvalue()))
    assert header == {"function": 3}
    assert received.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (received[name].dtype, received[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(received[name], array)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=5), ARRAYS | TEXTS, min_size=1, max_size=3), st.data())
def test_a_message_that_is_cut_off_is_an_end(arrays: dict[str, Any], data: st.DataObject) -> None:
    stream = io.BytesIO()
    wire.send(stream, {}, arrays)
    whole = stream.getvalue()
    with pytest.raises(wire.Ended):
        wire.receive(io.BytesIO(whole[: data.draw(st.integers(0, len(whole) - 1))]))


def test_a_message_that_claims_too_much_is_not_read() -> None:
    header = json.dumps(
        {"tensors": [{"name": "x", "datatype": "UINT8", "shape": [1 << 40], "bytes": 1 << 40}]}
    ).encode()
    with pytest.raises(wire.Ended, match="the limit is"):
        wire.receive(io.BytesIO(len(header).to_bytes(4, "little") + header))


@contextmanager
def started(folder: Path, source: str, *functions: str) -> Iterator[Any]:
    (folder / "a.py").write_text(source)
    wanted = json.dumps([("a.py", function) for function in functions])
    with subprocess.Popen(
        [sys.executable, PIPELINE_WORKER, folder, "1024", wanted], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_functions_are_called_one_after_another_whatever_they_print_or_raise(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("TWO = 2\n")
    source = """
import beside
def double(x):
    print("this goes to the log")
    return {"y": beside.TWO * x}
def wrong(x):
    raise KeyError(x.shape)
def dates(x):
    return {"y": x.astype("M8[s]")}
"""
    with started(tmp_path, source, "double", "wrong", "dates") as process:
        assert wire.receive(process.stdout) == ({}, {})
        for _ in range(2):
            wire.send(process.stdin, {"function": 0}, {"x": np.arange(3)})
            header, arrays = wire.receive(process.stdout)
            assert (header, arrays["y"].tolist()) == ({}, [0, 2, 4])
            wire.send(process.stdin, {"function": 1}, {"x": np.arange(3)})
            assert wire.receive(process.stdout) == ({"error": "KeyError: (3,)"}, {})
            wire.send(process.stdin, {"function": 2}, {"x": np.arange(3)})
            header, _ = wire.receive(process.stdout)
            assert "'y' is an array of datetime64[s], which is no type of a tensor" in header["error"]
        process.stdin.close()
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize(
    ("source", "error"),
    [("1 / 0", "ZeroDivisionError"), ("exit(3)", "SystemExit: 3"), ("run = 3", "a.py has no function 'run'")],
)
def test_what_can_t_be_loaded_is_told_and_ends(tmp_path: Path, source: str, error: str) -> None:
    with started(tmp_path, source, "run") as process:
        header, _ = wire.receive(process.stdout)
        assert error in header["error"]
        assert process.wait(timeout=30) == 0


def test_a_function_allocates_no_more_than_it_may(tmp_path: Path) -> None:
    source = "def run(x):\n    kept = [bytes(1 << 20) for _ in range(2000)]\n    return {'y': x}\n"
    with started(tmp_path, source, "run") as process:
        wire.receive(process.stdout)
        wire.send(process.stdin, {"function": 0}, {"x": np.arange(3)})
        header, _ = wire.receive(process.stdout)
        assert header["error"].startswith("MemoryError")
