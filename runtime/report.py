"""The HTML report: one self-contained page per release, readable on a phone, in the dark and on paper.

Charts are inline SVG whose ink is the page's own text colour; nothing is loaded from anywhere.
"""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from runtime import policy
from runtime.admitted import Admitted
from runtime.records import Candidates, Exported, LoadReport, Package, ReleaseReport, Tuned

_INK, _ACCENT, _SECOND, _FAINT = "#010203", "#3b82f6", "#f59e0b", "#94a3b8"


@dataclass(frozen=True, kw_only=True)
class Story:
    """What is known of a release beside its report; None where it did not get that far."""

    admitted: Admitted | None = None
    exported: Exported | None = None
    candidates: Candidates | None = None
    tuned: Tuned | None = None
    package: Package | None = None
    load_report: LoadReport | None = None
    config: str = ""


def render(report: ReleaseReport, story: Story) -> str:
    """The page."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(number=_number, ms=lambda value: f"{value:.2f}", short=lambda digest: digest[:12])
    template = environment.from_string(files("templates").joinpath("report.html.j2").read_text())
    slo = story.admitted.slo if story.admitted else None
    confidence = slo.regression.confidence_percent if slo else 95
    return template.render(
        confidence=confidence,
        interval=lambda comparison, side: policy.interval_of(comparison, side, confidence),
        report=report,
        story=story,
        when=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        charts=_charts(story, slo.p99_ms if slo else None),
        longest=max((stage.seconds for stage in report.stages), default=1.0) or 1.0,
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value == 0 or 0.01 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:.2e}"


def _charts(story: Story, p99_ms: float | None) -> list[tuple[str, str]]:
    """Captions and inline SVG."""
    found: list[tuple[str, str]] = []
    if story.load_report:
        points = story.load_report.points
        found.append(("Latency by concurrency", _svg(lambda axes: _latency(axes, points, p99_ms))))
        found.append(("Throughput by concurrency", _svg(lambda axes: _throughput(axes, points))))
    if story.tuned and story.tuned.trials:
        tuned = story.tuned
        found.append(("Every configuration tried", _svg(lambda axes: _trials(axes, tuned, p99_ms))))
    return found


def _latency(axes: Any, points: Any, p99_ms: float | None) -> None:
    levels = [point.concurrency for point in points]
    for name, colour in (("p50_ms", _FAINT), ("p95_ms", _SECOND), ("p99_ms", _ACCENT)):
        axes.plot(levels, [getattr(p, name) for p in points], marker="o", color=colour, label=name[:3])
    if p99_ms is not None:
        axes.axhline(p99_ms, color="#ef4444", linestyle="--", label="p99 limit")
    axes.set(xlabel="concurrent requests", ylabel="ms", ylim=(0, None))
    axes.legend(frameon=False)


def _throughput(axes: Any, points: Any) -> None:
    axes.plot([p.concurrency for p in points], [p.throughput_per_s for p in points], marker="o", color=_ACCENT)
    axes.set(xlabel="concurrent requests", ylabel="inferences per second", ylim=(0, None))


def _trials(axes: Any, tuned: Tuned, p99_ms: float | None) -> None:
    for precision, colour in (("fp32", _FAINT), ("int8", _SECOND)):
        trials = [t for t in tuned.trials if t.precision == precision and not t.error]
        if trials:
            axes.scatter(
                [t.throughput_per_s for t in trials], [t.p99_ms for t in trials], color=colour, label=precision
            )
    best = tuned.best
    axes.scatter([best.throughput_per_s], [best.p99_ms], color=_ACCENT, marker="*", s=160, label="chosen")
    if p99_ms is not None:
        axes.axhline(p99_ms, color="#ef4444", linestyle="--", label="p99 limit")
    axes.set(xlabel="inferences per second", ylabel="p99 in ms", ylim=(0, None))
    axes.legend(frameon=False)


def _svg(draw: Callable[[Any], None]) -> str:
    import matplotlib as mpl  # noqa: PLC0415 - 0.4 s, once a release
    from matplotlib.figure import Figure  # noqa: PLC0415

    ink = {
        "text.color": _INK,
        "axes.edgecolor": _INK,
        "axes.labelcolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
    }
    with mpl.rc_context({**ink, "svg.fonttype": "none", "svg.hashsalt": "shiplift", "font.size": 9}):
        figure = Figure(figsize=(4.6, 2.9), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, axis="y", color=_FAINT, alpha=0.25)
        draw(axes)
        page = io.StringIO()
        figure.savefig(page, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawn = page.getvalue()
    drawn = drawn[drawn.index("<svg") :].replace(_INK, "currentColor")
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'role="img"', drawn, count=1)
