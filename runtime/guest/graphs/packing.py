"""How the requests of a batch, and their responses, travel to a model's own process and back, as one set of arrays.

A request is its tensors by name. Under the name "" it may have a text. The array `KIND AT/NAME` belongs to request AT:
`n` has numbers, `t` a text, and `b` and `s` the bytes and the sizes of a tensor of bytes.

Process: Triton's Python backend, as `packing.py`; the model's own process.
Python: the server's
Packages: numpy
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

Arrays = dict[str, Any]


def pack_each(requests: Sequence[Mapping[str, Any]]) -> Arrays:
    """The arrays of all requests."""
    packed: Arrays = {}
    for at, request in enumerate(requests):
        for name, array in request.items():
            if not name:
                packed[f"t{at}/"] = array
            elif array.dtype.kind in "OSU":
                items = [item if isinstance(item, bytes) else str(item).encode() for item in array.reshape(-1)]
                packed[f"b{at}/{name}"] = np.frombuffer(b"".join(items), np.uint8)
                packed[f"s{at}/{name}"] = np.array(list(map(len, items)), np.int64).reshape(array.shape)
            else:
                packed[f"n{at}/{name}"] = array
    return packed


def unpack_each(packed: Mapping[str, Any]) -> list[Arrays]:
    """The requests, from the arrays of all."""
    requests: dict[int, Arrays] = {}
    for key, array in packed.items():
        place, _, name = key[1:].partition("/")
        request = requests.setdefault(int(place), {})
        if key[0] in "nt":
            request[name] = array
        elif key[0] == "s":
            request[name] = _items(packed[f"b{place}/{name}"], array)
    return [requests[at] for at in sorted(requests)]


def _items(body: Any, sizes: Any) -> Any:
    """An array of bytes, from all bytes and the sizes, in the shape of these."""
    ends = list(accumulate(sizes.reshape(-1).tolist(), initial=0))
    items = np.empty(len(ends) - 1, object)
    items[:] = [body[start:end].tobytes() for start, end in pairwise(ends)]
    return items.reshape(sizes.shape)
