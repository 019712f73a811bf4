"""Charts as SVG in the page's own colours. The server draws them: no script, and they work in the dark and in print."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from shiplift.runtime.base.text import printable
from shiplift.runtime.gates.report import pareto
from shiplift.runtime.records.measurement import Tuned

_WIDTH, _HEIGHT = 420, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 12, 40
_TICKS = 4


@dataclass(frozen=True, kw_only=True)
class PlotPoint:
    """A point of a chart, and what it stands for; `kind` is its CSS class: `point`, `front` or `chosen`."""

    x: float
    y: float
    title: str
    kind: str = "point"


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Points, a line through those of `line`, and a horizontal limit. `what` tells it to those who can't see it."""

    what: str
    x: str
    y: str
    points: tuple[PlotPoint, ...]
    line: tuple[PlotPoint, ...] = ()
    limit: float | None = None
    whole: bool = False  # x counts something, such as versions

    def draw(self) -> Markup:
        """The chart as SVG; empty if there are no points."""
        if not self.points:
            return Markup()
        across = _Axis.of((each.x for each in self.points), whole=self.whole)
        values = [each.y for each in self.points] + ([self.limit] if self.limit is not None else [])
        up = _Axis.of(values)
        parts = [*_grid(across, up), *self._limit(up), *self._line(across, up)]
        parts += [_dot(each, across.at(each.x, _LEFT, _WIDTH - _RIGHT), _y(up, each.y)) for each in self.points]
        parts += _labels(self.x, self.y)
        head = f'<svg class="chart" role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}"><title>{_text(self.what)}</title>'
        return Markup(f"{head}{''.join(parts)}</svg>")  # noqa: S704 - texts are escaped in `_text`

    def _limit(self, up: "_Axis") -> list[str]:
        if self.limit is None:
            return []
        y = _y(up, self.limit)
        return [f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>']

    def _line(self, across: "_Axis", up: "_Axis") -> list[str]:
        places = " ".join(f"{across.at(each.x, _LEFT, _WIDTH - _RIGHT):.1f},{_y(up, each.y):.1f}" for each in self.line)
        return [f'<polyline class="line" points="{places}"/>'] if self.line else []


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    ticks: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float], *, whole: bool = False) -> "_Axis":
        """An axis with round ticks around the values."""
        known = list(values)
        low, high = min(known), max(known)
        step = _round_step((high - low) / _TICKS or abs(high) / _TICKS or 1.0)
        step = max(1.0, round(step)) if whole else step
        first, last = math.floor(low / step), math.ceil(high / step)
        first, last = (first, last) if last > first else (first, first + 1)
        return cls(first * step, last * step, tuple(at * step for at in range(first, last + 1)))

    def at(self, value: float, start: float, end: float) -> float:
        """The coordinate of a value."""
        return start + (end - start) * (value - self.low) / (self.high - self.low)


def trend(values: Sequence[tuple[int, float]], unit: str) -> Markup:
    """The newest value of each version as a small line, for a table; empty if there are fewer than two."""
    known = [(version, value) for version, value in values if math.isfinite(value)][-12:]
    if len(known) < 2:
        return Markup()
    low, high = min(value for _, value in known), max(value for _, value in known)
    step, span = 100 / (len(known) - 1), (high - low) or 1.0
    places = [(at * step, 26 - 22 * (value - low) / span) for at, (_, value) in enumerate(known)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    title = _text(", ".join(f"version {version}: {value:.4g} {unit}".rstrip() for version, value in known))
    x, y = places[-1]
    return Markup(  # noqa: S704 - the text is escaped in `_text`
        f'<svg class="trend" role="img" viewBox="-4 0 108 30"><title>{title}</title>'
        f'<polyline class="line" points="{line}"/><circle class="chosen" cx="{x:.1f}" cy="{y:.1f}" r="3"/></svg>'
    )


def over_versions(what: str, unit: str, values: Sequence[tuple[int, float]], *, limit: float | None = None) -> Markup:
    """A figure over a model's versions."""
    points = tuple(
        PlotPoint(x=version, y=value, title=f"version {version}: {value:.4g} {unit}".rstrip())
        for version, value in values
        if math.isfinite(value)
    )
    chart = Chart(
        what=f"{what} over versions", x="version", y=unit or what, points=points, line=points, limit=limit, whole=True
    )
    return chart.draw()


def search_chart(tuned: Tuned, p99_ms: float | None) -> Markup:
    """What the search measured: p99 against throughput, the Pareto front, and the configuration that it chose."""
    front = {id(trial) for trial in pareto(tuned.trials)}
    points = []
    for trial in tuned.trials:
        if trial.error or not (math.isfinite(trial.p99_ms) and math.isfinite(trial.throughput_per_s)):
            continue
        kind = "chosen" if trial == tuned.best else "front" if id(trial) in front else "point"
        where = f"batch {trial.config.max_batch}, {trial.config.instances} x {trial.config.threads}"
        title = f"{trial.described}, {where}: {trial.throughput_per_s:.0f}/s, p99 {trial.p99_ms:.2f} ms"
        points.append(PlotPoint(x=trial.throughput_per_s, y=trial.p99_ms, title=title, kind=kind))
    line = [PlotPoint(x=t.throughput_per_s, y=t.p99_ms, title="") for t in pareto(tuned.trials)]
    return Chart(
        what="p99 and throughput of every configuration that was measured, with the Pareto front",
        x="inferences per second",
        y="p99 in ms",
        points=tuple(points),
        line=tuple(each for each in line if math.isfinite(each.x) and math.isfinite(each.y)),
        limit=p99_ms,
    ).draw()


def _round_step(rough: float) -> float:
    """The next of 1, 2, 5, 10 ... that is at least this large."""
    size = 10.0 ** math.floor(math.log10(rough))
    return next(factor * size for factor in (1, 2, 5, 10) if factor * size >= rough * 0.999)


def _grid(across: _Axis, up: _Axis) -> list[str]:
    bottom = _HEIGHT - _BOTTOM
    parts = []
    for tick in up.ticks:
        y = _y(up, tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:.5g}</text>')
    for tick in across.ticks:
        x = across.at(tick, _LEFT, _WIDTH - _RIGHT)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{tick:.6g}</text>')
    return parts


def _labels(x: str, y: str) -> list[str]:
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    height = (_TOP + _HEIGHT - _BOTTOM) / 2
    return [
        f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{_text(x)}</text>',
        f'<text transform="translate(11 {height}) rotate(-90)" text-anchor="middle">{_text(y)}</text>',
    ]


def _dot(point: PlotPoint, x: float, y: float) -> str:
    radius = 5 if point.kind == "chosen" else 3.5
    place = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius}"'
    return f'<circle class="{point.kind}" {place}><title>{_text(point.title)}</title></circle>'


def _y(up: _Axis, value: float) -> float:
    return up.at(value, _HEIGHT - _BOTTOM, _TOP)


def _text(text: str) -> str:
    return str(escape(printable(text)))
