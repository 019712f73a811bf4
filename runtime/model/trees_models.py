"""Forests in this process, as the server's backend of trees computes them: for proving, scoring and timing them.

A session has the methods of ONNX Runtime's that scoring uses, so that all engines are asked in the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import MissingTool, QuantizeFailed
from shiplift.runtime.model.openvino_models import Port
from shiplift.runtime.model.sound_forests import sound
from shiplift.runtime.model.tensors import Arrays, numpy_type
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.records.trees import TreesForm


@dataclass(frozen=True, kw_only=True)
class TreesSession:
    """A forest, and how its scores become the outputs of a signature."""

    forest: Any
    form: TreesForm
    signature: Signature
    threads: int = 1

    def get_inputs(self) -> list[Port]:
        """The inputs, with their shapes."""
        return [Port(name=spec.name, shape=spec.shape) for spec in self.signature.inputs]

    def get_outputs(self) -> list[Port]:
        """The outputs, in the signature's order."""
        return [Port(name=spec.name, shape=spec.shape) for spec in self.signature.outputs]

    def run(self, names: Sequence[str], feeds: Arrays) -> list[NDArray[Any]]:
        """The outputs of these names, for one batch."""
        margins, scores = self._scores(self._rows(feeds))
        specs = {spec.name: spec for spec in self.signature.outputs}
        return [self._output(specs[name], margins, scores) for name in names]

    def _rows(self, feeds: Arrays) -> NDArray[Any]:
        columns = [feeds[spec.name].reshape(len(feeds[spec.name]), -1) for spec in self.signature.inputs]
        rows = np.concatenate([column.astype(np.float64) for column in columns], axis=1)
        if self.form.zero_within is not None:
            rows[np.abs(rows) <= self.form.zero_within] = 0
        rounded = rows.astype(numpy_type(self.form.features))
        return np.ascontiguousarray(rounded, dtype=self.forest.input_type)

    def _scores(self, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """What classes are chosen by, and what is answered: margins and their softmax, or the scores for both."""
        import treelite  # noqa: PLC0415 - see `session`

        raw = self.forest.input_type == "float64" and _softmax_of(self.forest)
        # Where OpenMP was given fewer threads (OMP_NUM_THREADS), treelite refuses more: 0 takes as many as there are.
        threads = 1 if self.threads == 1 else 0
        scores = treelite.gtil.predict(self.forest, rows, nthread=threads, pred_margin=raw)
        scores = scores.reshape(len(rows), -1)
        if not raw:
            return scores, scores
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return scores, powers / powers.sum(axis=1, keepdims=True)

    def _output(self, spec: TensorSpec, margins: NDArray[Any], scores: NDArray[Any]) -> NDArray[Any]:
        shape, dtype = (-1, *spec.shape[1:]), numpy_type(spec.datatype)
        if self.form.answers[spec.name] == "class":
            classes = np.asarray(self.form.classes or range(max(margins.shape[1], 2)))
            return np.asarray(classes[self._positions(margins)].astype(dtype).reshape(shape))
        if self.form.subtracted_from is not None:
            scores = self.form.subtracted_from - scores
        if scores.shape[1] == 1 and spec.shape[1:] == (2,):  # of a binary classifier with one score
            scores = np.column_stack([1 - scores, scores])
        return np.asarray(scores.astype(dtype).reshape(shape))

    def _positions(self, margins: NDArray[Any]) -> NDArray[Any]:
        if margins.shape[1] > 1:
            return np.asarray(margins.argmax(axis=1))
        threshold = 0.5 if self.form.threshold is None else self.form.threshold
        return np.asarray(margins[:, 0] > margins.dtype.type(threshold), dtype=np.int64)


def session(file: Path, form: TreesForm, signature: Signature, *, threads: int = 1) -> TreesSession:
    """A session of a checkpoint, which is checked first: treelite trusts the positions in it.

    Raises:
        MissingTool: this environment has no treelite.
        QuantizeFailed: the file is not a sound forest of this signature.
    """
    try:
        import treelite  # noqa: PLC0415 - only for forests
    except ImportError as error:
        raise MissingTool(
            "this environment has no treelite",
            do="`pip install 'shiplift[sklearn]'`, or set `engine: onnxruntime` on the target.",
        ) from error
    try:
        forest = treelite.Model.deserialize(file)
    except treelite.TreeliteError as error:
        raise _unsound(f"treelite can't read it: {' '.join(str(error).split())[:300]}") from error
    if not sound(forest):
        raise _unsound("it refers to what is not in it")
    _require_fitting(forest, form, signature)
    return TreesSession(forest=forest, form=form, signature=signature, threads=threads)


def _softmax_of(forest: Any) -> bool:
    """Whether treelite would compute a softmax, in 32 bits whatever the forest's; not of several targets."""
    header = forest.get_header_accessor()
    return header.get_field("postprocessor") == "softmax" and int(header.get_field("num_target")[0]) == 1


def _require_fitting(forest: Any, form: TreesForm, signature: Signature) -> None:
    columns = sum(int(np.prod(spec.shape[1:])) for spec in signature.inputs)
    if forest.num_feature != columns:
        raise _unsound(f"it has {forest.num_feature} features, the signature {columns} columns")
    if set(form.answers) != {spec.name for spec in signature.outputs}:
        raise _unsound("it has other outputs than the signature")


def _unsound(why: str) -> QuantizeFailed:
    return QuantizeFailed(
        f"the forest can't be served: {why}", do="Leave it out with `engine: onnxruntime` on the target."
    )
