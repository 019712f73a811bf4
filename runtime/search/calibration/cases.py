"""What a calibration measures: which graphs in which forms, on how many instances and threads, in which batches."""

from collections.abc import Iterator

from shiplift.runtime.records.base import Record
from shiplift.runtime.records.calibration import GraphKind
from shiplift.runtime.records.precision import Engine, Precision
from shiplift.runtime.spec.target import Target

_MOST_INSTANCES = 8  # as many as a search tries
_BUDGET_S, _QUICK_S = 24.0, 3.0  # of all windows together; graphs are made and compiled in as much time again
_LONGEST_S, _SHORTEST_S = 0.06, 0.02
MOST_S = 40.0  # then one window is enough: on a slow machine a single call is longer than a window
WINDOWS = 3  # of which the best counts: others can only make a machine seem slower


class CalibrationForm(Record):
    """A graph on an engine in a precision."""

    graph: GraphKind
    engine: Engine
    precision: Precision


class Cases(Record):
    """All that is measured: each form on each placement (instances, threads), in each batch, for `window_s`."""

    forms: tuple[CalibrationForm, ...]
    placements: tuple[tuple[int, int], ...]
    batches: tuple[int, ...]
    window_s: float


def cases_for(target: Target, cores: int, *, quick: bool) -> Cases:
    """The cases for a target on so many cores; their windows take at most 24 s together, or 3 s if `quick`."""
    forms, placements = tuple(_forms(target)), placements_of(cores, quick=quick)
    batches = (1, 8) if quick else (1, 8, 32)
    each = (_QUICK_S if quick else _BUDGET_S) / (len(forms) * len(placements) * len(batches) * WINDOWS)
    window_s = min(_LONGEST_S, max(_SHORTEST_S, each))
    return Cases(forms=forms, placements=placements, batches=batches, window_s=round(window_s, 4))


def placements_of(cores: int, *, quick: bool) -> tuple[tuple[int, int], ...]:
    """One thread, and the ways to use all cores: one instance on all, as many as there are, and those in between."""
    ends = {(1, 1), (1, cores), (min(cores, _MOST_INSTANCES), max(1, cores // _MOST_INSTANCES))}
    between = {(2**e, cores // 2**e) for e in range(1, 4) if 2**e < cores and cores % 2**e == 0}
    return tuple(sorted(ends if quick else ends | between))


def _forms(target: Target) -> Iterator[CalibrationForm]:
    """Each precision on each engine that serves it on a CPU. ONNX Runtime has no kernels for bf16 and fp16 there."""
    graphs: tuple[GraphKind, ...] = ("dense", "small")
    for graph in graphs:
        for engine in target.engines:
            for precision in target.precisions:
                if engine == "openvino" or (engine == "onnxruntime" and precision in ("fp32", "int8")):
                    yield CalibrationForm(graph=graph, engine=engine, precision=precision)
    for engine in target.engines:
        if engine in ("onnxruntime", "trees"):
            yield CalibrationForm(graph="trees", engine=engine, precision="fp32")
