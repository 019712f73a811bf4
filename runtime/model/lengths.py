"""Buckets of lengths: to which one a request is padded, what the padding costs, and which sets are worth measuring.

The server pads by the same rule (`serving/triton/backends/common/lengths.h`). Only a measurement tells which set is
fastest: fewer buckets mean more padding, and more buckets mean smaller batches.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

Buckets = tuple[int, ...]
GRID: Buckets = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # `auto` chooses from these
_COUNTS = (1, 2, 4, 8)  # the sizes of the sets to measure


def padded_length(length: int, buckets: Sequence[int]) -> int:
    """The smallest of the rising `buckets` that holds a request, or its own length if none does."""
    return next((bucket for bucket in buckets if 0 < length <= bucket), length)


def padding_percent(lengths: Iterable[int], buckets: Sequence[int]) -> float:
    """How much of the computation for requests of these lengths is padding, in percent."""
    pairs = [(length, padded_length(length, buckets)) for length in lengths]
    computed = sum(padded for _, padded in pairs)
    return 100 * (1 - sum(length for length, _ in pairs) / computed) if computed else 0.0


def bucket_sets(lengths: Iterable[int], allowed: Sequence[int]) -> tuple[Buckets, ...]:
    """The sets of buckets to measure for requests of these lengths: none first, then for each size the least padding.

    All are subsets of `allowed`, which rises. Lengths beyond it are not padded, and don't count.
    """
    holding = Counter(padded_length(length, allowed) for length in lengths if 0 < length <= max(allowed, default=0))
    sets = [least_padding(holding, count) for count in _COUNTS] if holding else []
    return tuple(dict.fromkeys([(), *sets]))


def least_padding(requests: Mapping[int, int], count: int) -> Buckets:
    """At most `count` of the keys of `requests` that hold all requests; its values are the requests of each length.

    No other choice computes fewer elements.
    """
    lengths = sorted(requests)

    @cache
    def cheapest(end: int, left: int) -> tuple[int, Buckets]:
        """The elements to compute for the shortest `end` lengths, and the buckets; the last length is one of them."""
        last = lengths[end - 1]
        choices: list[tuple[int, Buckets]] = [(last * sum(requests[length] for length in lengths[:end]), (last,))]
        for start in range(1, end) if left > 1 else ():
            elements, buckets = cheapest(start, left - 1)
            more = last * sum(requests[length] for length in lengths[start:end])
            choices.append((elements + more, (*buckets, last)))
        return min(choices)

    return cheapest(len(lengths), count)[1]
