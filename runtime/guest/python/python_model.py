"""Runs a Python model inside Triton's Python backend: each instance hosts a process that runs the model's code.

That process has the model's own environment and its own confinement (`python_host/worker.py`), so it can harm neither
this process nor other models. A request that it does not answer fails alone. One with parameters of its own is asked
alone, too: the proof of batches was made with the logged ones.

Process: Triton's Python backend, as `model.py` beside `python_host`.
Python: the server's
Packages: numpy
"""

from __future__ import annotations  # so that annotations are not evaluated: Triton's module lacks names of its types

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [path for path in os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep) if path]

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray
from python_host.host import ModelFailed, Raised, TookTooLong, UsedTooMuch, rows, split
from python_host.hosted import HostedModel
from python_host.values import as_served

Array = NDArray[Any]
Arrays = dict[str, Any]
_PARAMS, _MOST_PARAMS = "params", 64 << 10  # the request parameter that is JSON of all; characters


class TritonPythonModel:
    """An instance, and the process that it hosts."""

    LOGGED = "mlflow"  # the folder with what the process serves, beside this file

    def initialize(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        values = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        folder = Path(args["model_repository"], args["model_version"]).resolve()
        settings = json.loads((folder / "python.json").read_text())
        environment = Path(os.environ["SHIPLIFT_ENVIRONMENTS"], settings["environment"])
        self.inputs: list[tuple[str, int, bool]] = [
            (spec["name"], spec["rank"], spec["datatype"] == "BYTES") for spec in settings["inputs"]
        ]
        self.outputs: list[tuple[str, str]] = [(spec["name"], spec["type"]) for spec in settings["outputs"]]
        self.params: frozenset[str] = frozenset(settings.get("params", ()))
        self.form = _shape(settings.get("answer"))
        self.limit_s = int(values.get("request_timeout_ms", "30000")) / 1000
        self.name, self.stopped = args["model_name"], Stopped(args["model_name"])
        self.hosted = HostedModel(
            args,
            values,
            folder / "python_host",
            environment,
            {
                "model": str(folder / self.LOGGED),
                "outputs": settings["declared"],
                "json": settings.get("json", []),
                "listed": settings.get("listed", False),
                "axes": settings.get("axes", {}),
                "document": settings.get("document", False),
                "read": [str(path) for path in (environment, folder, Path(sys.base_prefix).resolve())],
            },
            memory_mb=settings["memory_mb"],
        )

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        batches, given = [self._read(request) for request in requests], [self._given(request) for request in requests]
        plain = [at for at, params in enumerate(given) if not params]
        answers = dict(zip(plain, self.hosted.answers([batches[at] for at in plain], self._together), strict=True))
        for at, params in enumerate(given):
            if params:
                answers[at] = self._with_params(batches[at], params)
        return [
            error_of(answer) if isinstance(answer, ModelFailed) else answer for _, answer in sorted(answers.items())
        ]

    def finalize(self) -> None:
        self.hosted.close()

    def _with_params(self, batch: Arrays, given: Mapping[str, Any]) -> Any:
        """The answer to a request with parameters of its own, which joins no other; they count if the process dies."""
        asked = {**batch, _PARAMS: np.array([json.dumps(given, sort_keys=True)], dtype=object)}
        return self.hosted.answers([asked], lambda _: self._together([batch], given))[0]

    def _together(
        self, batches: Sequence[Arrays], given: Mapping[str, Any] | None = None
    ) -> list[pb_utils.InferenceResponse]:
        if not _fit(batches):
            raise Raised("these requests can't be joined")
        joined = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
        answers = self._ask(joined, _params(given) if given else None)
        return [self._response(part) for part in split(answers, list(map(rows, batches)))]

    def _ask(self, inputs: Arrays, params: dict[str, Any] | None = None) -> Arrays:
        try:
            answers: Arrays = self.hosted.host.ask(inputs, self.limit_s, params)
        except TookTooLong as error:
            print(f"shiplift: {self.name}: {error}", file=sys.stderr)
            self.stopped.count()
            setting = "limits.cpu_s" if isinstance(error, UsedTooMuch) else "request_timeout_s"
            raise TookTooLong(f"{error} (serving.{setting} in the model's spec)") from None
        if params and self.form and _shape(self.hosted.host.form) != self.form:
            raise Raised("with these params, predict answers in another form than with the logged ones, as is served")
        return answers

    def _given(self, request: pb_utils.InferenceRequest) -> dict[str, Any]:
        """The request's parameters that the model takes: by their names, or all as JSON. Others are none of its own."""
        if not self.params:
            return {}
        return {
            name: value
            for name, value in json.loads(request.parameters() or "{}").items()
            if name == _PARAMS or name in self.params
        }

    def _read(self, request: pb_utils.InferenceRequest) -> Arrays:
        read = ((name, _input(request, name, rank, text)) for name, rank, text in self.inputs)
        return {name: array for name, array in read if array is not None}

    def _response(self, answers: Arrays) -> pb_utils.InferenceResponse:
        tensors = []
        for name, kind in self.outputs:
            if name not in answers:
                raise Raised(f"predict answered no {name!r}")
            tensors.append(pb_utils.Tensor(name, _carried(name, kind, answers[name])))
        return pb_utils.InferenceResponse(tensors)


class Stopped:
    """Counts the executions of a model that were stopped at their limit, under the same name as the other backends."""

    def __init__(self, model: str) -> None:
        self._metric: tuple[pb_utils.MetricFamily, pb_utils.Metric] | None = None  # the family must live as long
        with contextlib.suppress(pb_utils.TritonModelException):  # the server was started without metrics
            family = pb_utils.MetricFamily(
                name="shiplift_stopped_executions_total",
                description="Executions stopped at their time limit",
                kind=pb_utils.MetricFamily.COUNTER,
            )
            self._metric = family, family.Metric(labels={"model": model})

    def count(self, executions: int = 1) -> None:
        """Counts them."""
        if self._metric and executions:
            with contextlib.suppress(pb_utils.TritonModelException):
                self._metric[1].increment(executions)


def _input(request: pb_utils.InferenceRequest, name: str, rank: int, text: bool) -> Array | None:
    """An input; None if it is optional and the request lacks it."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return None
    array = tensor.as_numpy()
    if text:
        texts = [item.decode(errors="replace") if isinstance(item, bytes) else str(item) for item in array.ravel()]
        array = np.array(texts, dtype=object).reshape(array.shape)
    return array.reshape(-1) if rank == 1 else array


def _params(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters for `predict`, which checks them against the logged schema.

    Raises:
        Raised: they are no JSON object, or too large.
    """
    named, text = {name: value for name, value in given.items() if name != _PARAMS}, given.get(_PARAMS, "{}")
    if len(str(text)) > _MOST_PARAMS:
        raise Raised(f"the parameter {_PARAMS!r} has {len(text)} characters, the limit is {_MOST_PARAMS}")
    try:
        return {**named, **json.loads(text)}
    except (RecursionError, TypeError, ValueError) as error:
        raise Raised(f"the parameter {_PARAMS!r} is not a JSON object: {str(error)[:200]}") from None


def _shape(form: Any) -> Any:
    """What of an answer's form decides how clients read it; None if it is not known."""
    parts = (
        [(part["name"], part["tensor"], part["rank"], part.get("axis", "")) for part in form["parts"]] if form else []
    )
    return form and (form["kind"], parts)


def _carried(name: str, kind: str, array: Array) -> Array:
    """An answer in the type in which the proof saw the output, whatever this request's rows alone would have."""
    text = kind == "BYTES"
    array = as_served(array, np.dtype(object if text else kind))
    if text:
        if array.dtype != object:
            raise Raised(f"predict answered {name!r} of type {array.dtype}, not text as for the example")
        array = np.array([item.encode() for item in array.ravel()], dtype=object).reshape(array.shape)
    elif array.dtype != np.dtype(kind):
        raise Raised(f"predict answered {name!r} of type {array.dtype}, not {kind} as for the example")
    return array.reshape(-1, 1) if array.ndim == 1 else np.ascontiguousarray(array)


def _fit(batches: Sequence[Arrays]) -> bool:
    """Whether the requests can be joined: all have the same inputs, of the same sizes except for the batch."""
    return len({tuple((name, array.shape[1:]) for name, array in batch.items()) for batch in batches}) == 1


def error_of(error: ModelFailed) -> pb_utils.InferenceResponse:
    """The response that tells a client why there is no answer."""
    return pb_utils.InferenceResponse([], pb_utils.TritonError(str(error)))
