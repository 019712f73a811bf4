"""The end of a release is estimated from earlier ones, or not at all."""

import pytest

from shiplift.pipelines.engines.pace import Pace, in_words, pace_of
from shiplift.runtime.records.release import StageRun
from tests.unit.examples import release_report


def stages(*seconds: float, cached: bool = False) -> tuple[StageRun, ...]:
    names = ("admit", "export", "tune")
    return tuple(StageRun(name=name, seconds=took, cached=cached) for name, took in zip(names, seconds, strict=False))


def test_what_is_left_is_what_the_same_stages_took() -> None:
    cached = release_report(version=2, stages=stages(0, 0, 0, cached=True))
    pace = pace_of([release_report(version=1, stages=stages(10, 20, 300)), cached])
    assert pace.left("admit", "", 4) == 6 + 320
    assert pace.left("tune", "gpu", 1000) == 0  # longer than before, for a target that is new
    assert pace.left("promote", "", 0) is None


def test_without_a_promoted_release_there_is_no_telling() -> None:
    assert pace_of([]) == pace_of([release_report(alias="", stages=stages(10))]) == Pace()
    assert Pace().left("admit", "", 0) is None


@pytest.mark.parametrize(("seconds", "words"), [(0, "about 5 s"), (42, "about 40 s"), (170, "about 3 min")])
def test_estimates_are_said_roughly(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
