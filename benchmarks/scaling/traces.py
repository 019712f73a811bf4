"""Arrivals to replay: at least twenty traces in five families, each from a fixed seed, and any trace from a file.

A gamma renewal process of rate 1 gives the burstiness: its coefficient of variation (CV) is 1 for Poisson arrivals. Its
time is then warped, so that the rate follows the trace's shape (Cinlar's inversion).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.scaling.fleet import Floats
from shiplift.runtime.planning.arrivals import renewals

DURATION_S = 900
_STEP_S = 0.1

Shape = Callable[[Floats], Floats]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Arrival times in s, sorted, from 0 to `duration_s`."""

    name: str
    family: str
    arrivals: Floats
    duration_s: float = DURATION_S


def generated(rate: Floats, cv: float, seed: int) -> Floats:
    """Arrival times for a rate per second, sampled every 0.1 s."""
    mass = np.concatenate([[0.0], np.cumsum(rate) * _STEP_S])
    count = int(mass[-1] + 10 * cv * math.sqrt(mass[-1])) + 100
    unit = renewals(cv, count, np.random.default_rng(seed))
    times = np.arange(len(mass)) * _STEP_S
    return np.asarray(np.interp(unit[unit < mass[-1]], mass, times), dtype=np.float64)


def from_file(path: Path) -> Trace:
    """Reads a trace: a text file with an arrival time in s per line, in any order, from any origin."""
    times = np.sort(np.loadtxt(path, dtype=np.float64, ndmin=1))
    times -= times[0]
    return Trace(name=path.stem, family="recorded", arrivals=times, duration_s=math.ceil(times[-1]) + 1)


def diurnal(period_s: float, depth: float) -> Shape:
    """A day in `period_s`: from 1 - depth to 1 + depth times the mean."""
    return lambda t: 1 - depth * np.cos(2 * np.pi * t / period_s)


def spikes(times: float, length_s: float, every_s: float, rise_s: float = 0.0) -> Shape:
    """A plateau of `times` the base every so often, `rise_s` in rising and falling."""

    def shape(t: Floats) -> Floats:
        phase = (t - every_s / 2) % every_s
        rise = max(rise_s, 1e-9)
        height = np.clip(np.minimum(phase / rise, (length_s - phase) / rise), 0, 1)
        return np.asarray(np.where(t < every_s / 2, 1.0, 1 + (times - 1) * height))

    return shape


def ramp(points: dict[float, float]) -> Shape:
    """Straight lines between points: fractions of the trace to multiples of the base."""
    return lambda t: np.interp(t / DURATION_S, list(points), list(points.values()))


def steps(every_s: float, seed: int) -> Shape:
    """A random level between a half and twice the base, drawn anew every so often."""
    levels = np.exp(np.random.default_rng(seed).uniform(math.log(0.5), math.log(2), 1000))
    return lambda t: levels[(t // every_s).astype(int)]


def _flat(t: Floats) -> Floats:
    return np.ones_like(t)


def catalogue(seed: int = 0) -> list[Trace]:
    """The traces; another seed gives the same shapes with other arrivals."""
    rows: list[tuple[str, str, float, float, Shape]] = [
        *((f"gamma cv {cv} at {base}/s", "gamma", base, cv, _flat) for base in (200, 400) for cv in (1, 2, 4, 8)),
        ("diurnal 900 s, 0.5", "diurnal", 300, 1, diurnal(900, 0.5)),
        ("diurnal 900 s, 0.8", "diurnal", 300, 1, diurnal(900, 0.8)),
        ("diurnal 450 s, 0.6", "diurnal", 300, 1, diurnal(450, 0.6)),
        ("diurnal 900 s, 0.6, cv 4", "diurnal", 300, 4, diurnal(900, 0.6)),
        ("spikes x2, 60 s rise", "spikes", 200, 1, spikes(2, 240, 450, 60)),
        ("spikes x2, 60 s", "spikes", 200, 1, spikes(2, 60, 300)),
        ("spikes x3, 120 s", "spikes", 200, 1, spikes(3, 120, 450)),
        ("spikes x3, 30 s rise", "spikes", 200, 1, spikes(3, 180, 450, 30)),
        ("spikes x1.5, 20 s, cv 2", "spikes", 300, 2, spikes(1.5, 20, 150)),
        ("ramp up x4", "ramps", 120, 1, ramp({0: 1, 0.2: 1, 0.8: 4, 1: 4})),
        ("ramp down x4", "ramps", 120, 1, ramp({0: 4, 0.2: 4, 0.8: 1, 1: 1})),
        ("ramps up and down", "ramps", 120, 1, ramp({0: 1, 0.25: 4, 0.5: 1, 0.75: 4, 1: 1})),
        ("ramp up x4 in 120 s", "ramps", 120, 1, ramp({0: 1, 0.4: 1, 0.5: 4, 0.9: 4, 1: 2})),
        ("ramp, cv 4", "ramps", 150, 4, ramp({0: 1, 0.2: 1, 0.6: 3, 0.8: 3, 1: 1})),
        ("steps of 200 s", "steps", 250, 1, steps(200, 1)),
        ("steps of 120 s, cv 2", "steps", 250, 2, steps(120, 2)),
        ("steps of 60 s", "steps", 250, 1, steps(60, 3)),
    ]
    t = np.arange(0, DURATION_S, _STEP_S)
    return [
        Trace(name=name, family=family, arrivals=generated(base * shape(t), cv, 1000 * seed + number))
        for number, (name, family, base, cv, shape) in enumerate(rows)
    ]
