"""What becomes of a version that bakes, after each look: pure, so that any process can go on with it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from shiplift.runtime.gates.alarms import LOOK_S, MINUTE_S, judge
from shiplift.runtime.gates.statistics import shared
from shiplift.runtime.records.baking import BakeReading, Baking

_LONGEST_LOOK_S = 3 * LOOK_S  # more time than that between two looks was not watched
_KEPT = 2000  # readings; from a longer bake, every second one of the older half goes
_RECENT = math.ceil(MINUTE_S / LOOK_S) + 2


@dataclass(kw_only=True)
class Watch:
    """What one process has seen of a bake. If it is lost, statistics begin anew, and the time watched stays."""

    readings: list[BakeReading] = field(default_factory=list)

    def after(self, baking: Baking, reading: BakeReading) -> Baking:
        """The bake after another reading."""
        seconds = reading.at_s - self.readings[-1].at_s if self.readings else 0.0
        self.readings = _thinned([*self.readings, reading])
        return judged(baking, self.readings, min(_LONGEST_LOOK_S, max(0.0, seconds)))


def judged(baking: Baking, readings: Sequence[BakeReading], seconds: float) -> Baking:
    """The bake after its newest reading, which came so many seconds after the one before.

    Time counts only if every alarm is known to be quiet. One that stays unknown for too long counts as raised.
    """
    if baking.state != "baking":
        return baking
    looks = math.ceil(baking.for_s / LOOK_S) * max(1, len(baking.alarms))
    level = shared(baking.confidence, looks)
    findings = [judge(alarm, readings, level) for alarm in baking.alarms]
    if raised := next((each.raised for each in findings if each.raised), ""):
        return _alarmed(baking, raised)
    if unknown := next((each.unknown for each in findings if each.unknown), ""):
        return _silent(baking, unknown, seconds)
    watched = baking.watched_s + seconds
    known = baking.model_copy(update={"watched_s": watched, "silent_s": 0.0, "unknown": ""})
    return known.model_copy(update={"state": "passed"}) if watched >= baking.for_s else known


def _silent(baking: Baking, unknown: str, seconds: float) -> Baking:
    silent = baking.silent_s + seconds
    if silent >= baking.silence_s:
        return _alarmed(baking, f"{unknown}, for {silent:.0f} s; the limit is {baking.silence_s:.0f} s")
    return baking.model_copy(update={"silent_s": silent, "unknown": unknown})


def _alarmed(baking: Baking, reason: str) -> Baking:
    return baking.model_copy(update={"state": "alarmed", "reason": reason, "unknown": ""})


def _thinned(readings: list[BakeReading]) -> list[BakeReading]:
    """The readings, of which there are never too many. Those of the last minute are all kept."""
    if len(readings) <= _KEPT:
        return readings
    half = max(0, min(_KEPT // 2, len(readings) - _RECENT))
    return readings[:half:2] + readings[half:]
