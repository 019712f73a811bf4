"""The plot of `make bench`: throughput and p99 against concurrency, with a column per model, as a standalone SVG."""

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
    "triton-analyzer": "#b48ad9",
    "litserve-onnxruntime": "#3d405b",
    "litserve-torch-bf16": "#8d99ae",
    "bentoml": "#d4669c",
    "ray-serve": "#2a9dc4",
    "mlserver": "#8a6d3b",
    "pytriton": "#6aa84f",
}


def colour(side: str) -> str:
    """The colour of a side; matplotlib's grey for those without one."""
    return _COLOURS.get(side, "tab:gray")


def draw(cells: Sequence[Cell], to: Path) -> None:
    """Draws medians as lines and extremes over the rounds as error bars; both axes are logarithmic."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    models = list(dict.fromkeys(cell.model for cell in cells))
    figure, axes = plt.subplots(2, len(models), figsize=(4 * len(models), 7), squeeze=False, layout="constrained")
    for column, model in enumerate(models):
        of_model = [cell for cell in cells if cell.model == model]
        for row, (attribute, label) in enumerate((("throughput_per_s", "answers per second"), ("p99_ms", "p99, ms"))):
            _panel(axes[row][column], of_model, attribute)
            axes[row][column].set(xlabel="concurrency", ylabel=label, title=model if not row else "")
    sides = {label: handle for axis in axes[0] for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(sides.values(), sides.keys(), loc="outside lower center", ncols=min(len(sides), 6), frameon=False)
    figure.savefig(to, metadata={"Date": None})
    plt.close(figure)


def _panel(axis: Any, cells: Sequence[Cell], attribute: str) -> None:
    for side in dict.fromkeys(cell.side for cell in cells):
        points = sorted((cell.concurrency, getattr(cell, attribute)) for cell in cells if cell.side == side)
        concurrencies, spreads = [point[0] for point in points], [point[1] for point in points]
        errors = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
        axis.errorbar(
            concurrencies,
            [s.median for s in spreads],
            yerr=errors,
            label=side,
            color=colour(side),
            marker="o",
            markersize=4,
            capsize=3,
            linewidth=2 if side == OURS else 1.2,
        )
    axis.set(xscale="log", yscale="log")
    ticks = sorted({cell.concurrency for cell in cells})
    axis.set_xticks(ticks, labels=[str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
