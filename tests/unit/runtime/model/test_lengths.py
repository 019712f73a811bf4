"""The buckets that pad least, compared with every possible choice."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.model.lengths import GRID, bucket_sets, least_padding, padded_length, padding_percent

_buckets = st.lists(st.integers(1, 200), max_size=6, unique=True).map(lambda sizes: tuple(sorted(sizes)))
_lengths = st.lists(st.integers(0, 250), max_size=40)


@given(st.integers(0, 250), _buckets)
def test_a_request_is_padded_to_the_smallest_bucket_that_holds_it(length: int, buckets: tuple[int, ...]) -> None:
    padded = padded_length(length, buckets)
    assert padded >= length
    if 0 < length <= max(buckets, default=0):
        assert padded in buckets
        assert not [bucket for bucket in buckets if length <= bucket < padded]
    else:
        assert padded == length


@given(_lengths, _buckets)
def test_padding_is_a_share_of_what_is_computed(lengths: list[int], buckets: tuple[int, ...]) -> None:
    assert 0 <= padding_percent(lengths, buckets) < 100
    assert padding_percent(lengths, ()) == 0


def test_padding_of_known_lengths_is_known() -> None:
    assert padding_percent([10, 20, 30, 40], (40,)) == pytest.approx(100 * 60 / 160)
    assert padding_percent([10, 20, 30, 40], (20, 40)) == pytest.approx(100 * 20 / 120)
    assert padding_percent([0], (40,)) == 0


@given(st.dictionaries(st.integers(1, 60), st.integers(1, 9), min_size=1, max_size=7), st.integers(1, 8))
def test_no_other_buckets_pad_less(requests: dict[int, int], count: int) -> None:
    def elements(buckets: tuple[int, ...]) -> int:
        return sum(padded_length(length, buckets) * many for length, many in requests.items())

    chosen = least_padding(requests, count)
    assert chosen[-1] == max(requests)
    assert len(chosen) <= count
    assert list(chosen) == sorted(set(chosen))
    others = [(*rest, max(requests)) for size in range(count) for rest in combinations(sorted(requests)[:-1], size)]
    assert elements(chosen) == min(map(elements, others))


@given(_lengths, _buckets)
def test_sets_to_measure_are_none_and_ever_less_padding(lengths: list[int], allowed: tuple[int, ...]) -> None:
    sets = bucket_sets(lengths, allowed)
    assert sets[0] == ()
    assert len(set(sets)) == len(sets)
    within = [length for length in lengths if 0 < length <= max(allowed, default=0)]
    for buckets in sets[1:]:
        assert set(buckets) <= set(allowed)
        assert all(padded_length(length, buckets) in buckets for length in within)
    padding = [padding_percent(within, buckets) for buckets in sets[1:]]
    assert padding == sorted(padding, reverse=True)
    assert bool(sets[1:]) == bool(within)


def test_a_skewed_distribution_gets_its_buckets_where_the_requests_are() -> None:
    lengths = list(Counter({7: 80, 30: 15, 120: 5}).elements())
    assert bucket_sets(lengths, GRID) == ((), (128,), (8, 128), (8, 32, 128))
