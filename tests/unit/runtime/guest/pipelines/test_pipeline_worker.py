"""The process that runs an author's Python: its messages in both directions, and functions that fail."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from shiplift.runtime.serving.bundles.repository import PIPELINE_MESSAGES, PIPELINE_WORKER


def _messages() -> Any:
    spec = importlib.util.spec_from_file_location("pipeline_messages", PIPELINE_MESSAGES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


messages = _messages()
NUMBERS = st.sampled_from(["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"])
SHAPES = st_numpy.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
ARRAYS = NUMBERS.flatmap(lambda kind: st_numpy.arrays(np.dtype(kind), SHAPES))
TEXTS = st_numpy.arrays(np.dtype(object), SHAPES, elements=st.binary(max_size=9))
LIMITS = json.dumps({"memory_mb": 1024, "open_files": 256, "temporary_mb": 1024})
NAMED = st.dictionaries(st.text(max_size=5), ARRAYS | TEXTS, max_size=3)


def _equal(received: dict[str, Any], sent: dict[str, Any]) -> None:
    assert received.keys() == sent.keys()
    for name, array in sent.items():
        assert (received[name].dtype, received[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(received[name], array)


@settings(deadline=None)
@given(NAMED)
def test_what_is_packed_is_unpacked(arrays: dict[str, Any]) -> None:
    message = b"".join(messages.packed({"function": "a.py:run"}, arrays))
    header, received = messages.unpacked(bytearray(message))
    assert header == {"function": "a.py:run"}
    _equal(received, arrays)
    for array in received.values():
        assert array.flags.writeable


@settings(deadline=None)
@given(NAMED, st.data())
def test_a_message_that_is_cut_off_is_broken(arrays: dict[str, Any], data: st.DataObject) -> None:
    arrays = {"first": np.arange(3, dtype=np.int64), **arrays, "last": np.full(64, 7, np.uint8)}
    whole = b"".join(messages.packed({}, arrays))
    with pytest.raises(messages.Broken):
        messages.unpacked(whole[: data.draw(st.integers(0, len(whole) - 1))])


@settings(deadline=None)
@given(NAMED, st.data())
def test_a_message_of_wrong_bytes_is_broken_or_understood(arrays: dict[str, Any], data: st.DataObject) -> None:
    whole = bytearray(b"".join(messages.packed({}, arrays)))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(messages.Broken):
        messages.unpacked(whole)


def test_a_tensor_outside_of_its_message_is_not_read() -> None:
    tensor = {"name": "x", "datatype": "UINT8", "shape": [4], "at": -8, "bytes": 4}
    for change in ({"at": -8}, {"at": 1 << 40}, {"at": 0, "bytes": 1 << 40}, {"bytes": -1, "at": 0}):
        header = json.dumps({"tensors": [tensor | change]}).encode()
        with pytest.raises(messages.Broken, match="outside of its message"):
            messages.unpacked(len(header).to_bytes(4, "little") + header + bytes(64))


def test_a_large_message_lies_in_shared_memory_in_a_file_that_is_used_again(tmp_path: Path) -> None:
    image = np.arange(720 * 1280 * 3, dtype=np.uint8).reshape(720, 1280, 3)
    file = str(tmp_path / "shared")
    for arrays in ({"image": image, "text": np.array([b"x"], object)}, {"image": image[:9]}, {"image": image[::-1]}):
        total = messages.write_shared(file, messages.packed({}, arrays))
        message = messages.read_shared(file, total)
        messages.write_shared(file, messages.packed({}, {"other": np.zeros(99)}))  # what was read is the reader's own
        _equal(messages.unpacked(message)[1], arrays)
    with pytest.raises(messages.Broken, match="cut off"):
        messages.read_shared(file, 4 * image.size)
    messages.remove(file)
    messages.remove(file)


@contextmanager
def started(folder: Path, source: str, *functions: str, limits: str = LIMITS) -> Iterator[Any]:
    (folder / "a.py").write_text(source)
    wanted = json.dumps([("a.py", function) for function in functions])
    with subprocess.Popen(
        [sys.executable, PIPELINE_WORKER, folder, limits, wanted], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def received(process: Any) -> Any:
    """The next message of a process."""
    prefix = process.stdout.read(messages.PREFIX_BYTES)
    return messages.unpacked(process.stdout.read(messages.length(prefix)))


def asked(process: Any, function: str, **arrays: Any) -> Any:
    """What a process answers to a call."""
    messages.send(process.stdin, messages.packed({"function": f"a.py:{function}", "answer": "/no/file"}, arrays))
    return received(process)


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
        assert received(process) == ({}, {})
        for _ in range(2):
            header, arrays = asked(process, "double", x=np.arange(3))
            assert (header, arrays["y"].tolist()) == ({}, [0, 2, 4])
            assert asked(process, "wrong", x=np.arange(3)) == ({"error": "KeyError: (3,)"}, {})
            header, _ = asked(process, "dates", x=np.arange(3))
            assert "'y' is an array of datetime64[s], which is not a tensor's type" in header["error"]
        process.stdin.close()
        assert process.wait(timeout=120) == 0


@pytest.mark.parametrize(
    ("source", "error"),
    [("1 / 0", "ZeroDivisionError"), ("exit(3)", "SystemExit: 3"), ("run = 3", "a.py has no function 'run'")],
)
def test_what_can_t_be_loaded_is_told_and_ends(tmp_path: Path, source: str, error: str) -> None:
    with started(tmp_path, source, "run") as process:
        header, _ = received(process)
        assert error in header["error"]
        assert process.wait(timeout=120) == 0


def test_a_function_allocates_no_more_than_it_may(tmp_path: Path) -> None:
    source = "def run(x):\n    kept = [bytes(1 << 20) for _ in range(2000)]\n    return {'y': x}\n"
    with started(tmp_path, source, "run") as process:
        received(process)
        header, _ = asked(process, "run", x=np.arange(3))
        assert header["error"].startswith("MemoryError")


@pytest.mark.slow
def test_inputs_that_are_kept_count_as_what_a_function_allocated(tmp_path: Path) -> None:
    source = "kept = []\ndef run(x):\n    kept.append(x)\n    return {'y': x[:1]}\n"
    file, image = str(tmp_path / "call"), np.zeros(64 << 20, np.uint8)
    call = messages.packed({"function": "a.py:run", "answer": "/no/file"}, {"x": image})
    total = messages.write_shared(file, call)
    limits = json.dumps(json.loads(LIMITS) | {"memory_mb": 384})
    with started(tmp_path, source, "run", limits=limits) as process:
        received(process)
        outcomes = []
        for _ in range(7):
            messages.send(process.stdin, messages.packed({"shared": file, "bytes": total}, {}))
            outcomes.append(received(process)[0])
    assert outcomes[0] == {}
    assert "MemoryError" in outcomes[-1]["error"]


def test_a_large_answer_lies_in_the_file_that_the_call_names(tmp_path: Path) -> None:
    file = tmp_path / "answer"
    with started(
        tmp_path, "def run(x):\n    import numpy\n    return {'y': numpy.arange(1 << 16)}\n", "run"
    ) as process:
        received(process)
        call = messages.packed({"function": "a.py:run", "answer": str(file)}, {"x": np.arange(3)})
        messages.send(process.stdin, call)
        header, _ = received(process)
        _equal(messages.unpacked(messages.read_shared(str(file), header["bytes"]))[1], {"y": np.arange(1 << 16)})
