"""Scores a whole pipeline on its validation data.

The data come from the author, so only the sandbox opens them: one run reads the inputs, and after the bundle's private
server has answered, another run judges the answers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.base.progress import progress
from shiplift.runtime.confinement.policy import EVALUATE, QUANTIZE_WITH_METRIC, Entry, SandboxLimits
from shiplift.runtime.confinement.workplace import workplace
from shiplift.runtime.host.outputs import require_regular
from shiplift.runtime.model.datasets import load_columns, load_samples
from shiplift.runtime.model.tensors import Arrays, DataLimits, dump_npz, load_npz
from shiplift.runtime.precision.budgets import constant_score
from shiplift.runtime.precision.evaluation import Validation, task_metric
from shiplift.runtime.records.model import Datasets
from shiplift.runtime.records.precision import Built, Ladder
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.model import Data, OwnMetric
from shiplift.runtime.store.artifacts import ArtifactStore

READ = Entry("shiplift.runtime.serving.bundles.scoring:read_validation", EVALUATE)
JUDGE = Entry("shiplift.runtime.serving.bundles.scoring:judge", EVALUATE)
JUDGE_WITH_METRIC = Entry("shiplift.runtime.serving.bundles.scoring:judge", QUANTIZE_WITH_METRIC)
_INPUTS = "inputs.npz"


@dataclass(frozen=True, kw_only=True)
class ValidationScoring:
    """A pipeline's validation data, with the settings of the site and the spec for them."""

    site: Site
    signature: Signature
    datasets: Datasets
    data: Data
    limits: SandboxLimits

    def score(self, ask: Callable[[Arrays], Arrays]) -> dict[str, Any]:
        """The fields of a package that hold its score; empty without validation data.

        `ask` returns the answers to many requests, one request per row of the inputs.

        Raises:
            DataInvalid: the data do not fit the pipeline, or its answers can't be compared with the labels.
            SandboxLimit: scoring takes more memory or time than the spec allows.
        """
        if self.datasets.validation is None:
            return {}
        answers = ask(self._inputs())
        progress("scoring the pipeline")
        ladder = self._judged(answers)
        (whole,) = ladder.candidates
        if whole.dropped:
            raise DataInvalid(f"the pipeline's answers can't be scored: {whole.dropped}", do="Look at its steps.")
        scores = whole.model_dump(include={"score", "resamples", "samples"})
        validation = self.datasets.validation.sha256
        told = {"metric": ladder.metric, "constant_score": ladder.constant_score, "validation": validation}
        return {**scores, "slices": whole.slices, **told}

    def _inputs(self) -> Arrays:
        home, store = Path(self.site.home), ArtifactStore(self.site.artifacts_uri)
        with workplace(READ, home, self.site.sandbox) as place:
            order = self._order(store, place.folder) | {"out": str(place.sandbox.work)}
            place.sandbox.run(order, self.limits)
            require_regular(place.sandbox.work, _INPUTS)
            return load_npz(place.sandbox.work / _INPUTS)

    def _judged(self, answers: Arrays) -> Ladder:
        home, store, metric = Path(self.site.home), ArtifactStore(self.site.artifacts_uri), self.datasets.metric
        own = self.data.metric if isinstance(self.data.metric, OwnMetric) else None
        with workplace(JUDGE_WITH_METRIC if own else JUDGE, home, self.site.sandbox) as place:
            (place.folder / "answers.npz").write_bytes(dump_npz(answers))
            file = store.fetch(metric, place.folder / own.python) if own and metric else ""
            order = {"answers": str(place.folder / "answers.npz"), "metric": str(file)}
            result, _ = place.sandbox.run(self._order(store, place.folder) | order, self.limits)
        return Ladder.model_validate(result)

    def _order(self, store: ArtifactStore, folder: Path) -> dict[str, Any]:
        assert self.datasets.validation is not None  # noqa: S101 - `score` has looked
        return {
            "validation": [str(store.fetch(self.datasets.validation, folder / "data")), self.datasets.validation_name],
            "signature": self.signature.model_dump(mode="json"),
            "data": self.data.model_dump(mode="json"),
            "unpacked_mb": self.site.policy.unpacked_mb,
            "samples": self.site.policy.samples,
        }


# --- in the sandbox ---------------------------------------------------------------------------------------------------


def read_validation(
    *, validation: list[str], signature: dict[str, Any], data: dict[str, Any], unpacked_mb: int, samples: int, out: str
) -> dict[str, Any]:
    """Writes the inputs of the validation data to `out/inputs.npz`, by name. A sandbox entry.

    Raises:
        DataInvalid: the logged data do not fit the pipeline.
    """
    inputs, _, _ = _logged(validation, signature, data, unpacked_mb, samples)
    (Path(out) / _INPUTS).write_bytes(dump_npz(inputs))
    return {}


def judge(
    *,
    validation: list[str],
    signature: dict[str, Any],
    data: dict[str, Any],
    unpacked_mb: int,
    samples: int,
    answers: str,
    metric: str,
) -> dict[str, Any]:
    """Scores the answers in the NPZ file `answers`; returns a `Ladder` with one candidate. A sandbox entry.

    `metric` is the file of the author's own metric, or empty.

    Raises:
        DataInvalid: the answers and the labels can't be compared.
    """
    inputs, labels, columns = _logged(validation, signature, data, unpacked_mb, samples)
    if labels is None:
        return Ladder(metric=None, candidates=(Built(precision="fp32", method="composed"),)).model_dump(mode="json")
    count, answered = len(next(iter(inputs.values()))), load_npz(Path(answers))
    outputs = {name: array for name, array in answered.items() if len(array) == count}  # others vary in rows
    if not outputs:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in answered.items())
        raise DataInvalid(
            f"no output of the pipeline has one row for each of the {count} requests, to compare with the labels: "
            f"{shapes}",
            do="Give the pipeline an output of shape [1, ...], or leave the labels out.",
        )
    scored_by = task_metric(Data.model_validate(data), metric)
    evaluation = Validation(
        metric=scored_by,
        metric_file=metric,
        asked=inputs,
        reference=outputs,
        inputs=inputs,
        labels=labels,
        columns=columns,
        rows=np.arange(count),
    ).judge(outputs)
    whole = Built(
        precision="fp32",
        method="composed",
        score=evaluation.score,
        resamples=evaluation.resamples,
        samples=evaluation.samples,
        slices=evaluation.slices,
        dropped=evaluation.problem,
    )
    scale = constant_score(scored_by, labels)
    return Ladder(metric=scored_by, constant_score=scale, candidates=(whole,)).model_dump(mode="json")


def _logged(
    validation: list[str], signature: dict[str, Any], data: dict[str, Any], unpacked_mb: int, samples: int
) -> tuple[Arrays, Any, Arrays]:
    """The inputs, with one row per request; the labels, or None; and the columns that data are sliced by."""
    (file, name), wanted = validation, Data.model_validate(data)
    limits = DataLimits(unpacked_bytes=unpacked_mb << 20, samples=samples)
    specs = [
        spec.model_copy(update={"shape": (-1, *spec.shape[1:])}) for spec in Signature.model_validate(signature).inputs
    ]
    body = Path(file).read_bytes()
    inputs, labels = load_samples(body, name, tuple(specs), wanted.label, wanted.slices, limits)
    return inputs, labels, load_columns(body, name, wanted.slices, len(next(iter(inputs.values()))), limits)
