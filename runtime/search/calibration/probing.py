"""The sandboxed half of a calibration: makes the graphs, and times each form with the engines that serve.

Instances are threads of one process, each with a session of its own, as in the server; there is no server and no
client between, so only the engines and the cores are measured.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.progress import progress
from shiplift.runtime.model.openvino_models import OpenVinoSession
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.precision.timing import RunnableCandidate, TimedForest
from shiplift.runtime.records.calibration import GraphKind, Rate, Unavailable
from shiplift.runtime.search.calibration import graphs
from shiplift.runtime.search.calibration.cases import MOST_S, WINDOWS, CalibrationForm, Cases
from shiplift.runtime.spec.target import Target

PRELOAD = ("onnxruntime.quantization",)
Run = Callable[[], object]


def probe(*, work: str, cases: dict[str, Any], target: dict[str, Any]) -> dict[str, Any]:
    """Measures all cases; returns `rates`, `unavailable` and OpenVINO's `capabilities` as JSON. A sandbox entry."""
    wanted, folder, fit = Cases.model_validate(cases), Path(work), Target.model_validate(target)
    rates: list[Rate] = []
    unavailable: list[Unavailable] = []
    deadline = time.monotonic() + MOST_S
    kinds = tuple(dict.fromkeys(form.graph for form in wanted.forms))
    for at, graph in enumerate(kinds):
        running: dict[CalibrationForm, _Sessions] = {}
        for form in wanted.forms:
            if form.graph == graph:
                progress(f"{graph}: making {form.precision} on {form.engine}", at / len(kinds))
                try:
                    running[form] = _Sessions(candidate(form, fit, folder))
                    _runner(running[form].of(1, 1)[0], graphs.samples(graph, 1))
                except (ShipliftError, ImportError, RuntimeError) as error:
                    running.pop(form, None)
                    unavailable.append(_unavailable(form, error))
        progress(f"{graph}: measuring {len(running)} forms", (at + 0.5) / len(kinds))
        rates += _rates(graph, running, wanted, deadline)
    return {
        "rates": [rate.model_dump(mode="json") for rate in rates],
        "unavailable": [each.model_dump(mode="json") for each in unavailable],
        "capabilities": _capabilities(),
    }


def _unavailable(form: CalibrationForm, error: Exception) -> Unavailable:
    why = error.what if isinstance(error, ShipliftError) else " ".join(str(error).split())[:300] or repr(error)
    return Unavailable(graph=form.graph, engine=form.engine, precision=form.precision, why=why)


def candidate(form: CalibrationForm, target: Target, folder: Path) -> RunnableCandidate:
    """A form of a graph, whose files are written below `folder` unless they are there.

    Raises:
        QuantizeFailed: it can't be built.
        ImportError: this environment has no treelite.
    """
    if form.engine == "trees":
        file = folder / form.graph / "checkpoint.tl"
        forest = TimedForest(form=graphs.FOREST, signature=graphs.FOREST_SIGNATURE)
        return RunnableCandidate(
            file=_made(file, lambda: graphs.write_forest(file)), outputs=graphs.OUTPUTS, engine="trees", forest=forest
        )
    model = folder / form.graph / "fp32" / "model.onnx"
    _made(model, lambda: graphs.write_graph(form.graph, model))
    if form.precision == "int8":
        quantized = folder / form.graph / "int8" / "model.onnx"
        model = _made(quantized, lambda: graphs.write_int8(form.graph, model, target, folder / form.graph))
    return RunnableCandidate(file=model, outputs=graphs.OUTPUTS, engine=form.engine, precision=form.precision)


def _made(file: Path, make: Callable[[], Path]) -> Path:
    return file if file.exists() else make()


@dataclass(frozen=True)
class _Sessions:
    """A candidate's sessions by their number of threads, which placements share."""

    run: RunnableCandidate
    made: dict[int, list[Any]] = field(default_factory=dict)

    def of(self, instances: int, threads: int) -> list[Any]:
        """So many sessions."""
        sessions = self.made.setdefault(threads, [])
        while len(sessions) < instances:
            sessions.append(self.run.session(threads=threads))
        return sessions[:instances]


def _rates(
    graph: GraphKind, running: Mapping[CalibrationForm, _Sessions], cases: Cases, deadline: float
) -> Iterator[Rate]:
    """The rate of each form in each case. Forms take turns, so that what disturbs one window disturbs all alike."""
    for (instances, threads), batch in product(cases.placements, cases.batches):
        feeds = graphs.samples(graph, batch)
        runs = {
            form: [_runner(session, feeds) for session in sessions.of(instances, threads)]
            for form, sessions in running.items()
            if form.engine != "trees" or instances == 1 or threads == 1  # in process treelite takes one thread, or all
        }
        best = dict.fromkeys(runs, 0.0)
        for form in [*runs] * (WINDOWS if time.monotonic() < deadline else 1):
            best[form] = max(best[form], _calls_per_s(runs[form], cases.window_s))
        for form, calls_per_s in best.items():
            yield Rate(
                graph=graph,
                engine=form.engine,
                precision=form.precision,
                instances=instances,
                threads=threads,
                batch=batch,
                rows_per_s=round(batch * calls_per_s, 3),
            )


def _runner(session: Any, feeds: Arrays) -> Run:
    """Runs a session on the same rows again and again, after a first run, which allocates and compiles."""
    if isinstance(session, OpenVinoSession):
        run = _again(session.request(feeds))
    else:
        run = partial(session.run, list(graphs.OUTPUTS), feeds)
    run()
    return run


def _again(request: Any) -> Run:
    """Runs a request of OpenVINO's again and again, as the server does."""

    def run() -> None:
        request.start_async()
        request.wait()

    return run


def _calls_per_s(runs: Sequence[Run], window_s: float) -> float:
    """The calls per second of all runs together, each in a thread of its own; each gets at least one call."""
    deadline = time.perf_counter() + window_s

    def calls_per_s(run: Run) -> float:
        started, calls = time.perf_counter(), 0
        while not calls or time.perf_counter() < deadline:
            run()
            calls += 1
        return calls / (time.perf_counter() - started)

    if len(runs) == 1:
        return calls_per_s(runs[0])
    with ThreadPoolExecutor(len(runs)) as pool:
        return sum(pool.map(calls_per_s, runs))


def _capabilities() -> list[str]:
    """What OpenVINO says that it computes in on this processor; empty without OpenVINO."""
    try:
        import openvino  # noqa: PLC0415
    except ImportError:
        return []
    return sorted(openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
