"""The candidates of a graph: every precision that the target allows, built and judged in a sandbox.

This module opens neither models nor data: the sandbox does, since a model may loop for ever. Graphs behind a front are
built the same way, and scored on texts or images through the front.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from shiplift.runtime.base.errors import SpecInvalid, Temporary
from shiplift.runtime.base.progress import measuring, progress
from shiplift.runtime.confinement.policy import QUANTIZE, QUANTIZE_WITH_METRIC, Entry
from shiplift.runtime.confinement.workplace import Workplace, workplace
from shiplift.runtime.families.ladder import logged, metric_file, recorded
from shiplift.runtime.families.work import Quantizing
from shiplift.runtime.host.outputs import require_regular
from shiplift.runtime.precision import tensorrt_plans
from shiplift.runtime.precision.limits import limits_of
from shiplift.runtime.records.kinds.exported import ExportedGraph, ExportedImage, ExportedText, Front
from shiplift.runtime.records.precision import Candidates
from shiplift.runtime.records.trees import CHECKPOINT
from shiplift.runtime.store.tuning_cache import tuning_cache
from shiplift.runtime.targets import machine

BUILD = Entry("shiplift.runtime.targets.precisions:build_precisions", QUANTIZE)
BUILD_WITH_METRIC = Entry("shiplift.runtime.targets.precisions:build_precisions", QUANTIZE_WITH_METRIC)
_TASK = "building and scoring the precisions"

GraphWork = Quantizing[ExportedGraph] | Quantizing[ExportedText] | Quantizing[ExportedImage]


def build_candidates(work: GraphWork, front: Front | None = None) -> Candidates:
    """Builds, scores and times each precision of the target, through the graph's `front` if it has one.

    Raises:
        DataInvalid: the logged data do not match the model.
        ExportFailed: fp32 does not load, or needs a newer ONNX Runtime than the target has.
        SandboxLimit: building takes more memory or time than the spec allows.
        Temporary: this machine is not the target: the target vanished, or a pod runs on the wrong node.
        MissingTool: the target is a GPU, and this environment can't run models on GPUs.
    """
    site, target, here = work.site, work.target, machine.this_machine()
    if reason := machine.mismatch(target, here):
        raise Temporary(f"target {target.name} is not this machine: {reason}", do="Check its node selector.")
    limits = limits_of(work.quantization, _TASK, site.policy)
    modelopt = site.modelopt if target.gpu and Path(site.modelopt).is_file() else ""  # only the image for GPUs has it
    read = [Path(modelopt).parent.parent] if modelopt else []
    entry = BUILD_WITH_METRIC if work.datasets.metric else BUILD
    with workplace(entry, Path(site.home), site.sandbox, read=read) as place, _learning(work, place):
        order = _order(work, place, front) | {
            "memory_mb": limits.memory_mb,
            "modelopt": modelopt,
            "built_on": here.capability,
            "unpacked_mb": site.policy.unpacked_mb,
            "samples": site.policy.samples,
        }
        progress(f"{_TASK} in the sandbox")
        with measuring():
            result, _ = place.sandbox.run(order, limits)
        require_regular(place.sandbox.work)
        return recorded(work, place, result)


def without_graph(candidates: Candidates, differs: str) -> Candidates:
    """The candidates without those made of a graph that is not the model, as `differs` says; empty: it is."""
    if not differs:
        return candidates
    judged = [
        each if each.engine == "trees" or each.dropped else each.model_copy(update={"dropped": differs})
        for each in candidates.candidates
    ]
    return candidates.model_copy(update={"candidates": tuple(sorted(judged, key=lambda each: bool(each.dropped)))})


@contextmanager
def _learning(work: GraphWork, place: Workplace) -> Iterator[None]:
    """Gives the sandbox the findings of earlier releases, and stores what this one adds, unless it fails.

    If the author's own metric runs in the sandbox, its code could write anything: such a sandbox gets no findings and
    adds none.
    """
    with ExitStack() as stack:
        if work.datasets.metric is None:
            stack.enter_context(
                tuning_cache(work.site, f"layers of {work.exported.graph}", place.sandbox.work / "layers")
            )
            if work.target.engine == "tensorrt":
                timings = place.sandbox.work / "timings"
                stack.enter_context(tuning_cache(work.site, tensorrt_plans.timings_name(work.target), timings))
        yield


def _order(work: GraphWork, place: Workplace, front: Front | None) -> dict[str, Any]:
    """Fetches what the sandbox needs, and returns where it is. Tools write next to the model that they convert."""
    store, exported = work.store, work.exported
    return {
        "model": str(store.fetch(exported.model, place.sandbox.work / "fp32") / "model.onnx"),
        "reference": str(store.fetch(exported.reference, place.folder / "reference.npz")),
        "work": str(place.sandbox.work),
        "signature": exported.signature.model_dump(mode="json"),
        "validation": logged(work, place, "validation"),
        "calibration": logged(work, place, "calibration"),
        "text": _text(work, place, front) if front else None,
        "trees": _trees(work, place),
        "metric": metric_file(work, place),
        "target": work.target.model_dump(mode="json"),
        "data": work.data.model_dump(mode="json"),
        "settings": work.quantization.model_dump(mode="json"),
        "precision": getattr(exported, "precision", "fp32"),  # of a graph behind a front, FP32
    }


def _trees(work: GraphWork, place: Workplace) -> dict[str, Any] | None:
    """The ensemble's checkpoint and its form; None: it is none, or the target does not use it.

    Raises:
        SpecInvalid: the target wants nothing else.
    """
    trees, engines = getattr(work.exported, "trees", None), work.target.engines
    if trees is None and engines == ("trees",):
        raise SpecInvalid(
            f"target {work.target.name} has `engine: trees`, but the model is not served as exact trees; the export's "
            "notes say why, if it is an ensemble of these",
            do="Set another engine.",
        )
    if trees is None or "trees" not in engines:
        return None
    folder = work.store.fetch(trees.files, place.sandbox.work / "exact-trees")
    return {"file": str(folder / CHECKPOINT), "form": trees.form.model_dump(mode="json")}


def _text(work: GraphWork, place: Workplace, front: Front) -> dict[str, Any]:
    files = work.store.fetch(front.files, place.folder / "text")
    return {"signature": front.signature.model_dump(mode="json"), "front": str(files)}
