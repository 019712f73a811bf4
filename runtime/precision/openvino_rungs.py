"""OpenVINO's candidates from the ladder's files, each scored on OpenVINO: bf16 is a hint, int8 the calibrated file.

bf16 comes first: it needs neither a build nor a calibration. On a processor that computes in bf16, it is several times
as fast as fp32, and closer to it than any 8-bit graph. Building and scoring 8-bit graphs takes most of a ladder's time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.progress import progress
from shiplift.runtime.host.processor import usable_cores
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.precision import timing
from shiplift.runtime.precision.evaluation import Validation, over_budget
from shiplift.runtime.precision.timing import RunnableCandidate
from shiplift.runtime.records.precision import Built, Evaluation, Precision
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.model import Quantization
from shiplift.runtime.spec.target import Target

_LADDER: tuple[Precision, ...] = ("fp32", "fp16", "bf16", "int8")
_METHODS: dict[Precision, str] = {"fp32": "as exported", "fp16": "hint", "bf16": "hint"}
_CALIBRATED = ("static", "NNCF")  # both engines run these Q/DQ nodes; only ONNX Runtime runs dynamic ones
_FASTER = 1.5  # times as fast as fp32; a processor that only emulates bf16 is slower than fp32
Scored = tuple[Built, RunnableCandidate | None]


@dataclass(frozen=True, kw_only=True)
class Bf16First:
    """bf16 on OpenVINO, scored and timed before anything is built.

    `wins` says why little else needs to be built; empty if bf16 is too inaccurate, or hardly faster than fp32.
    """

    scored: Scored
    wins: str


def bf16_first(
    top: Built, run: RunnableCandidate, inputs: Arrays, validation: Validation, base: Evaluation, settings: Quantization
) -> Bf16First:
    """Scores bf16 on OpenVINO against fp32, which is `top` with `run`, and times both on `inputs`."""
    candidate, bf16 = score("bf16", top, run, validation)
    if bf16 is None or over_budget(base, candidate.evaluation, validation.metric, settings):
        return Bf16First(scored=(candidate, bf16), wins="")
    speedup = timing.speedup(run, bf16, inputs)
    wins = f"bf16 on OpenVINO is within the accuracy budget and {speedup:.1f}x as fast as fp32"
    return Bf16First(scored=(candidate, bf16), wins=wins if speedup >= _FASTER else "")


def scored(
    built: Sequence[Built],
    runs: Mapping[int, RunnableCandidate],
    target: Target,
    signature: Signature,
    validation: Validation,
    known: Mapping[Precision, Scored],
) -> list[Scored]:
    """A candidate for each precision of the target, and how to run it for timing (None: it is not available).

    `built` are the candidates for ONNX Runtime, fp32 first, and `runs` the files of those that could be built. `known`
    are the candidates that need no scoring.
    """
    precisions = [precision for precision in _LADDER if precision in target.precisions]
    if not serves(signature):
        return [(_without(precision, "OpenVINO does not serve texts"), None) for precision in precisions]
    candidates = []
    for precision in precisions:
        if precision in known:
            candidates.append(known[precision])
            continue
        sources = _sources(precision, built, runs)
        candidates += [score(precision, built[source], runs[source], validation) for source in sources]
        if not sources:
            why = "OpenVINO runs int8 from a calibrated file, and there is none"
            candidates.append((_without(precision, why), None))
    return candidates


def serves(signature: Signature) -> bool:
    """Whether OpenVINO takes these tensors: it has no text type."""
    return all(spec.datatype != "BYTES" for spec in (*signature.inputs, *signature.outputs))


def left_out(precision: Precision, why: str) -> Scored:
    """A candidate that was not tried."""
    return _without(precision, why), None


def score(precision: Precision, candidate: Built, source: RunnableCandidate, validation: Validation) -> Scored:
    """OpenVINO's candidate in this precision, from the file of `candidate`."""
    run = RunnableCandidate(file=source.file, outputs=source.outputs, engine="openvino", precision=precision)
    progress(f"scoring {precision} on OpenVINO")
    try:
        evaluation = _evaluated(run, validation)
    except ShipliftError as error:
        return _without(precision, error.what), None
    kept = {"precision": precision, "engine": "openvino", "method": _METHODS.get(precision, candidate.method)}
    scores = evaluation.model_dump(include={"score", "score_error", "resamples", "samples", "relative_error"})
    update = kept | scores | {"slices": evaluation.slices, "dropped": evaluation.problem}
    return candidate.model_copy(update=update), None if evaluation.problem else run


def _evaluated(run: RunnableCandidate, validation: Validation) -> Evaluation:
    """OpenVINO's evaluation on the validation set. A model that loads but can't run has that as its problem."""
    running = run.session(threads=usable_cores())
    try:
        return validation.evaluate(running)
    except RuntimeError as error:
        return Evaluation(problem=f"OpenVINO can't run the model: {' '.join(str(error).split())[:300]}")


def _sources(precision: Precision, built: Sequence[Built], runs: Mapping[int, RunnableCandidate]) -> list[int]:
    """The indices of the files that OpenVINO can compute a precision from."""
    if precision != "int8":
        return [0]
    return [index for index in runs if built[index].precision == "int8" and built[index].method.startswith(_CALIBRATED)]


def _without(precision: Precision, why: str) -> Built:
    return Built(engine="openvino", precision=precision, dropped=why)
