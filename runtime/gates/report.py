"""The HTML pages: a release, two releases side by side, all models. They work on phones, in dark mode and in print.

Each page is self-contained: charts are inline SVG in the page's own text colour, and nothing is loaded from elsewhere.
"""

import difflib
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.text import printable
from shiplift.runtime.gates.comparison import interval_of
from shiplift.runtime.gates.timeline import span_s, timeline
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import LoadPoint, LoadReport, Trial, Tuned
from shiplift.runtime.records.precision import Candidate, Candidates, Engine, Precision, Slice, scale_of
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.spec.admitted import Admitted

_TREND = 12  # versions
# Each colour has a contrast of at least 3 against both backgrounds, light and dark; a test checks it.
_INK, _ACCENT, _SECOND, _FAINT, _LIMIT = "#010203", "#3b82f6", "#d97706", "#64748b", "#ef4444"
_COLOURS: dict[Precision, str] = {
    "fp64": "#0284c7",
    "fp32": _FAINT,
    "fp16": "#059669",
    "bf16": "#0d9488",
    "int8": _SECOND,
    "fp8": "#a855f7",
}
_MARKERS: dict[Engine, str] = {"openvino": "^", "trees": "s"}


@dataclass(frozen=True, kw_only=True)
class Story:
    """What is known about a release besides its report; None for stages that it did not reach.

    `how_exported` is a sentence. `deployed` are the targets of the deployed packages; `left_out` says, by target, why
    the others are not deployed. `load_table` is the load generator's own table as CSV (empty: none, or too long).
    """

    admitted: Admitted | None = None
    exported: Exported | None = None
    how_exported: str = ""
    candidates: Candidates | None = None
    tuned: Tuned | None = None
    package: Package | None = None
    deployed: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    load_report: LoadReport | None = None
    load_table: str = ""
    config: str = ""
    champion_config: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelSummary:
    """A model on the index page: its champion (0: none), its limits in words, and its releases, oldest first."""

    model: str
    champion: int
    limits: str
    releases: tuple[ReleaseReport, ...]


def render(report: ReleaseReport, story: Story) -> str:
    """The page of a release."""
    slo = story.admitted.slo if story.admitted else None
    confidence = slo.regression.confidence_percent if slo else 95
    bars = timeline(report)
    sliced = [candidate for candidate in story.candidates.candidates if candidate.slices] if story.candidates else []
    return _page(
        "report.html.j2",
        report=report,
        story=story,
        confidence=confidence,
        interval=lambda comparison, side: interval_of(comparison, side, confidence),
        charts=_charts(story, slo.p99_ms if slo else None),
        timeline=bars,
        span=span_s(bars),
        ranking=_ranking(story.tuned),
        sliced=sliced,
        scale=scale_of(story.candidates.metric) if story.candidates and story.candidates.metric else None,
        slices=_slices(sliced),
        changes=config_changes(story.champion_config, story.config),
        serving_name=serving_name(report.model),
    )


def render_comparison(left: tuple[ReleaseReport, Story], right: tuple[ReleaseReport, Story]) -> str:
    """The page of two releases side by side."""
    names = [f"{report.model} {report.version}" for report, _ in (left, right)]
    charts = []
    reports = [(name, story.load_report) for name, (_, story) in zip(names, (left, right), strict=True)]
    measured = [(name, load_report.points) for name, load_report in reports if load_report]
    if measured:
        charts.append(("p99 by concurrency", _svg(lambda axes: _sides(axes, measured, "p99_ms", "ms"))))
        charts.append(
            ("Throughput by concurrency", _svg(lambda axes: _sides(axes, measured, "throughput_per_s", "inferences/s")))
        )
    checks = [{check.name: check for check in report.checks} for report, _ in (left, right)]
    return _page(
        "comparison.html.j2",
        sides=(left, right),
        names=names,
        charts=charts,
        checks=[(name, *(side.get(name) for side in checks)) for name in dict.fromkeys([*checks[0], *checks[1]])],
        changes=config_changes(left[1].config, right[1].config),
    )


def render_index(summaries: tuple[ModelSummary, ...]) -> str:
    """The page of all models."""
    return _page("index.html.j2", summaries=[(summary, _trend(summary)) for summary in summaries])


def config_changes(before: str, after: str) -> list[tuple[str, str]]:
    """The lines of a unified diff, each with its CSS class: `added`, `removed`, `soft` or `same`.

    Empty if nothing differs, or if there is nothing to compare.
    """
    if not before or not after or before == after:
        return []
    kinds = {"+": "added", "-": "removed", "@": "soft"}
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2))[2:]
    return [(kinds.get(line[:1], "same"), line) for line in lines]


