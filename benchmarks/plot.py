"""The plot of `make bench`: throughput and p99 against concurrency, a column a model, one SVG that stands alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.ratios import OURS, Cell

_COLOURS = {
    OURS: "#0b6e4f",
    "flask-torch": "#c44536",
    "fastapi-onnxruntime": "#e09f3e",
    "mlflow-serve": "#5b7db1",
    "triton-default": "#7d5ba6",
}


def draw(cells: Sequence[Cell], to: Path) -> None:
    """Medians as lines, extremes over the rounds as bars, both axes logarithmic."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    models = list(dict.fromkeys(cell.model for cell in cells))
    figure, axes = plt.subplots(2, len(models), figsize=(4 * len(models), 7), squeeze=False, layout="constrained")
    for column, model in enumerate(models):
        of = [cell for cell in cells if cell.model == model]
        for row, (attribute, label) in enumerate((("throughput_per_s", "answers a second"), ("p99_ms", "p99, ms"))):
            _panel(axes[row][column], of, attribute)
            axes[row][column].set(xlabel="concurrency", ylabel=label, title=model if not row else "")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(to, metadata={"Date": None})
    plt.close(figure)


def _panel(axis: Any, cells: Sequence[Cell], attribute: str) -> None:
    for side, colour in _COLOURS.items():
        found = sorted((cell.concurrency, getattr(cell, attribute)) for cell in cells if cell.side == side)
        at, values = [one[0] for one in found], [one[1] for one in found]
        apart = [[v.median - v.low for v in values], [v.high - v.median for v in values]]
        axis.errorbar(
            at, [v.median for v in values], yerr=apart, label=side, color=colour, marker="o", markersize=4, capsize=3,
            linewidth=2 if side == OURS else 1.2,
        )  # fmt: skip
    axis.set(xscale="log", yscale="log")
    ticks = sorted({cell.concurrency for cell in cells})
    axis.set_xticks(ticks, labels=[str(one) for one in ticks])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
