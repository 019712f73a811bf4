"""The interface of every format of logged models: they answer requests, and become ONNX."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from numpy.typing import NDArray

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model.conversion.forests import Forest
from shiplift.runtime.model.reading.found import Tree
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.facts import ModelFacts
from shiplift.runtime.records.tensor import FLOATS, Signature, TensorSpec
from shiplift.runtime.spec.model import Conversion

_COLORS = re.compile(r"\x1b\[[0-9;]*m")  # torch writes its errors for terminals


class Original(ABC):
    """A loaded model: it answers requests and converts itself to ONNX."""

    notes: tuple[str, ...] = ()
    takes_text: bool = False  # clients send text, and get the outputs that `write_text` declares
    narrow: bool = False  # its graph takes FP32 where the signature says FP64
    probable: bool = False  # of a classifier: its probabilities come before its labels
    batch: int = -1  # the only batch size that it answers; -1 if it answers any
    training: tuple[str, ...] = ()  # operators of its graph that are in training mode

    @abstractmethod
    def answer(self, inputs: Arrays) -> Arrays:
        """The outputs by name, in the model's order."""

    def in_double(self, inputs: Arrays) -> Arrays:
        """The same outputs computed in FP64, which say how far off those in FP32 are; none where that can't be done."""
        return {}

    def tensors(self, requests: dict[str, Arrays]) -> dict[str, Arrays]:
        """The graph's inputs for these sets of requests."""
        return requests

    @abstractmethod
    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """The model as ONNX with a dynamic batch, to be written to the folder `path`. Puts large weights there."""

    def to_double(self, opset: int) -> onnx.ModelProto | None:
        """The same with FP64 in place of FP32, inputs and outputs included; None: there is no such graph.

        Raises:
            ExportFailed: it can't be converted.
        """
        return None

    def facts(self, inputs: tuple[TensorSpec, ...], example: Arrays) -> ModelFacts:
        """What the model says about its inputs, of which questions are made; it may be run on the example for that."""
        return ModelFacts(inputs=inputs)

    def forest(self) -> Forest | None:
        """The model as a forest of treelite; None: it is not an ensemble of trees.

        Raises:
            NotExactError: it is one, and treelite would answer otherwise.
        """
        return None

    def trees(self) -> tuple[Tree, ...]:
        """The trees of a model that is a forest, as they are in its own arrays."""
        return ()

    def write_text(self, example: Arrays, to: Path, exported: Signature) -> Signature | None:
        """For a model that takes text: writes the files around the graph, and returns the signature that clients see.

        `to/text` gets the tokenizer's files, and `to/texts.npz` the example's texts with the original's answers.
        `exported` is the graph's signature.
        """
        return None

    def words(self) -> tuple[str, ...]:
        """The words of the vocabulary of a model that takes text; none of any other."""
        return ()

    def answered_texts(self, texts: Iterable[str]) -> Iterator[tuple[Arrays, Arrays]]:
        """Those of the texts that a model of texts takes, each as clients send it and with the original's answer."""
        yield from ()

    def to_torchscript(
        self, sets: dict[str, Arrays], answers: dict[str, Arrays], file: Path, conversion: Conversion
    ) -> None:
        """Writes the model as TorchScript with its post-processing, and checks its answers to these sets of inputs.

        Raises:
            ExportFailed: the model can't be written, or its answers differ.
        """
        raise ExportFailed(
            "only PyTorch models have a TorchScript form", do="Leave it out: `export: {torchscript: false}`."
        )


def classified(label: NDArray[Any], probabilities: Any, *, probable: bool) -> Arrays:
    """What a classifier answers: classes, (rows,), and their probabilities, (rows, classes) as FP32.

    `probable`: the probabilities come first, since they are what the author asked for.
    """
    answers: Arrays = {"label": label, "probabilities": np.asarray(probabilities, dtype=np.float32)}
    return {name: answers[name] for name in ("probabilities", "label")} if probable else answers


def wants_probabilities(folder: Path, outputs: tuple[TensorSpec, ...]) -> bool:
    """Whether a classifier's author asked for probabilities: by MLflow's `pyfunc_predict_fn`, or by the signature.

    A signature does by numbers for each class: several of them, since classes can be floats as well.
    """
    meta = yaml.safe_load((folder / "MLmodel").read_text())
    if "proba" in str(meta["flavors"].get("python_function", {}).get("predict_fn", "")):
        return True
    floats = bool(outputs) and all(spec.datatype in FLOATS for spec in outputs)
    return floats and (len(outputs) > 1 or any(size > 1 for size in outputs[0].shape[1:]))


def _innermost(error: BaseException) -> BaseException:
    """What an exporter's error is about: it says so in its cause, after paragraphs of advice about itself."""
    while type(error).__module__.startswith("torch.onnx") and error.__cause__:
        error = error.__cause__
    return error


def failed(problem: str, error: BaseException) -> ExportFailed:
    """The error for a model that can't be loaded or converted."""
    cause = _innermost(error)
    reason = " ".join(_COLORS.sub("", str(cause)).split())
    return ExportFailed(
        f"{problem}: {type(cause).__name__}: {reason[:500]}",
        do="Load it in a fresh Python process with the logged requirements; or log it as pt2, skops or ONNX.",
    )
