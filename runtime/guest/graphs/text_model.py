"""Runs a model of texts or images: `onnx_model` behind what reads them, in one process.

A text or image that the model can't take fails its own request, not the batch's others.

Process: Triton's Python backend, as `inner.py`: `onnx_model.py`, `panics.py`, `front.py`, which is in `fronts/`.
Python: the server's
Packages: numpy, onnxruntime, openvino
"""

from __future__ import annotations  # not evaluated: Triton's module lacks names of its types

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # instances share the cores already

from onnx_model import TritonPythonModel as OnnxModel  # isort: skip - first, because it adds numpy's folder to the path

import numpy as np
import triton_python_backend_utils as pb_utils
from front import Front, Refused
from numpy.typing import NDArray

Array = NDArray[Any]
Entry = tuple[list[Any], list[Any]]  # what a request holds, and what the graph takes of each


class Compiled:
    """A model that OpenVINO has compiled, with those of ONNX Runtime's methods that are used here."""

    LOOK_MS = 50

    def __init__(self, file: str, values: Mapping[str, str]) -> None:
        import openvino  # noqa: PLC0415 - only if it is wanted: it takes memory

        hint, threads = values["precision_hint"], values.get("intra_op_threads", "1")
        self._tensor = openvino.Tensor
        self._model = openvino.Core().compile_model(
            file,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": hint,
                "NUM_STREAMS": "1",
                "INFERENCE_NUM_THREADS": threads,
                "ENABLE_CPU_PINNING": False,
                "PERFORMANCE_HINT": "LATENCY",
            },
        )
        self._request = self._model.create_infer_request()

    def get_inputs(self) -> list[Node]:
        return [Node(port) for port in self._model.inputs]

    def get_outputs(self) -> list[Node]:
        return [Node(port) for port in self._model.outputs]

    def run(self, outputs: Sequence[str], feed: Mapping[str, Array], options: Any) -> list[Array]:
        for name, array in feed.items():
            self._request.set_tensor(name, self._tensor(array))
        self._request.start_async()
        while not self._request.wait_for(self.LOOK_MS):
            if options.terminate:
                self._request.cancel()
        return [np.array(self._request.get_tensor(name).data) for name in outputs]


class Node:
    """An input or output, as ONNX Runtime describes it."""

    def __init__(self, port: Any) -> None:
        self.name, self.shape, self.type = port.get_any_name(), list(port.get_partial_shape()), "number"


class TritonPythonModel(OnnxModel):
    """An instance: the session, and the front before it."""

    def load(self, file: str, values: Mapping[str, str]) -> Any:
        return Compiled(file, values) if "precision_hint" in values else super().load(file, values)

    def initialize(self, args: Mapping[str, str]) -> None:
        super().initialize(args)
        config = json.loads(args["model_config"])
        self.front = Front(Path(args["model_repository"], args["model_version"]))
        self.visible = [output["name"] for output in config["output"]]
        buckets = config.get("parameters", {}).get("length_buckets", {}).get("string_value", "")
        self.buckets = [int(bucket) for bucket in buckets.split(",") if bucket]

    def _answers(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        read = [self._tokens(request) for request in requests]
        good = [entry for entry in read if isinstance(entry, tuple)]
        answers: Iterator[pb_utils.InferenceResponse] = self._by_length(good) if good else iter(())
        return [next(answers) if isinstance(entry, tuple) else entry for entry in read]

    def _by_length(self, entries: Sequence[Entry]) -> Iterator[pb_utils.InferenceResponse]:
        """The answers to entries in their order; those of a bucket are asked together, padded to it."""
        if not self.buckets:
            return self._asked(entries)
        groups: dict[int, list[int]] = {}
        for at, (_, encodings) in enumerate(entries):
            longest = max(len(encoding.ids) for encoding in encodings)
            length = next((bucket for bucket in self.buckets if longest <= bucket), longest)
            groups.setdefault(length, []).append(at)
        answers: dict[int, pb_utils.InferenceResponse] = {}
        for length, places in sorted(groups.items()):
            answers |= zip(places, self._asked([entries[at] for at in places], length))
        return iter([answers[at] for at in range(len(entries))])

    def _tokens(self, request: pb_utils.InferenceRequest) -> Entry | pb_utils.InferenceResponse:
        """The texts of a request with their tokens; the answer that refuses it if the model can't take them."""
        arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        try:
            with self.limit.watched():  # an author's regular expression may take for ever
                texts = self.front.read(self.front.samples(arrays))
                return texts, self.front.encode(texts)
        except Refused as error:
            return pb_utils.InferenceResponse([], pb_utils.TritonError(str(error)))

    def _asked(self, entries: Sequence[Entry], length: int = 1) -> Iterator[pb_utils.InferenceResponse]:
        encodings = list(chain.from_iterable(encodings for _, encodings in entries))
        outputs = self.limit.run(self.session, self.outputs, self._feeds(encodings, length))
        return map(self._answered, self.front.split(entries, dict(zip(self.outputs, outputs))))

    def _feeds(self, encodings: Sequence[Any], length: int) -> dict[str, Array]:
        return self.front.feeds(encodings, length) if self.buckets else self.front.feeds(encodings)

    def _answered(self, answers: Mapping[str, Array]) -> pb_utils.InferenceResponse:
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, _carried(answers[name])) for name in self.visible])


def _carried(array: Array) -> Array:
    if array.dtype != object:
        return np.ascontiguousarray(array)
    return np.array([text.encode() for text in array.ravel()], dtype=object).reshape(array.shape)
