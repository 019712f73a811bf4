"""What becomes of a version that bakes."""

from shiplift.runtime.gates.alarms import LOOK_S
from shiplift.runtime.gates.baking import Watch
from shiplift.runtime.records.baking import Alarm, BakeReading, Baking

ANSWERS = Alarm(kind="answers")
BAKING = Baking(model="digits", version=2, previous=1, for_s=10, silence_s=20, alarms=(ANSWERS,))


def after(baking: Baking, *wrong: str | None, start: float = 0.0) -> Baking:
    """The bake after looks by one process."""
    watch = Watch()
    for number, each in enumerate(wrong):
        baking = watch.after(baking, BakeReading(at_s=start + number * LOOK_S, wrong=each))
    return baking


def test_a_quiet_bake_passes_after_its_time() -> None:
    assert after(BAKING, *[""] * 5).sentence == "baking 8s of 10s"
    passed = after(BAKING, *[""] * 6)
    assert (passed.state, passed.sentence) == ("passed", "baked 10s without an alarm")


def test_an_alarm_ends_it_and_what_follows_changes_nothing() -> None:
    alarmed = after(BAKING, "", "it answers wrongly", "", "")
    assert (alarmed.state, alarmed.reason) == ("alarmed", "the heartbeat: it answers wrongly")


def test_time_in_which_an_alarm_is_unknown_does_not_count_and_ends_it_after_a_while() -> None:
    assert after(BAKING, "", None, None, "").watched_s == 2
    assert after(BAKING, *[None] * 12).reason == "the heartbeat has not asked it yet, for 20 s; the limit is 20 s"


def test_a_restart_and_a_clock_that_jumps_count_no_time_that_nobody_watched() -> None:
    before = after(BAKING, "", "", "")
    assert before.watched_s == 4
    again = after(before, "", "", start=1e9)
    assert again.watched_s == 6
    watch = Watch()
    watch.after(BAKING, BakeReading(at_s=0, wrong=""))
    assert watch.after(BAKING, BakeReading(at_s=3600, wrong="")).watched_s == 6


def test_readings_of_a_long_bake_stay_bounded() -> None:
    watch, baking = Watch(), BAKING.model_copy(update={"for_s": 1e9})
    for number in range(2100):
        baking = watch.after(baking, BakeReading(at_s=number * LOOK_S, wrong=""))
    assert len(watch.readings) <= 2000
    assert [each.at_s for each in watch.readings[-30:]] == [number * LOOK_S for number in range(2070, 2100)]
