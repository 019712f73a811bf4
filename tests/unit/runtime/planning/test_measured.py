import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.planning.measured import configurations_of, request_ms, typical_request_ms
from shiplift.runtime.records.measurement import Trial, Tuned
from tests.unit.examples import config, load_report, package, point, trial


def tuned(*trials: Trial, **changes: int) -> Tuned:
    best = trials[0] if trials else trial()
    return Tuned(target="local-cpu", package=package(config=config(**changes)), best=best, trials=trials)


def saturated(batch: int, ms: float, instances: int = 1, **changes: object) -> Trial:
    """A trial whose instances execute one full batch after another."""
    return trial(
        config=config(max_batch=batch, instances=instances),
        compute_ms=ms,
        throughput_per_s=1000 * instances * batch / ms,
        **changes,
    )


@given(times=st.lists(st.floats(0.5, 50), min_size=3, max_size=3, unique=True).map(sorted), instances=st.integers(1, 4))
def test_trials_show_the_times_that_they_were_made_with(times: list[float], instances: int) -> None:
    trials = [saturated(batch, ms, instances) for batch, ms in zip((1, 4, 16), times, strict=True)]
    (found,) = configurations_of(tuned(*trials), None)
    assert (found.instances, found.max_batch, found.spread) == (instances, 16, 0)
    assert found.batch_ms == pytest.approx(dict(zip((1.0, 4.0, 16.0), times, strict=True)))


def test_ways_to_compute_are_kept_apart_and_failed_trials_left_out() -> None:
    trials = [
        saturated(1, 5),
        saturated(1, 3, precision="int8", engine="openvino"),
        saturated(4, 9, instances=2),
        trial(error="it died", throughput_per_s=0),
        trial(compute_ms=0),
    ]
    found = configurations_of(tuned(*trials), None)
    assert {(each.engine, each.precision, each.instances): each.batch_ms for each in found} == {
        ("onnxruntime", "fp32", 1): {1: 5},
        ("onnxruntime", "fp32", 2): {4: 9},
        ("openvino", "int8", 1): {1: 3},
    }


def test_the_load_test_adds_one_row_and_the_spread() -> None:
    alone = point(1, 300, compute_ms=2.5, queue_ms=0.1).model_copy(update={"p50_ms": 3.0, "p99_ms": 4.5})
    report = load_report(alone, point(4), point(64, 900, compute_ms=8))
    (served,) = configurations_of(tuned(saturated(8, 8), max_batch=8), report)
    assert served.batch_ms == {1: 2.5, 7.2: 8, 8: 8}
    assert served.spread == pytest.approx(math.log(1.5) / 2.326)
    assert request_ms(report) == pytest.approx(0.4)
    assert typical_request_ms([report, load_report()]) == pytest.approx(0.4)
    assert typical_request_ms([]) == 0


def test_a_larger_batch_never_takes_less_time() -> None:
    (found,) = configurations_of(tuned(saturated(1, 5), saturated(4, 4)), None)
    assert found.batch_ms == {1: 5, 4: 5}


def test_a_batch_that_was_not_full_counts_as_what_it_was() -> None:
    (found,) = configurations_of(tuned(trial(config=config(max_batch=8), compute_ms=10, throughput_per_s=300)), None)
    assert found.batch_ms == {3: 10}
    (idle,) = configurations_of(tuned(trial(config=config(max_batch=8), compute_ms=10, throughput_per_s=30)), None)
    assert idle.batch_ms == {1: 10}


def test_a_release_without_execution_times_shows_nothing() -> None:
    assert configurations_of(tuned(trial(compute_ms=0)), load_report()) == ()
