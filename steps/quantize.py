"""Quantization: every precision of the model that the target allows, built and judged in a sandbox.

This step fetches what the sandbox needs and stores what it built. It opens neither: the sandbox runs the model, which
may loop for ever, on the author's data.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from shiplift.runtime.base.errors import Temporary
from shiplift.runtime.base.progress import measuring, progress
from shiplift.runtime.confinement.policy import PYTHON_HOST, QUANTIZE, QUANTIZE_WITH_METRIC, Entry
from shiplift.runtime.confinement.workplace import Workplace, workplace
from shiplift.runtime.host.outputs import require_regular
from shiplift.runtime.model.generation.targets import check_generating, check_not_generating
from shiplift.runtime.model.python.bundle import write_bundle
from shiplift.runtime.model.python.environments import ensure_for, readable
from shiplift.runtime.model.python.targets import check_target
from shiplift.runtime.precision import tensorrt_plans
from shiplift.runtime.precision.limits import limits_of
from shiplift.runtime.precision.scoring import jpegs
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.model import Datasets, Exported, PythonModel, TextFront
from shiplift.runtime.records.precision import AS_EXPORTED, Built, Candidate, Candidates, Engine, Ladder
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.model import Data, OwnMetric, Quantization
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.tuning_cache import tuning_cache
from shiplift.runtime.targets import machine

SCORE = Entry("shiplift.runtime.targets.python_precision:score_python", PYTHON_HOST)
BUILD = Entry("shiplift.runtime.targets.precisions:build_precisions", QUANTIZE)
BUILD_WITH_METRIC = Entry("shiplift.runtime.targets.precisions:build_precisions", QUANTIZE_WITH_METRIC)
_TASK = "building and scoring the precisions"


def quantize(
    site: Site, target: Target, exported: Exported, datasets: Datasets, data: Data, quantization: Quantization
) -> Candidates:
    """Builds, scores and times each precision of the target.

    Raises:
        DataInvalid: the logged data do not match the model.
        ExportFailed: fp32 does not load, or needs a newer ONNX Runtime than the target has.
        SandboxLimit: it takes more memory or time than the spec allows.
        Temporary: this machine is not the target: the target vanished, or a pod was put on the wrong node.
        MissingTool: the target is a GPU, and this environment can't run models on GPUs.
        SpecInvalid: the target can't serve a Python model, or one that generates text; or the spec has qualities of
            JPEG for a model that takes no images.
    """
    if data.jpeg_qualities and exported.text is None:
        raise jpegs.no_images()
    if exported.composes:
        return _composed(target, exported)
    if exported.generates:
        check_generating(target)
        return _generating(target, exported, datasets)
    check_not_generating(target)
    if exported.python:
        check_target(target)
        return _scored_as_it_is(site, target, exported, exported.python, datasets, data, quantization)
    here = machine.this_machine()
    if reason := machine.mismatch(target, here):
        raise Temporary(f"target {target.name} is not this machine: {reason}", do="Check its node selector.")
    store, limits = ArtifactStore(site.artifacts_uri), limits_of(quantization, _TASK, site.policy)
    modelopt = site.modelopt if target.gpu and Path(site.modelopt).is_file() else ""  # only the image for GPUs has it
    read = [Path(modelopt).parent.parent] if modelopt else []
    entry = BUILD_WITH_METRIC if datasets.metric else BUILD
    with (
        workplace(entry, Path(site.home), site.sandbox, read=read) as place,
        _learning(site, target, exported, place, trusted=datasets.metric is None),
    ):
        order = _order(store, place, exported, datasets) | {
            "metric": _metric(store, place, data, datasets),
            "target": target.model_dump(mode="json"),
            "data": data.model_dump(mode="json"),
            "settings": quantization.model_dump(mode="json"),
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
        ladder = Ladder.model_validate(result)
        candidates = tuple(_stored(store, place, exported, built) for built in ladder.candidates)
    return _candidates(target, datasets, ladder, candidates)


def _candidates(
    target: Target, datasets: Datasets, ladder: Ladder, candidates: tuple[Candidate, ...]
) -> Candidates:  # fmt: skip
    return Candidates(
        target=target.name,
        metric=ladder.metric,
        validation=datasets.validation.sha256 if datasets.validation else "",
        candidates=candidates,
        jpegs=ladder.jpegs,
        notes=ladder.notes,
    )


def _generating(target: Target, exported: Exported, datasets: Datasets) -> Candidates:
    """A text generator's only candidate: its tokens were compared at export, and have no other score.

    OpenVINO runs what was exported, in fp32; another engine reads the model's own weights.
    """
    engine: Engine = target.engine if target.writes and target.engine != "auto" else "openvino"
    candidate = Candidate(
        engine=engine, precision=target.precisions[0] if target.writes else "fp32",
        method="as logged" if target.writes else "as exported", model=exported.model,
        size_bytes=exported.model.size_bytes,
    )  # fmt: skip
    notes = ("Validation data are not used: the tokens that a model generates have no metric yet.",)
    return Candidates(
        target=target.name, metric=None, candidates=(candidate,), notes=notes if datasets.validation else ()
    )


def _composed(target: Target, exported: Exported) -> Candidates:
    """A pipeline's only candidate, scored once its members are put together: their precisions are as promoted."""
    candidate = Candidate(precision="fp32", method="as its members were promoted", model=exported.model)
    return Candidates(target=target.name, metric=None, candidates=(candidate,))


