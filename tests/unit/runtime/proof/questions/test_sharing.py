"""A budget is shared by weight, and nothing of it is wasted."""

from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.proof.questions.sharing import shares

GROUPS = st.lists(st.tuples(st.integers(0, 500), st.sampled_from([0.5, 1.0, 4.0])), min_size=1, max_size=8)


@given(GROUPS, st.integers(0, 2000))
def test_all_that_may_be_is_given(groups: list[tuple[int, float]], total: int) -> None:
    available, weights = [most for most, _ in groups], [weight for _, weight in groups]
    given_ = shares(available, weights, total)
    assert sum(given_) == min(total, sum(available))
    assert all(0 <= own <= most for own, most in zip(given_, available, strict=True))


def test_what_one_does_not_need_the_others_get_by_weight() -> None:
    assert shares([10, 1000, 1000], [1.0, 1.0, 3.0], 410) == [10, 100, 300]
    assert shares([5, 5, 5], [1.0, 1.0, 1.0], 2) == [1, 1, 0]
