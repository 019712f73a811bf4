"""Runs a model of Triton's Python backend in a confined process of its own, so that it can harm no other model.

The model is `inner.py` beside this file, written for Triton: `hosted_graph.py` runs it in that process, where the
requests arrive as this file packs them. This process holds no model. Whatever happens in the other one, it goes on.

Process: Triton's Python backend, as `model.py` beside `python_model.py`, `packing.py` and `python_host`.
Python: the server's
Packages: numpy
"""

from __future__ import annotations  # so that annotations are not evaluated: Triton's module lacks names of its types

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from python_model import Stopped, error_of  # isort: skip - first, because it adds numpy's folder

import numpy as np
import triton_python_backend_utils as pb_utils
from packing import pack_each, unpack_each
from python_host.host import ModelFailed, TookTooLong, UsedTooMuch
from python_host.hosted import HostedModel

Arrays = dict[str, Any]
_GRACE_S = 2.0  # for an execution to stop by itself at its limits; then its process is ended
_SHARE = 0.5  # of the machine's memory: what the process may use if nothing else is set


class TritonPythonModel:
    """An instance, and the process that has its model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        values = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        folder = Path(args["model_repository"], args["model_version"]).resolve()
        environment = Path(os.environ["SHIPLIFT_SERVER_SITE"].split(os.pathsep)[0], "..", "..", "..").resolve()
        self.limit_s = int(values.get("request_timeout_ms", "30000")) / 1000
        self.name, self.stopped = args["model_name"], Stopped(args["model_name"])
        known = {name: args[name] for name in ("model_name", "model_version", "model_config")}
        self.hosted = HostedModel(
            args,
            values,
            folder / "python_host",
            environment,
            {
                "model": str(folder),
                "args": {**known, "model_repository": str(folder.parent)},
                "read": [str(path) for path in (environment, folder, Path(sys.base_prefix).resolve())],
            },
            memory_mb=int(_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) >> 20,
            grace_s=_GRACE_S,
        )

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        answers = self.hosted.answers([_read(request) for request in requests], self._together)
        return [error_of(answer) if isinstance(answer, ModelFailed) else answer for answer in answers]

    def finalize(self) -> None:
        self.hosted.close()

    def _together(self, requests: Sequence[Arrays]) -> list[pb_utils.InferenceResponse]:
        try:
            answer = self.hosted.host.ask(pack_each(requests), self.limit_s)
        except TookTooLong as error:
            self.stopped.count()
            print(f"shiplift: {self.name}: {error}", file=sys.stderr)
            setting = "limits.cpu_s" if isinstance(error, UsedTooMuch) else "request_timeout_s"
            raise TookTooLong(f"{error} (serving.{setting} in the model's spec)") from None
        self.stopped.count(int(answer.pop("stopped", np.zeros(1))[0]))
        return [_response(each) for each in unpack_each(answer)]


def _read(request: pb_utils.InferenceRequest) -> Arrays:
    """A request's tensors by name, and what else `inner.py` may ask of it."""
    about = {
        "id": request.correlation_id(),
        "flags": request.flags(),
        "outputs": list(request.requested_output_names()),
    }
    return {"": np.array([json.dumps(about)], dtype=object)} | {
        tensor.name(): tensor.as_numpy() for tensor in request.inputs()
    }


def _response(arrays: Arrays) -> pb_utils.InferenceResponse:
    if (error := arrays.pop("", None)) is not None:
        return pb_utils.InferenceResponse([], pb_utils.TritonError(str(error[0])))
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays.items()])
