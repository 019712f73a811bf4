"""A front in a process of its own, for servers whose Python lacks the libraries that it needs, such as NVIDIA's.

It is asked twice for a batch: what the graph takes of the texts or images, then the answers, of the graph's outputs. A
text or image that the model can't take is refused by itself. Files are not texts, so items come as one array of bytes.

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
ROWS, ITEMS, SIZES = "rows", "items/", "sizes/"  # of each request; of each input, joined; of each item
REFUSED, FEED, OUTPUT = "refused", "feed/", "output/"


def load(settings: Mapping[str, Any]) -> "HostedFront":
    """What answers in the hosted process; `settings["model"]` is the folder with the front and its files."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # instances share the cores already
    sys.path.insert(0, settings["model"])
    from front import Front, Refused  # noqa: PLC0415 - now it is found

    return HostedFront(Front(Path(settings["model"])), Refused)


class HostedFront:
    """The front, and what it read last."""

    def __init__(self, front: Any, refused: type[ValueError]) -> None:
        self._front, self._refused = front, refused
        self._entries: list[tuple[list[Any], list[Any]]] = []

    def answer(self, arrays: Arrays) -> Arrays:
        """To requests: what the graph takes of those that are not refused, and why the others are ("" if not).

        To the graph's outputs for these: the answers to each by its place, such as `0/label`.
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
