"""What the original answers, each row as if it were asked alone: the answers that the exported graph has to give.

In a file, a set of rows has the arrays `SET/input/NAME`, `SET/output/NAME`, and `SET/errors` with a text for each row,
empty where there is none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model.conversion import batching, postprocess
from shiplift.runtime.model.conversion.original import Original
from shiplift.runtime.model.datasets import load_samples
from shiplift.runtime.model.samples import BATCHES
from shiplift.runtime.model.tensors import Arrays, DataLimits, under
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.oracle import answers_to, examine
from shiplift.runtime.proof.settings import count_of, rows_of
from shiplift.runtime.records.proof import Counterexample
from shiplift.runtime.records.tensor import TensorSpec
from shiplift.runtime.spec.model import Conversion

ANSWERS = "answers.npz"
_EXAMINE_S = 3.0
_ASK_S = 10.0  # for each set
_MOST_KNOWN = 1000  # rows of the author's data


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The answers to each set of rows, and how a row's answer changes with its neighbours (None: it does not)."""

    answers: dict[str, Answers]
    mixes: Counterexample | None

    def batches(self, sets: Mapping[str, Arrays]) -> tuple[dict[str, Arrays], dict[str, Arrays]]:
        """Inputs and right answers by set: in the batches that were asked, or one row where rows would mix."""
        right = {name: self.answers[name] for name in whole(self.answers)}
        if not self.mixes:
            return {name: sets[name] for name in right}, {name: each.outputs for name, each in right.items()}
        alone = {name: rows_of(sets[name], [0]) for name in right}
        return alone, {name: each.take([0]).outputs for name, each in right.items()}


def record(original: Original, sets: Mapping[str, Arrays], conversion: Conversion) -> Recorded:
    """Asks the original all sets, after it was examined with rows of the largest random one.

    Raises:
        ExportFailed: it does not answer its own example, is not repeatable, or mixes the rows of the only batch size
            that it takes.
    """

    def ask(inputs: Arrays) -> Arrays:
        return _outputs(original, inputs, conversion)

    _require_example(original, sets["example"], conversion)
    mixes = None if original.takes_text else _examined(original, ask, sets)
    answers = {name: answers_to(ask, inputs, batches=mixes is None, seconds=_ASK_S) for name, inputs in sets.items()}
    return Recorded(answers=answers, mixes=mixes)


def known_rows(known: dict[str, Any] | None, inputs: tuple[TensorSpec, ...]) -> dict[str, Arrays]:
    """The author's validation rows as a set, evenly picked if there are many; none if nothing is `known`.

    `known` has the `file` and its `name`, the `label`, more `columns` that are no inputs, and the limits `unpacked_mb`
    and `samples` of the site.

    Raises:
        DataInvalid: the file can't be read, or does not match the model's inputs.
    """
    if known is None:
        return {}
    limits = DataLimits(unpacked_bytes=known["unpacked_mb"] << 20, samples=known["samples"])
    body, columns = Path(known["file"]).read_bytes(), tuple(known["columns"])
    rows, _ = load_samples(body, known["name"], inputs, known["label"], columns, limits)
    count = count_of(rows)
    return {"validation": rows_of(rows, np.linspace(0, count - 1, min(count, _MOST_KNOWN), dtype=int))}


def answered(original: Original, inputs: Arrays, conversion: Conversion) -> Arrays:
    """The original's outputs for a batch.

    Raises:
        ExportFailed: it does not answer.
    """
    try:
        return _outputs(original, inputs, conversion)
    except ExportFailed:
        raise
    except Exception as error:
        size, reason = count_of(inputs), " ".join(str(error).split())[:400]
        raise ExportFailed(
            f"the model does not answer a batch of {size}: {type(error).__name__}: {reason}",
            do="Check that it takes any batch size and the dtypes of its signature.",
        ) from error


def whole(answers: Mapping[str, Answers]) -> dict[str, list[NDArray[Any]]]:
    """The outputs of the sets whose rows were all answered."""
    return {name: list(each.outputs.values()) for name, each in answers.items() if each.answered.all()}


def in_file(asked: Mapping[str, Arrays], answers: Mapping[str, Answers]) -> Arrays:
    """All sets as the arrays of one file; of each, the rows that were answered in time."""
    named: Arrays = {}
    for name, each in answers.items():
        count = len(each.errors)
        named |= {f"{name}/input/{key}": array[:count] for key, array in asked[name].items()}
        named |= {f"{name}/output/{key}": np.asarray(array) for key, array in each.outputs.items()}
        named[f"{name}/errors"] = np.array(each.errors, dtype=np.str_)
    return named


def from_file(arrays: Arrays, name: str) -> tuple[Arrays, Answers]:
    """A set's inputs, and the original's answers to them."""
    errors = tuple(str(error) for error in arrays[f"{name}/errors"])
    return under(f"{name}/input/", arrays), Answers(outputs=under(f"{name}/output/", arrays), errors=errors)


def _outputs(original: Original, inputs: Arrays, conversion: Conversion) -> Arrays:
    outputs = (
        original.answer(inputs)
        if original.batch == -1
        else batching.answer_in_batches(original.answer, inputs, original.batch)
    )
    if missing := [name for name in conversion.outputs if name not in outputs]:
        raise ExportFailed(
            f"export.outputs names {', '.join(missing)}; the model has {', '.join(outputs)}",
            do="Change `export.outputs` in the spec.",
        )
    outputs = {name: outputs[name] for name in conversion.outputs or outputs}
    return postprocess.in_numpy(outputs, conversion.postprocess, conversion.top_k)


def _require_example(original: Original, example: Arrays, conversion: Conversion) -> None:
    """Whether the first row is answered by itself, with a row in each output."""
    outputs = answered(original, rows_of(example, [0]), conversion)
    for name, array in outputs.items():
        if np.ndim(array) == 0 or len(array) != 1:
            raise ExportFailed(
                f"the output {name!r} has no batch axis: for one row its shape is {list(np.shape(array))}",
                do="Make the first dimension of every output the batch, as it is of the inputs; or log the graph with "
                "a first dimension of 1 on its inputs, to be asked one row at a time.",
            )


def _examined(original: Original, ask: Any, sets: Mapping[str, Arrays]) -> Counterexample | None:
    name = f"random-{max(BATCHES)}"
    rows = sets[name]
    seen = examine(ask, rows, [name] * count_of(rows), seconds=_EXAMINE_S)
    if seen.unstable:
        raise ExportFailed(
            f"the model is not repeatable: {seen.unstable}",
            do="Call `model.eval()` before you log it, so that dropout is off; give what it samples with a fixed seed; "
            "keep no state between calls.",
        )
    if seen.mixes and original.batch > 1:
        raise ExportFailed(
            f"the model takes batches of {original.batch} alone, and mixes their rows: {seen.mixes}",
            do="Export it with a dynamic first dimension, or with a batch of 1.",
        )
    return seen.mixes
