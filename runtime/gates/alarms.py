"""The kinds of alarms of a bake, and what each makes of the readings so far.

A reading is noise: machines pause, and some requests always fail. So an alarm is raised only by what chance would give
too rarely, at the confidence of the whole bake, shared by all of its looks (`statistics.shared`), or by what lasts.
Another kind is a line in `JUDGES`, and a section in `runtime.spec.baking`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from shiplift.runtime.records.baking import Alarm, BakeReading

LOOK_S = 2.0
MINUTE_S = 60.0  # the servers' quantiles are of the last minute
RECENT_S = 30.0
LASTS = 5  # looks in a row: ten seconds
_TOLERATED = 0.01  # of a 99th percentile: one request in a hundred may be slower
_MANY = 0.1
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class AlarmFinding:
    """What an alarm says: why it is `raised`, or why it is `unknown`; both are empty while it is quiet."""

    raised: str = ""
    unknown: str = ""


QUIET = AlarmFinding()
Readings = Sequence[BakeReading]  # at least one, oldest first
Judge = Callable[[Alarm, Readings, float], AlarmFinding]  # the last: the confidence that one look needs


def judge(alarm: Alarm, readings: Readings, confidence: float) -> AlarmFinding:
    """What an alarm says after these readings."""
    known = JUDGES.get(alarm.kind)
    if known is None:
        return AlarmFinding(unknown=f"this version of Shiplift has no alarm {alarm.kind!r}")
    return known(alarm, readings, confidence)


# --- the kinds ---


def _answers(_alarm: Alarm, readings: Readings, _confidence: float) -> AlarmFinding:
    """The heartbeat itself waits for two wrong answers in a row before it calls an answer wrong."""
    wrong = readings[-1].wrong
    if wrong is None:
        return AlarmFinding(unknown="the heartbeat has not asked it yet")
    return AlarmFinding(raised=f"the heartbeat: {wrong}") if wrong else QUIET


def _errors(alarm: Alarm, readings: Readings, confidence: float) -> AlarmFinding:
    """Both what failed lately and what failed since the start is compared with the limit."""
    if readings[-1].answered is None:
        return AlarmFinding(unknown="the server's counters can't be read")
    share = alarm.limit / 100
    for name, seen in (("of the last", _since(readings, RECENT_S)), ("of all", readings)):
        answered, failed = counted(seen)
        total = answered + failed
        if total and lower_bound(failed, total, confidence) > share:
            percent = f"{failed / total * 100:.3g} %"
            return AlarmFinding(
                raised=f"{failed} {name} {total} requests failed, {percent}; the limit is {alarm.limit:g} %"
            )
    return QUIET


def _p99(alarm: Alarm, readings: Readings, confidence: float) -> AlarmFinding:
    """Raised at once if a tenth of the last minute's requests were too slow, and it isn't chance.

    What is less plain shows over separate minutes: by chance, a 99th percentile that keeps its limit is measured above
    it in at most half of them.
    """
    latest = readings[-1].latency_ms
    if latest is None:
        return AlarmFinding(unknown="the server's latency can't be read")
    if not latest:  # no request in the last minute
        return QUIET
    answered, failed = counted(_since(readings, MINUTE_S))
    total, slow = answered + failed, slow_share(latest, alarm.limit)
    if slow > _MANY - _ROUNDING and lower_bound(math.floor(slow * total + _ROUNDING), total, confidence) > _TOLERATED:
        return AlarmFinding(
            raised=f"at least {slow * 100:.0f} % of {total} requests took longer than {alarm.limit:g} ms"
        )
    minutes = [each.latency_ms for each in _every(readings, MINUTE_S) if each.latency_ms]
    bad = sum(quantile(each, 0.99) > alarm.limit for each in minutes)
    if lower_bound(bad, len(minutes), confidence) > 0.5:
        p99 = quantile(latest, 0.99)
        return AlarmFinding(
            raised=f"the 99th percentile was over {alarm.limit:g} ms in {bad} of {len(minutes)} minutes, "
            f"last {p99:.3g} ms"
        )
    return QUIET


def _query(alarm: Alarm, readings: Readings, _confidence: float) -> AlarmFinding:
    """What a query averages is its author's choice, so it is enough that the breach lasts."""
    value = readings[-1].values.get(alarm.query)
    if value is None or not math.isfinite(value):
        return AlarmFinding(unknown=f"the query {alarm.query!r} gives no number")
    last = [each.values.get(alarm.query) for each in readings[-LASTS:]]
    if len(last) < LASTS or not all(each is not None and _breaks(each, alarm) for each in last):
        return QUIET
    side = "below" if alarm.below else "above"
    return AlarmFinding(raised=f"the query {alarm.query!r} gave {value:g}, {side} its limit {alarm.limit:g}")


def _drift(_alarm: Alarm, readings: Readings, _confidence: float) -> AlarmFinding:
    """Each comparison is sure by itself, over all columns; too few requests are no drift, as no request is no error."""
    found = readings[-1].drift
    if found is None:
        return AlarmFinding(unknown="its drift has not been measured")
    return AlarmFinding(raised=found) if found else QUIET


def _breaks(value: float, alarm: Alarm) -> bool:
    return value < alarm.limit if alarm.below else value > alarm.limit


JUDGES: Mapping[str, Judge] = {
    "answers": _answers,
    "errors": _errors,
    "p99": _p99,
    "query": _query,
    "drift": _drift,
}


# --- the arithmetic ---


def counted(readings: Readings) -> tuple[int, int]:
    """The requests that were answered and that failed between the first and the last of these readings.

    A counter that went back is a server that started again, and counts from 0.
    """
    answered = failed = 0
    known = [each for each in readings if each.answered is not None]
    for before, now in pairwise(known):
        old, new = (before.answered or 0, before.failed or 0), (now.answered or 0, now.failed or 0)
        restarted = new[0] < old[0] or new[1] < old[1]
        answered += new[0] - (0 if restarted else old[0])
        failed += new[1] - (0 if restarted else old[1])
    return answered, failed


def lower_bound(found: int, total: int, confidence: float) -> float:
    """The exact lower bound of a share of which `found` in `total` were seen (Clopper and Pearson, Biometrika, 1934).

    One-sided, at this confidence; 0 if nothing was found.
    """
    if found <= 0 or total <= 0:
        return 0.0
    from scipy.special import betaincinv  # noqa: PLC0415 - takes 0.1 s, only where a version bakes

    return float(betaincinv(found, max(1, total - found + 1), 1 - confidence))


def slow_share(latency_ms: Mapping[float, float], limit_ms: float) -> float:
    """The least share of the requests that took longer than a limit, as far as the known quantiles tell."""
    return max((1 - each for each, ms in latency_ms.items() if ms > limit_ms), default=0.0)


def quantile(latency_ms: Mapping[float, float], wanted: float) -> float:
    """A known quantile; NaN if it is not known."""
    return next((ms for each, ms in latency_ms.items() if math.isclose(each, wanted)), math.nan)


def _since(readings: Readings, seconds: float) -> Readings:
    """The readings of the last so many seconds, and the one before them."""
    start = readings[-1].at_s - seconds
    before = [index for index, each in enumerate(readings) if each.at_s < start]
    return readings[before[-1] :] if before else readings


def _every(readings: Readings, seconds: float) -> list[BakeReading]:
    """The newest reading, and earlier ones at least so many seconds apart: each is about other requests."""
    chosen = [readings[-1]]
    for each in reversed(readings):
        if chosen[-1].at_s - each.at_s >= seconds:
            chosen.append(each)
    return chosen
