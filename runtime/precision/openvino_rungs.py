"""What OpenVINO makes of the ladder's files, each scored on it: bf16 is a hint, int8 the calibrated file."""

from collections.abc import Mapping, Sequence

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.progress import progress
from shiplift.runtime.precision.evaluation import Validation
from shiplift.runtime.precision.timing import Run
from shiplift.runtime.records.precision import Built, Evaluation, Precision
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.target import Target

_LADDER: tuple[Precision, ...] = ("fp32", "fp16", "bf16", "int8")
_METHODS: dict[Precision, str] = {"fp32": "as exported", "fp16": "hint", "bf16": "hint"}
_CALIBRATED = ("static", "NNCF")  # their Q/DQ nodes are for both engines; dynamic ones are for ONNX Runtime alone
Scored = tuple[Built, Run | None]


def scored(
    built: Sequence[Built], runs: Mapping[int, Run], target: Target, signature: Signature, validation: Validation
) -> list[Scored]:
    """A candidate for each precision of the target, and what to time it with (None: it can't be had).

    `built` are the candidates for ONNX Runtime, fp32 first, and `runs` the files of those that could be built.
    """
    precisions = [precision for precision in _LADDER if precision in target.precisions]
    if any(spec.datatype == "BYTES" for spec in (*signature.inputs, *signature.outputs)):
        return [(_without(precision, "OpenVINO does not serve texts"), None) for precision in precisions]
    candidates = []
    for precision in precisions:
        sources = _sources(precision, built, runs)
        candidates += [_scored(precision, built[source], runs[source], validation) for source in sources]
        if not sources:
            why = "OpenVINO runs int8 from a calibrated file, and none could be built"
            candidates.append((_without(precision, why), None))
    return candidates


def _scored(precision: Precision, candidate: Built, source: Run, validation: Validation) -> Scored:
    run = Run(file=source.file, outputs=source.outputs, engine="openvino", precision=precision)
    progress(f"scoring {precision} on OpenVINO")
    try:
        evaluation = _evaluated(run, validation)
    except ShipliftError as error:
        return _without(precision, error.what), None
    kept = {"precision": precision, "engine": "openvino", "method": _METHODS.get(precision, candidate.method)}
    scores = evaluation.model_dump(include={"score", "score_error", "resamples", "samples", "relative_error"})
    update = kept | scores | {"slices": evaluation.slices, "dropped": evaluation.problem}
    return candidate.model_copy(update=update), None if evaluation.problem else run


def _evaluated(run: Run, validation: Validation) -> Evaluation:
    """How OpenVINO does on the validation set; a model that it loads and can't run has that as its problem."""
    running = run.session()
    try:
        return validation.evaluate(running)
    except RuntimeError as error:
        return Evaluation(problem=f"OpenVINO can't run the model: {' '.join(str(error).split())[:300]}")


def _sources(precision: Precision, built: Sequence[Built], runs: Mapping[int, Run]) -> list[int]:
    """The indices of the files that OpenVINO can compute a precision from."""
    if precision != "int8":
        return [0]
    return [index for index in runs if built[index].precision == "int8" and built[index].method.startswith(_CALIBRATED)]


def _without(precision: Precision, why: str) -> Built:
    return Built(engine="openvino", precision=precision, dropped=why)
