"""Runs the front of a model of texts or images in NVIDIA's server, and calls the model's graph by BLS.

The graph is another model there, `NAME--tensors`, in the backend of its engine. The front runs in a hosted process with
its own interpreter and libraries: NVIDIA's image has another Python, and neither Pillow nor tokenizers.

Process: Triton's Python backend, as `model.py` beside `python_model.py` and `python_host`.
Python: the server's
Packages: numpy
"""

from __future__ import annotations  # so that annotations are not evaluated: Triton's module lacks names of its types

from collections.abc import Mapping, Sequence
from typing import Any

from python_model import TritonPythonModel as PythonModel, error_of  # isort: skip - first, because it adds numpy's folder

import numpy as np
import triton_python_backend_utils as pb_utils
from python_host.host import ModelFailed, Raised

Arrays = dict[str, Any]
Items = dict[str, Any]  # of a request, by input: an array of bytes
GRAPH = "--tensors"  # ends the name of the graph, after that of this model
MAX_BYTES = 256 << 20  # of one message to the hosted process


class GraphFailed(Raised):
    """The graph answered with an error."""


class TritonPythonModel(PythonModel):
    """An instance, and the process that it hosts."""

    LOGGED = ""  # the front's files are beside this one

    def initialize(self, args: Mapping[str, str]) -> None:
        super().initialize(args)
        self.graph, self.version = args["model_name"] + GRAPH, int(args["model_version"])
        self.memory = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        answers = self.hosted.answers([self._items(request) for request in requests], self._asked)
        return [error_of(answer) if isinstance(answer, ModelFailed) else answer for answer in answers]

    def _items(self, request: pb_utils.InferenceRequest) -> Items:
        names = [name for name, *_ in self.inputs]
        return {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1) for name in names}

    def _asked(self, asked: Sequence[Items]) -> list[pb_utils.InferenceResponse]:
        read = self._ask(packed(asked))
        refused = read.pop("refused").tolist()
        answers = iter(self._of_graph(read, refused.count("")) if read else [])
        return [_refusal(why) if why else next(answers) for why in refused]

    def _of_graph(self, read: Arrays, count: int) -> list[pb_utils.InferenceResponse]:
        """The answers to `count` requests; `read` are the graph's inputs."""
        response = pb_utils.InferenceRequest(
            model_name=self.graph,
            model_version=self.version,
            requested_output_names=[],  # all
            inputs=[pb_utils.Tensor(name.removeprefix("feed/"), array) for name, array in read.items()],
            preferred_memory=self.memory,
        ).exec()
        if response.has_error():
            raise GraphFailed(response.error().message())
        parts = self._ask({f"output/{tensor.name()}": tensor.as_numpy() for tensor in response.output_tensors()})
        return [self._response({name: parts[f"{at}/{name}"] for name, _ in self.outputs}) for at in range(count)]


def packed(asked: Sequence[Items]) -> Arrays:
    """Requests in the form that `hosted_front.py` reads: per input, its items as one array of bytes, and their sizes.

    Raises:
        Raised: together they have more than `MAX_BYTES`.
    """
    total = sum(len(item) for each in asked for items in each.values() for item in items)
    if total > MAX_BYTES:
        raise Raised(f"the request has {total} bytes, the limit is {MAX_BYTES}: send it in parts")
    arrays: Arrays = {"rows": np.array([len(next(iter(each.values()))) for each in asked], np.int64)}
    for name in asked[0]:
        items = [item for each in asked for item in each[name]]
        arrays[f"items/{name}"] = np.frombuffer(b"".join(items), np.uint8)
        arrays[f"sizes/{name}"] = np.array(list(map(len, items)), np.int64)
    return arrays


def _refusal(why: str) -> pb_utils.InferenceResponse:
    return pb_utils.InferenceResponse([], pb_utils.TritonError(why))
