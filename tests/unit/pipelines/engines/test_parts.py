"""The parts of a stage, from what it says."""

import pytest

from shiplift.pipelines.engines.parts import Parts, part_name


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("trial 3: fp32 on OpenVINO, batch 8", "trial"),
        ("finals, round 2, 1 of 2: fp32", "finals, round"),
        ("scoring fp32 on OpenVINO", "scoring fp32 on OpenVINO"),
        ("measuring at concurrency 16", "measuring at concurrency"),
        ("asking the server what the original was asked: fp32", "asking the server what the original was asked"),
        ("2 warnings", "2 warnings"),
        ("7", "7"),
    ],
)
def test_a_part_is_named_without_its_numbers(message: str, name: str) -> None:
    assert part_name(message) == name


def test_what_differs_only_in_numbers_is_one_part() -> None:
    now, heard = [10.0], []
    parts = Parts(lambda message, _: heard.append(message), clock=lambda: now[0])
    for at, message in ((11.0, "trial 1: a"), (12.0, "trial 2: b"), (14.0, "asking")):
        now[0] = at
        parts(message, None)
    now[0] = 15.0
    told = [(part.name, part.after_s, part.seconds, part.times) for part in parts.ended()]
    assert told == [("trial", 1.0, 3.0, 2), ("asking", 4.0, 1.0, 1)]
    assert heard == ["trial 1: a", "trial 2: b", "asking"]


def test_a_stage_that_says_much_has_few_parts() -> None:
    parts = Parts(None)
    for letter in range(1000):
        parts(f"part-{letter}", None)
    assert len(parts.ended()) == 32
    assert parts.ended()[-1].times == 1000 - 31