def _scored_as_it_is(
    site: Site, target: Target, exported: Exported, python: PythonModel, datasets: Datasets, data: Data,
    quantization: Quantization,
) -> Candidates:  # fmt: skip
    """A Python model's only candidate: the model as it was logged."""
    store, limits = ArtifactStore(site.artifacts_uri), limits_of(quantization, "scoring the Python model", site.policy)
    root = ensure_for(site, python, store)
    with workplace(SCORE, Path(site.home), site.sandbox, read=[root]) as place, measuring():
        code = write_bundle(place.folder / "code")
        model = store.fetch(exported.model, place.folder / "source")
        file = datasets.validation
        order = {
            "code": str(code),
            "environment": str(root),
            "model": str(model),
            "read": readable(root, code, model),
            "reference": str(store.fetch(exported.reference, place.folder / "reference.npz")),
            "signature": exported.signature.model_dump(mode="json"),
            "validation": [str(store.fetch(file, place.folder / "data")), datasets.validation_name] if file else None,
            "metric": _metric(store, place, data, datasets),
            "data": data.model_dump(mode="json"),
            "memory_mb": min(python.memory_mb, limits.memory_mb),
            "limit_s": limits.timeout_s,
            "allow_without": list(site.sandbox.allow_without),
            "unpacked_mb": site.policy.unpacked_mb,
            "samples": site.policy.samples,
        }
        progress("scoring the Python model in the sandbox")
        result, _ = place.sandbox.run(order, limits)
        ladder = Ladder.model_validate(result)
        candidates = tuple(_stored(store, place, exported, built) for built in ladder.candidates)
    return _candidates(target, datasets, ladder, candidates)


@contextmanager
def _learning(
    site: Site, target: Target, exported: Exported, place: Workplace, *, trusted: bool
) -> Iterator[None]:  # fmt: skip
    """Gives the sandbox what earlier releases learnt, and stores what this one adds, unless it fails.

    Where it is not `trusted`, because the author's code runs in it, it learns and teaches nothing.
    """
    with ExitStack() as stack:
        if not trusted:
            yield
            return
        stack.enter_context(tuning_cache(site, f"layers of {exported.graph}", place.sandbox.work / "layers"))
        if target.engine == "tensorrt":
            stack.enter_context(tuning_cache(site, tensorrt_plans.timings_name(target), place.sandbox.work / "timings"))
        yield


def _order(store: ArtifactStore, place: Workplace, exported: Exported, datasets: Datasets) -> dict[str, Any]:
    """Fetches what the sandbox needs, and returns where it is. Tools write next to the model that they convert."""
    folder = place.folder

    def logged(name: str, file: Artifact | None, logged_name: str) -> list[str] | None:
        return [str(store.fetch(file, folder / name)), logged_name] if file else None

    return {
        "model": str(store.fetch(exported.model, place.sandbox.work / "fp32") / "model.onnx"),
        "reference": str(store.fetch(exported.reference, folder / "reference.npz")),
        "work": str(place.sandbox.work),
        "signature": exported.signature.model_dump(mode="json"),
        "validation": logged("validation", datasets.validation, datasets.validation_name),
        "calibration": logged("calibration", datasets.calibration, datasets.calibration_name),
        "text": _text(store, place, exported.text) if exported.text else None,
    }


def _metric(store: ArtifactStore, place: Workplace, data: Data, datasets: Datasets) -> str:
    """The file of the author's own metric, named as it was logged; empty if there is none."""
    if datasets.metric is None or not isinstance(data.metric, OwnMetric):
        return ""
    return str(store.fetch(datasets.metric, place.folder / data.metric.python))


def _text(store: ArtifactStore, place: Workplace, text: TextFront) -> dict[str, Any]:
    front = store.fetch(text.files, place.folder / "text")
    return {"signature": text.signature.model_dump(mode="json"), "front": str(front)}


def _stored(store: ArtifactStore, place: Workplace, exported: Exported, built: Built) -> Candidate:
    """The candidate with its model in the store."""
    fields = {name: getattr(built, name) for name in Candidate.model_fields}
    model = exported.model if built.folder == AS_EXPORTED else None
    if built.folder and model is None:
        model = store.put_tree(place.sandbox.work / built.folder)
    return Candidate(**fields | {"model": model})
