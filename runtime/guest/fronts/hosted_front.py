"""A front in its own process, for servers such as NVIDIA's, whose Python lacks the front's libraries.

It is called twice per batch: first it turns texts or images into the graph's inputs, then the graph's outputs into
answers. A text or image that the model can't take fails its own request. Files are not UTF-8, so all items of an input
come as one array of bytes.

Process: one of its own beside Triton, as `python_host/served.py` below `front.py`, which is one of `fronts/`.
Python: the model's
Packages: numpy
"""

import os
import sys
from collections.abc import Iterator, Mapping
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, Any]
ROWS, ITEMS, SIZES = "rows", "items/", "sizes/"  # per request; joined, per input; in bytes, per item of an input
REFUSED, FEED, OUTPUT = "refused", "feed/", "output/"


def load(settings: Mapping[str, Any]) -> "HostedFront":
    """The front that the hosted process serves; `settings["model"]` is the folder with its code and files."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # instances share the cores already
    sys.path.insert(0, settings["model"])
    from front import Front, Refused  # noqa: PLC0415 - the path leads to it only now

    return HostedFront(Front(Path(settings["model"])), Refused)


class HostedFront:
    """The front, and the batch that it read last."""

    def __init__(self, front: Any, refused: type[ValueError]) -> None:
        self._front, self._refused = front, refused
        self._entries: list[tuple[list[Any], list[Any]]] = []

    def answer(self, arrays: Arrays) -> Arrays:
        """For requests: the graph's inputs, and for each request why it is refused ("" if it is not).

        For the graph's outputs: the answers to the accepted requests, with their places in the names, as in `0/label`.
        """
        outputs = {name.removeprefix(OUTPUT): array for name, array in arrays.items() if name.startswith(OUTPUT)}
        return self._answers(outputs) if outputs else self._feeds(arrays)

    def _feeds(self, arrays: Arrays) -> Arrays:
        self._entries, refused = [], []
        for request in requests_of(arrays):
            try:
                samples = self._front.read(self._front.samples(request))
                self._entries.append((samples, self._front.encode(samples)))
                refused.append("")
            except self._refused as error:
                refused.append(str(error))
        encodings = list(chain.from_iterable(encodings for _, encodings in self._entries))
        feeds = self._front.feeds(encodings) if encodings else {}
        return {REFUSED: np.array(refused, object)} | {FEED + name: array for name, array in feeds.items()}

    def _answers(self, outputs: Arrays) -> Arrays:
        entries, self._entries = self._entries, []
        parts = enumerate(self._front.split(entries, outputs))
        return {f"{at}/{name}": array for at, answers in parts for name, array in answers.items()}


def requests_of(arrays: Arrays) -> Iterator[Arrays]:
    """The items of each request, by input."""
    ends = list(accumulate(arrays[ROWS].tolist()))
    inputs = {
        name.removeprefix(SIZES): items_of(arrays[ITEMS + name.removeprefix(SIZES)], sizes)
        for name, sizes in arrays.items()
        if name.startswith(SIZES)
    }
    for start, end in zip(chain((0,), ends), ends):
        yield {name: items[start:end] for name, items in inputs.items()}


def items_of(joined: Any, sizes: Any) -> Any:
    """The items of one input, as an array of `bytes`."""
    body, ends = joined.tobytes(), list(accumulate(sizes.tolist()))
    items = np.empty(len(ends), object)
    items[:] = [body[start:end] for start, end in zip(chain((0,), ends), ends)]
    return items
