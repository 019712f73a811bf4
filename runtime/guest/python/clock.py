"""A clock for Python code in this process that leaps ahead: a model whose answers depend on the time then shows it.

`time` and `datetime` are changed in place, so that every library which asks them is told the same. Code that asks the
system by itself (NumPy's `datetime64("now")`, Arrow, other processes) still sees the real time.

Process: the model's own process while it is proved, as `python_host/clock.py` beside `worker.py`.
Python: the model's
Packages: none
"""

import ctypes
import datetime
import gc
import time
from collections.abc import Callable
from typing import Any

_NANO = 10**9


class LeapingClock:
    """The time of day in this process, as soon as there is one: each `leap` sets it `step_s` seconds further ahead.

    Clocks that only measure, such as `time.monotonic`, are as they were.
    """

    def __init__(self, step_s: int) -> None:
        """Changes `time` and `datetime`.

        Raises:
            Exception: this Python can't be told another time.
        """
        self._step_s, self._ahead_s = step_s, 0
        self._real, self._real_ns, self._parts = time.time, time.time_ns, time.localtime
        self._change_time()
        self._change_datetime()

    def leap(self) -> None:
        """It is later at once."""
        self._ahead_s += self._step_s

    def _now(self) -> float:
        return self._real() + self._ahead_s

    def _parts_now(self) -> time.struct_time:
        return self._parts(self._now())

    def _change_time(self) -> None:
        clock, clock_ns, real = time.clock_gettime, time.clock_gettime_ns, time.CLOCK_REALTIME
        later: dict[str, Callable[..., Any]] = {
            "time": self._now,
            "time_ns": lambda: self._real_ns() + self._ahead_s * _NANO,
            "clock_gettime": lambda which: clock(which) + self._ahead_s * (which == real),
            "clock_gettime_ns": lambda which: clock_ns(which) + self._ahead_s * _NANO * (which == real),
            "localtime": _unless_given(time.localtime, 1, self._now),
            "gmtime": _unless_given(time.gmtime, 1, self._now),
            "ctime": _unless_given(time.ctime, 1, self._now),
            "asctime": _unless_given(time.asctime, 1, self._parts_now),
            "strftime": _unless_given(time.strftime, 2, self._parts_now),
        }
        for name, function in later.items():
            setattr(time, name, function)

    def _change_datetime(self) -> None:
        utc = datetime.timezone.utc  # noqa: UP017 - a model's Python may be 3.10
        today = classmethod(lambda kind: kind.fromtimestamp(self._now()))
        _replace(datetime.date, today=today)
        _replace(
            datetime.datetime,
            today=today,
            now=classmethod(lambda kind, tz=None: kind.fromtimestamp(self._now(), tz)),
            utcnow=classmethod(lambda kind: kind.fromtimestamp(self._now(), utc).replace(tzinfo=None)),
        )


def _unless_given(function: Callable[..., Any], count: int, now: Callable[[], Any]) -> Callable[..., Any]:
    """A function of `count` arguments, the last of which is a moment: now, if it is left out."""

    def called(*given: Any) -> Any:
        return (
            function(*given) if len(given) == count and given[-1] is not None else function(*given[: count - 1], now())
        )

    return called


def _replace(kind: type, **methods: Any) -> None:
    """Puts methods into a type of C, which Python protects: a type that took its place would not be the same type."""
    (own,) = gc.get_referents(kind.__dict__)
    own.update(methods)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
