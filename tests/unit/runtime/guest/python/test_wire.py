"""Messages between a Python model's process and its host: they arrive whole, and forged ones are refused."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from shiplift.runtime.guest.python.wire import MAX_BYTES, MAX_HEADER_BYTES, BadMessage, Reader, pack

NUMBERS = st.sampled_from([np.bool_, np.uint8, np.int64, np.float16, np.float32, np.float64]).flatmap(
    lambda kind: arrays_of.arrays(kind, arrays_of.array_shapes(min_side=0, max_dims=3, max_side=4))
)
TEXTS = arrays_of.arrays(object, arrays_of.array_shapes(max_dims=2, max_side=3), elements=st.text(max_size=5))


def read(message: bytes, piece: int = 1 << 20) -> tuple[dict[str, Any], dict[str, Any]]:
    reader, at = Reader(), 0
    while reader.missing and at < len(message):
        data = message[at : at + min(piece, reader.missing)]
        reader.take(data)
        at += len(data)
    return reader.message()


def forged(header: Any, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


@given(st.dictionaries(st.text(max_size=5), NUMBERS | TEXTS, max_size=3), st.integers(1, 40))
def test_arrays_arrive_as_they_were_sent_in_pieces_of_any_size(sent: dict[str, Any], piece: int) -> None:
    fields, received = read(pack(sent, error="none"), piece)
    assert fields == {"error": "none"}
    assert list(received) == list(sent)
    for name, array in sent.items():
        assert received[name].dtype == array.dtype
        np.testing.assert_array_equal(received[name], array)


def test_a_model_may_change_the_arrays_that_it_gets() -> None:
    _, received = read(pack({"x": np.ones(3)}))
    received["x"] *= 2
    assert received["x"].tolist() == [2, 2, 2]


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused_or_not_whole(data: bytes) -> None:
    with pytest.raises(BadMessage):
        read(data)


@pytest.mark.parametrize(
    "message",
    [
        (MAX_HEADER_BYTES + 1).to_bytes(8, "little"),
        (0).to_bytes(8, "little"),
        forged([]),
        forged({}),
        forged({"arrays": [{}]}),
        forged({"arrays": [{"name": "x", "type": "|O", "shape": [1], "bytes": 8}]}, bytes(8)),
        forged({"arrays": [{"name": "x", "type": "<f4", "shape": [2], "bytes": 4}]}, bytes(4)),
        forged({"arrays": [{"name": "x", "type": "<f4", "shape": [-1], "bytes": -4}]}),
        forged({"arrays": [{"name": "x", "type": "<f4", "shape": [True], "bytes": 4}]}, bytes(4)),
        forged({"arrays": [{"name": 1, "type": "<f4", "shape": [1], "bytes": 4}]}, bytes(4)),
        forged({"arrays": [{"name": "x", "type": "|u1", "shape": [MAX_BYTES + 1], "bytes": MAX_BYTES + 1}]}),
        forged({"arrays": [{"name": "x", "type": "text", "shape": [1], "bytes": 3}]}, b"[1]"),
        forged({"arrays": [{"name": "x", "type": "text", "shape": [2], "bytes": 5}]}, b'["a"]'),
        forged({"arrays": [{"name": "x", "type": "text", "shape": [1], "bytes": 2}]}, b"\xff\xff"),
    ],
)
def test_a_forged_message_is_refused(message: bytes) -> None:
    with pytest.raises(BadMessage):
        read(message)