def pareto(trials: Iterable[Trial]) -> list[Trial]:
    """The trials that no other trial beats in both throughput and p99, slowest first."""
    front: list[Trial] = []
    for trial in sorted((t for t in trials if not t.error), key=lambda t: (-t.throughput_per_s, t.p99_ms)):
        if not front or trial.p99_ms < front[-1].p99_ms:
            front.append(trial)
    return front[::-1]


def _page(template: str, **variables: Any) -> str:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return _environment().get_template(template).render(when=now, **variables)


@cache
def _environment() -> Environment:
    """It keeps the compiled templates: to compile those of a report takes ten times as long as to render it."""
    return environment()


def environment() -> Environment:
    """How pages are rendered: values are text, never markup, with invisible characters made visible."""
    loader = PackageLoader("shiplift.templates", ".")
    made = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=loader,
        finalize=_shown,
    )
    made.filters.update(number=_number, ms=lambda value: f"{value:.2f}", short=lambda digest: digest[:12])
    return made


def _shown(value: object) -> object:
    """A value as the page shows it. HTML escaping would keep characters that override the text's direction."""
    return printable(value, lines=True) if isinstance(value, str) and not isinstance(value, Markup) else value


def _slices(candidates: list[Candidate]) -> list[tuple[str, int, list[Slice | None]]]:
    """Each slice with its number of samples, and each candidate's score on it (None: it was not evaluated)."""
    by_name = [{part.name: part for part in candidate.slices} for candidate in candidates]
    names = dict.fromkeys(name for parts in by_name for name in parts)
    return [
        (name, next(parts[name].samples for parts in by_name if name in parts), [parts.get(name) for parts in by_name])
        for name in names
    ]


def _ranking(tuned: Tuned | None) -> list[Trial]:
    """The ten best trials: those within limits first, then by price or throughput. Long windows replace short ones."""
    if tuned is None:
        return []
    latest = {(trial.variant, trial.config): trial for trial in tuned.trials if not trial.error}
    priced = any(trial.cost_per_million is not None for trial in latest.values())

    def order(trial: Trial) -> tuple[bool, float]:
        price = trial.cost_per_million if trial.cost_per_million is not None else float("inf")
        return not trial.within_slo, price if priced else -trial.throughput_per_s

    return sorted(latest.values(), key=order)[:10]


def _trend(summary: ModelSummary) -> str:
    """The p99 of a model's releases as a line above 0, and the last value as text.

    It is drawn by hand, because an index may have a thousand of them and a matplotlib figure takes 50 ms.
    """
    history = [
        (report.version, check.measured)
        for report in summary.releases
        for check in report.checks
        if check.name == "p99" and check.measured is not None
    ][-_TREND:]
    if len(history) < 2:
        return ""
    step, highest = 100 / (len(history) - 1), max(p99 for _, p99 in history) or 1
    line = " ".join(f"{at * step:.1f},{28 - 26 * p99 / highest:.1f}" for at, (_, p99) in enumerate(history))
    title = ", ".join(f"version {version}: {_number(p99)} ms" for version, p99 in history)
    x, y = line.rsplit(" ", 1)[1].split(",")
    return (
        f'<svg role="img" viewBox="-3 -1 106 32"><title>{title}</title>'
        f'<polyline points="{line}" fill="none" stroke="{_ACCENT}" stroke-width="2"/>'
        f'<circle cx="{x}" cy="{y}" r="3" fill="{_ACCENT}"/></svg>{_number(history[-1][1])}'
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0 or 0.01 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:.2e}"


def _charts(story: Story, p99_ms: float | None) -> list[tuple[str, str]]:
    """The charts of a release, each with its caption, as inline SVG."""
    charts: list[tuple[str, str]] = []
    load = story.load_report
    if load:
        charts.append(("Latency by concurrency", _svg(lambda axes: _latency(axes, load, p99_ms))))
        charts.append(("Throughput by concurrency", _svg(lambda axes: _throughput(axes, load))))
    if load and load.open_points:
        charts.append(("Latency by arrival rate (Poisson)", _svg(lambda axes: _rates(axes, load, p99_ms))))
    if story.tuned and story.tuned.trials:
        tuned = story.tuned
        charts.append(
            ("The best configurations tried, and the Pareto front", _svg(lambda a: _trials(a, tuned, p99_ms)))
        )
    return charts


