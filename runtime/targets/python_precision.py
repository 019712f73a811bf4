"""The sandboxed half of quantize for Python models: the model as it is, scored on the validation data.

There is nothing to build. The model's code runs in the same process as when it serves; only the score is made here.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.base.progress import progress
from shiplift.runtime.guest.python.host import Host, ModelFailed, rows
from shiplift.runtime.model.datasets import load_columns, load_samples
from shiplift.runtime.model.python.asking import asking, restored, settings_of, slowly
from shiplift.runtime.model.tensors import Arrays, DataLimits, batch_of, load_npz
from shiplift.runtime.precision.budgets import constant_score
from shiplift.runtime.precision.evaluation import Validation, task_metric
from shiplift.runtime.records.precision import AS_EXPORTED, Built, Ladder
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.model import Data

_TIMED = 5


@dataclass(frozen=True, kw_only=True)
class PythonSession:
    """A Python model with the methods of an ONNX Runtime session that an evaluation uses."""

    host: Host
    signature: Signature
    limit_s: float

    def get_inputs(self) -> list[Any]:
        """The inputs."""
        return [SimpleNamespace(name=spec.name, shape=list(spec.shape)) for spec in self.signature.inputs]

    def get_outputs(self) -> list[Any]:
        """The outputs."""
        return [SimpleNamespace(name=spec.name, shape=list(spec.shape)) for spec in self.signature.outputs]

    def run(self, names: list[str], feeds: Arrays) -> list[Any]:
        """The answers to a batch.

        Raises:
            ExportFailed: the model does not answer.
        """
        try:
            answers = self.host.ask(feeds, self.limit_s)
        except ModelFailed as error:
            raise ExportFailed(
                f"the Python model does not answer the validation data: {error}", do="Run it on them locally."
            ) from error
        return [answers[name] for name in names]


def score_python(  # noqa: PLR0913 - an entry takes JSON by name
    *,
    code: str,
    environment: str,
    model: str,
    read: list[str],
    reference: str,
    signature: dict[str, Any],
    validation: list[str] | None,
    metric: str,
    data: dict[str, Any],
    answers_as: dict[str, Any],
    memory_mb: int,
    limit_s: float,
    allow_without: list[str],
    unpacked_mb: int,
    samples: int,
) -> dict[str, Any]:
    """Scores and times a Python model; returns a `Ladder` as JSON, with one candidate. A sandbox entry.

    `metric` is the file of the author's own metric, or empty. `answers_as` is how the model's
    process makes outputs of its answers.

    Raises:
        ExportFailed: the model does not load, or does not answer.
        DataInvalid: the logged data do not match the model.
    """
    seen, wanted = Signature.model_validate(signature), Data.model_validate(data)
    arrays = load_npz(Path(reference))
    example = restored({spec.name: arrays[f"input/{spec.name}"] for spec in seen.inputs}, list(seen.inputs))
    answers = {spec.name: arrays[f"output/{spec.name}"] for spec in seen.outputs}
    limits = DataLimits(unpacked_bytes=unpacked_mb << 20, samples=samples)
    inputs, labels, columns, notes = _logged(validation, seen, wanted, limits)
    settings = settings_of(model, list(answers), read, memory_mb, allow_without, answers_as)
    with asking(code, environment, settings) as host:
        session = PythonSession(host=host, signature=seen, limit_s=limit_s)
        latency_ms = _latency_ms(session, batch_of(example, 1))
        progress(f"scoring the Python model{slowly(latency_ms / 1000)}")
        scored_by = task_metric(wanted, metric) if labels is not None else None
        evaluation = Validation(
            metric=scored_by,
            metric_file=metric,
            asked=example,
            reference=answers,
            inputs=inputs,
            labels=labels,
            columns=columns,
        ).evaluate(session)
    candidate = Built(
        engine="python",
        precision="fp32",
        method="as logged",
        folder=AS_EXPORTED,
        score=evaluation.score,
        score_error=evaluation.score_error,
        resamples=evaluation.resamples,
        samples=evaluation.samples,
        slices=evaluation.slices,
        relative_error=evaluation.relative_error,
        latency_ms=latency_ms,
        dropped=evaluation.problem,
    )
    scale = constant_score(scored_by, labels)
    return Ladder(metric=scored_by, constant_score=scale, candidates=(candidate,), notes=tuple(notes)).model_dump(
        mode="json"
    )


def _logged(
    validation: list[str] | None, signature: Signature, data: Data, limits: DataLimits
) -> tuple[Arrays | None, Any, Arrays, list[str]]:
    """The inputs, labels and slicing columns of the validation data, and notes."""
    if validation is None:
        return None, None, {}, [f"no validation data were logged at {data.validation}, so nothing can be scored"]
    file, name = validation
    body = Path(file).read_bytes()
    inputs, labels = load_samples(body, name, signature.inputs, data.label, data.slices, limits)
    columns = load_columns(body, name, data.slices, rows(inputs), limits)
    return (
        inputs,
        labels,
        columns,
        [f"{name} has no {data.label!r}, so nothing can be scored"] if labels is None else [],
    )


def _latency_ms(session: PythonSession, sample: Arrays) -> float:
    names, times = [spec.name for spec in session.signature.outputs], []
    for _ in range(_TIMED):
        started = time.perf_counter()
        session.run(names, sample)
        times.append(time.perf_counter() - started)
    return sorted(times)[_TIMED // 2] * 1000
