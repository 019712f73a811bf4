"""Durations as people write them: `90s`, `15m`, `1h`, `2d`, `1h30m`."""

import re

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_FORM = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_MOST_DIGITS = 9


def seconds_of(text: str) -> float:
    """The seconds in a text such as `1h30m`.

    Raises:
        ValueError: it is not a duration.
    """
    found = _FORM.fullmatch(text)
    numbers = found.groups() if found else ()
    if not any(numbers) or any(len(number) > _MOST_DIGITS for number in numbers if number):
        raise ValueError(f"must be a duration such as 90s, 15m, 1h30m or 2d, not {text[:20]!r}")
    return float(sum(int(number or 0) * unit for number, unit in zip(numbers, _UNITS.values(), strict=True)))


def in_short(seconds: float) -> str:
    """A duration for people, to the second below a minute, else to the minute: `45s`, `12m`, `1h`, `1h30m`, `2d`."""
    whole = int(seconds)
    if whole < _UNITS["m"]:
        return f"{whole}s"
    parts = []
    for unit in ("d", "h", "m"):
        count, whole = divmod(whole, _UNITS[unit])
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts)