def _latency(axes: Any, load: LoadReport, p99_ms: float | None) -> None:
    levels = [point.concurrency for point in load.points]
    for name, colour in (("p50_ms", _FAINT), ("p95_ms", _SECOND), ("p99_ms", _ACCENT)):
        axes.plot(levels, [getattr(p, name) for p in load.points], marker="o", color=colour, label=name[:3])
        if load.champion_points:
            champion = [getattr(p, name) for p in load.champion_points]
            axes.plot([p.concurrency for p in load.champion_points], champion, color=colour, linestyle=":")
    if load.champion_points:
        axes.plot([], [], color=_INK, linestyle=":", label="champion")
    _limit(axes, p99_ms)
    axes.set(xlabel="concurrent requests", ylabel="ms", ylim=(0, None))
    axes.legend(frameon=False)


def _throughput(axes: Any, load: LoadReport) -> None:
    axes.plot(
        [p.concurrency for p in load.points],
        [p.throughput_per_s for p in load.points],
        marker="o",
        color=_ACCENT,
        label="challenger",
    )
    if load.champion_points:
        champion = [p.throughput_per_s for p in load.champion_points]
        axes.plot([p.concurrency for p in load.champion_points], champion, color=_FAINT, marker="o", label="champion")
    if load.knee:
        axes.axvline(load.knee, color=_SECOND, linestyle="--", label="knee")
    axes.set(xlabel="concurrent requests", ylabel="inferences per second", ylim=(0, None))
    axes.legend(frameon=False)


def _rates(axes: Any, load: LoadReport, p99_ms: float | None) -> None:
    rates = [point.rate_per_s for point in load.open_points]
    for name, colour in (("p50_ms", _FAINT), ("p99_ms", _ACCENT)):
        axes.plot(rates, [getattr(p, name) for p in load.open_points], marker="o", color=colour, label=name[:3])
    closed = sorted(load.points, key=lambda point: point.throughput_per_s)
    axes.plot(
        [p.throughput_per_s for p in closed],
        [p.p99_ms for p in closed],
        color=_ACCENT,
        linestyle=":",
        label="p99, closed loop",
    )
    _limit(axes, p99_ms)
    axes.set(xlabel="requests per second", ylabel="ms", ylim=(0, None))
    axes.legend(frameon=False)


def _trials(axes: Any, tuned: Tuned, p99_ms: float | None) -> None:
    succeeded = [trial for trial in tuned.trials if not trial.error]
    for described in dict.fromkeys(trial.described for trial in succeeded):
        trials = [trial for trial in succeeded if trial.described == described]
        axes.scatter(
            [t.throughput_per_s for t in trials],
            [t.p99_ms for t in trials],
            color=_COLOURS[trials[0].precision],
            marker=_MARKERS.get(trials[0].engine, "o"),
            label=described,
        )
    front = pareto(tuned.trials)
    axes.plot([t.throughput_per_s for t in front], [t.p99_ms for t in front], color=_FAINT, label="Pareto front")
    best = tuned.best
    axes.scatter([best.throughput_per_s], [best.p99_ms], color=_ACCENT, marker="*", s=160, label="chosen", zorder=3)
    _limit(axes, p99_ms)
    axes.set(xlabel="inferences per second", ylabel="p99 in ms", ylim=(0, None))
    axes.legend(frameon=False)


def _sides(axes: Any, sides: list[tuple[str, tuple[LoadPoint, ...]]], field: str, unit: str) -> None:
    for (name, points), colour in zip(sides, (_FAINT, _ACCENT), strict=False):
        levels = [p.concurrency for p in points]
        axes.plot(levels, [getattr(p, field) for p in points], marker="o", color=colour, label=name)
    axes.set(xlabel="concurrent requests", ylabel=unit, ylim=(0, None))
    axes.legend(frameon=False)


def _limit(axes: Any, p99_ms: float | None) -> None:
    if p99_ms is not None:
        axes.axhline(p99_ms, color=_LIMIT, linestyle="--", label="p99 limit")


def _svg(draw: Callable[[Any], None]) -> str:
    import matplotlib as mpl  # noqa: PLC0415 - takes 0.4 s, once per release
    from matplotlib.figure import Figure  # noqa: PLC0415

    ink = {
        "text.parse_math": False,  # names are the author's: `$\frac{1$` is not a formula
        "text.color": _INK,
        "axes.edgecolor": _INK,
        "axes.labelcolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
    }
    with mpl.rc_context({**ink, "svg.fonttype": "none", "svg.hashsalt": "shiplift", "font.size": 9}):
        figure = Figure(figsize=(4.2, 2.8), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, axis="y", color=_FAINT, alpha=0.25)
        draw(axes)
        page = io.StringIO()
        figure.savefig(page, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = printable(page.getvalue(), lines=True)
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'role="img"', svg, count=1)
