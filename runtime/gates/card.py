"""The model card of a release, in Hugging Face's format: YAML front matter, then Markdown, of what was measured.

What nobody measured, such as a licence or who may use the model, is not in it: that is for its author to write.
"""

from datetime import UTC, datetime
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from shiplift.runtime.base.markdown import code
from shiplift.runtime.base.text import printable
from shiplift.runtime.gates.policy import operating_point
from shiplift.runtime.gates.report import Story
from shiplift.runtime.records.precision import Candidate, scale_of
from shiplift.runtime.records.release import ReleaseReport

_LIBRARIES = {  # Hugging Face's names of the libraries that MLflow's flavors are
    "catboost": "catboost",
    "keras": "keras",
    "lightgbm": "lightgbm",
    "onnx": "onnx",
    "pytorch": "pytorch",
    "sentence_transformers": "sentence-transformers",
    "sklearn": "sklearn",
    "tensorflow": "tensorflow",
    "transformers": "transformers",
    "xgboost": "xgboost",
}
_LATENCIES = {
    "p50_ms": "p50, ms",
    "p95_ms": "p95, ms",
    "p99_ms": "p99, ms",
    "throughput_per_s": "inferences per second",
}


def card_of(report: ReleaseReport, story: Story) -> str:
    """The card. It has the sections that the release got to."""
    served = _served(story)
    body = _environment().get_template("card.md.j2")
    text = body.render(
        report=report,
        story=story,
        served=served,
        metric=str(story.candidates.metric) if story.candidates and story.candidates.metric else "",
        better=_better(story),
        operating=_operating(story),
        when=datetime.now(UTC).strftime("%Y-%m-%d"),
    )
    return (
        f"---\n{yaml.safe_dump(_front_matter(report, story, served), sort_keys=False, allow_unicode=True)}---\n\n{text}"
    )


def _front_matter(report: ReleaseReport, story: Story, served: Candidate | None) -> dict[str, Any]:
    name = printable(f"{report.model}/{report.version}")
    flavor = story.admitted.model_version.flavor if story.admitted else ""
    results = [each for each in (_score(story, served), _speed(story)) if each]
    return {
        **({"library_name": _LIBRARIES[flavor]} if flavor in _LIBRARIES else {}),
        "tags": ["mlflow", "triton", "shiplift"],
        **({"metrics": [str(story.candidates.metric)]} if _scored(story, served) and story.candidates else {}),
        # the Hub refuses a model index without results
        **({"model-index": [{"name": name, "results": results}]} if results else {}),
    }


def _score(story: Story, served: Candidate | None) -> dict[str, Any] | None:
    """The task metric as a result of an evaluation; a card names no task, since none was declared."""
    if served is None or served.score is None or not story.candidates or not story.admitted:
        return None
    kind, data = str(story.candidates.metric), story.admitted.datasets
    return {
        "task": {"type": "other"},
        "dataset": {
            "type": "validation",
            "name": printable(data.validation_name or "validation"),
            "split": "validation",
        },
        "metrics": [{"type": kind, "value": served.score, "name": kind}],
    }


def _scored(story: Story, served: Candidate | None) -> bool:
    return _score(story, served) is not None


def _speed(story: Story) -> dict[str, Any] | None:
    """Latency and throughput of the load test as results."""
    point = _operating(story)
    if point is None or story.load_report is None:
        return None
    target = printable(story.load_report.target or "this machine")
    return {
        "task": {"type": "other"},
        "dataset": {"type": "load-test", "name": f"{point.concurrency} requests at once, on {target}"},
        "metrics": [{"type": kind, "value": getattr(point, kind), "name": name} for kind, name in _LATENCIES.items()],
    }


def _operating(story: Story) -> Any:
    """The load at which it was judged; None if it was not tested."""
    if not (story.load_report and story.load_report.points and story.admitted):
        return None
    return operating_point(story.load_report, story.admitted.slo)


def _served(story: Story) -> Candidate | None:
    """The candidate that serves, or would have."""
    if not (story.tuned and story.candidates):
        return None
    variant = story.tuned.best.variant
    return next((each for each in story.candidates.candidates if each.variant == variant), None)


def _better(story: Story) -> str:
    if not (story.candidates and story.candidates.metric):
        return ""
    return "larger is better" if scale_of(story.candidates.metric).better == 1 else "smaller is better"


def _environment() -> Environment:
    """Values are numbers or go through `code`: the card is Markdown, where HTML's escapes would be text."""
    made = Environment(
        autoescape=False,  # noqa: S701 - see above
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=PackageLoader("shiplift.templates", "."),
    )
    made.filters.update(
        code=code,
        cell=lambda text: code(str(text)).replace("|", "\\|"),  # in a table, even a span's bar ends a cell
        number=lambda value: "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}",
    )
    return made
