import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.planning.profiles import Profiles, StepProfile, execution_seconds, parse, require_fit
from tests.unit.runtime.planning.graphs import configuration, profiles, spec

WRITTEN = """
members:
  a:
    - {engine: openvino, precision: bf16, threads: 2, max_batch: 8, batch_ms: {1: 4, 8: 12}, spread: 0.1, memory_mb: 90}
steps:
  crop: {ms: 3, spread: 0.2}
  read: {rows: {0: 1, 4: 6, 20: 3}}
request_ms: 0.3
"""


def test_a_file_of_profiles_is_read() -> None:
    known = parse(WRITTEN)
    (way,) = known.members["a"]
    assert (way.way, way.batch_ms, way.instance_cores) == (("openvino", "bf16", 2), {1.0: 4.0, 8.0: 12.0}, 2.0)
    assert known.of("read").rows == {0: 1.0, 4: 6.0, 20: 3.0}
    assert known.of("find") == StepProfile()


@given(st.dictionaries(st.floats(1, 64), st.floats(0.1, 100), min_size=1, max_size=5), st.integers(1, 64))
def test_execution_times_are_those_measured_and_between_them(batch_ms: dict[float, float], most: int) -> None:
    seconds = execution_seconds(batch_ms, most)
    assert len(seconds) == most + 1
    least, longest = min(batch_ms.values()) / 1000, max(batch_ms.values()) / 1000 * max(1.0, most / max(batch_ms))
    assert all(least - 1e-12 <= each <= longest + 1e-12 for each in seconds[1:])
    for size in {size for size in batch_ms if size.is_integer() and size <= most}:
        assert seconds[int(size)] == pytest.approx(batch_ms[size] / 1000)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("members: {a: [{batch_ms: {}}]}", "batch_ms"),
        ("members: {a: [{batch_ms: {1: -2}}]}", "greater than 0"),
        ("members: {a: [{batch_ms: {1: 2}, thread: 2}]}", "there is no such field; did you mean 'threads'"),
        ("steps: {crop: {ms: 3, rows: {1: 1}}}", "leave out one of the two"),
        ("steps: {think: {probability: 1.2}}", "less than or equal to 1"),
        ("request_ms: .nan", "finite"),
        ("- 1", "not a mapping"),
    ],
)
def test_a_wrong_file_is_refused_with_the_field(text: str, what: str) -> None:
    with pytest.raises(SpecInvalid, match=what):
        parse(text)


@pytest.mark.parametrize(
    ("name", "known", "what"),
    [
        ("chain", Profiles(members={"c": (configuration(),)}), "the pipeline has no such member, but a, b"),
        ("chain", Profiles(steps={"third": StepProfile()}), "the pipeline has no such step, but first, second"),
        ("chain", Profiles(members={"a": ()}), "it has no configuration"),
        ("chain", Profiles(steps={"first": StepProfile(probability=0.5)}), "it always runs"),
        ("chain", Profiles(steps={"first": StepProfile(ms=1)}), "ms: is for Python steps"),
        ("loop", Profiles(steps={"read": StepProfile(rows={1: 1})}), "how long does crop.py take"),
        ("loop", Profiles(steps={"crop": StepProfile(ms=1)}), "how many rows"),
        ("loop", Profiles(steps={"crop": StepProfile(ms=1), "read": StepProfile(rows={21: 1})}), "the limit is 20"),
    ],
)
def test_profiles_of_another_pipeline_are_refused(name: str, known: Profiles, what: str) -> None:
    with pytest.raises(SpecInvalid, match=what):
        require_fit(spec(name), known)


def test_profiles_that_fit_are_accepted() -> None:
    for name in ("chain", "loop", "cascade"):
        require_fit(spec(name), profiles(name))


def test_memory_is_counted_per_instance_unless_it_is_written() -> None:
    assert configuration(instances=2, memory_mb=200).memory_of(3) == 300
    assert configuration(instances=2, memory_mb=200, instance_mb=10).memory_of(3) == 210
    assert configuration(instances=4, memory_mb=200, instance_mb=100).memory_of(1) == 100
