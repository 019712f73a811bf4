import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.planning.arrivals import Arrivals, recorded


@given(rate=st.floats(0.1, 1e4), cv=st.sampled_from([0.0, 0.5, 1.0, 2.0]), seed=st.integers(0, 9))
def test_arrivals_have_their_rate_and_burstiness(rate: float, cv: float, seed: int) -> None:
    times = Arrivals(rate_per_s=rate, cv=cv).times(20_000, np.random.default_rng(seed))
    gaps = np.diff(times)
    assert (gaps >= 0).all()
    assert len(times) / times[-1] == pytest.approx(rate, rel=0.07)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.15)


def test_recorded_arrivals_are_replayed_from_their_first() -> None:
    rng = np.random.default_rng(0)
    times = 1e9 + np.cumsum(rng.exponential(0.02, 2000))
    arrivals = recorded("\n".join(f"{time:.6f}" for time in rng.permutation(times)))
    assert arrivals.rate_per_s == pytest.approx(50, rel=0.1)
    assert arrivals.cv == pytest.approx(1, abs=0.1)
    replayed = arrivals.times(10, rng)
    np.testing.assert_allclose(replayed, times - times[0], atol=1e-5)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1\nsoon\n", "not a time"),
        ("1 2 3", "3 arrivals are recorded, the limits are 1000"),
        ("7\n" * 2000, "all at once"),
        ("1\n" * 1999 + "inf", "not finite"),
    ],
)
def test_what_is_no_recording_is_refused(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        recorded(text)
