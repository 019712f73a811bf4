"""Requests of a batch travel as one set of arrays, and arrive as they were."""

from typing import Any

import numpy as np

from shiplift.runtime.guest.graphs.packing import pack_each, unpack_each
from shiplift.runtime.guest.python.wire import Reader, pack


def test_requests_arrive_as_they_were() -> None:
    texts = np.array([[b"a", b""], [b"\xff\x00", "ä/".encode()]], dtype=object)
    requests: list[dict[str, Any]] = [
        {"": np.array(["about"], dtype=object), "a/b": np.arange(6).reshape(2, 3), "half": np.ones(1, np.float16)},
        {"texts": texts, "none": np.empty((0, 2), dtype=object), "flag": np.array([True, False])},
        {"1/x": np.zeros((0, 3), np.float32)},
    ]
    reader, message = Reader(), memoryview(pack(pack_each(requests)))
    while size := reader.missing:
        reader.take(bytes(message[:size]))
        message = message[size:]
    arrived = unpack_each(reader.message()[1])
    assert [list(each) for each in arrived] == [list(each) for each in requests]
    for sent, got in zip(requests, arrived, strict=True):
        for name, array in sent.items():
            assert (array.dtype, array.shape, array.tolist()) == (got[name].dtype, got[name].shape, got[name].tolist())
