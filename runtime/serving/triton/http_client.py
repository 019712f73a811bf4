"""A client of Triton's HTTP API, for where gRPC can't pass, such as the API server's proxy.

Tensors travel in KServe v2's binary form, so every type arrives as it was sent, including FP16 and BYTES.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import numpy as np
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor, triton_to_np_dtype

from shiplift.runtime.base.errors import NotFound, ServerFailed, Temporary
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.serving.triton.client import ALONE, SequenceStep, as_tensor, given, steps_of

_HEADER_LENGTH = "Inference-Header-Content-Length"


class TritonHttpClient:
    """A client of one server; `http` knows its address and how to reach it. `request_id` is that of every inference.

    Every method raises `ServerFailed` if Triton refuses, and `Temporary` if nothing answers.
    """

    def __init__(self, http: httpx.Client, *, request_id: str = "") -> None:
        self._http, self._id = http, {"id": request_id} if request_id else {}

    def signature(self, model: str) -> Signature:
        """A model's tensors, according to the server.

        Raises:
            NotFound: it does not serve the model.
        """
        metadata = self._metadata(model)
        return Signature(inputs=_specs(metadata["inputs"]), outputs=_specs(metadata["outputs"]))

    def versions(self, model: str) -> list[int]:
        """The versions of a model that take requests.

        Raises:
            NotFound: it does not serve the model.
        """
        return [int(version) for version in self._metadata(model).get("versions", [])]

    def default_version(self, model: str) -> int:
        """The version that answers a request that names none; 0 if none does.

        Raises:
            NotFound: the server does not serve the model.
        """
        return max(self.versions(model), default=0)

    def infer(
        self,
        model: str,
        signature: Signature,
        inputs: Arrays,
        *,
        version: int | None = None,
        step: SequenceStep = ALONE,
    ) -> Arrays:
        """The outputs of one request, by name."""
        return dict(_outputs(self._ask(model, signature, inputs, version, step)))

    def answering_version(self, package: Package, inputs: Arrays) -> int:
        """The version that answers a request that names none."""
        (step,) = steps_of(1) if package.stateful else (ALONE,)
        answer = self._ask(serving_name(package.model), package.signature, inputs, None, step)
        return int(_header(answer)["model_version"])

    def _ask(
        self, model: str, signature: Signature, inputs: Arrays, version: int | None, step: SequenceStep
    ) -> httpx.Response:
        tensors = [(spec, as_tensor(spec.datatype, inputs[spec.name])) for spec in given(signature, inputs)]
        contents = [_raw(spec.datatype, array) for spec, array in tensors]
        header = json.dumps(
            {
                **self._id,
                "inputs": [
                    {
                        "name": spec.name,
                        "datatype": spec.datatype,
                        "shape": list(array.shape),
                        "parameters": {"binary_data_size": len(content)},
                    }
                    for (spec, array), content in zip(tensors, contents, strict=True)
                ],
                "outputs": [{"name": spec.name, "parameters": {"binary_data": True}} for spec in signature.outputs],
                **({"parameters": vars(step)} if step.sequence_id else {}),
            }
        ).encode()
        return self._send(
            "POST",
            f"/v2/models/{model}{f'/versions/{version}' if version else ''}/infer",
            model,
            content=header + b"".join(contents),
            headers={_HEADER_LENGTH: str(len(header)), "Content-Type": "application/octet-stream"},
        )

    def _metadata(self, model: str) -> dict[str, Any]:
        metadata: dict[str, Any] = self._send("GET", f"/v2/models/{model}", model).json()
        return metadata

    def _send(self, method: str, path: str, model: str, **content: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **content)
        except httpx.HTTPError as error:
            raise Temporary(
                f"Triton at {self._http.base_url} does not answer: {error}", do="Check `shiplift status`."
            ) from error
        message = " ".join(answer.text.split())[:600] if answer.is_error else ""
        if answer.status_code == 404 or "unknown model" in message:
            raise NotFound(f"the server does not serve {model!r}", do="See `shiplift status`.")
        if answer.status_code in (502, 503, 504):  # a proxy's answer
            raise Temporary(f"no server of {model!r} answers: {message}", do="Check `shiplift status`.")
        if answer.is_error:
            raise ServerFailed(f"Triton refused {model!r}: {message}", do="See the server's log.")
        return answer


def _specs(tensors: list[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name=t["name"], datatype=t["datatype"], shape=tuple(int(n) for n in t["shape"])) for t in tensors
    )


def _raw(datatype: str, array: Any) -> bytes:
    if datatype == "BYTES":
        return bytes(serialize_byte_tensor(array).item()) if array.size else b""
    return bytes(array.tobytes())


def _outputs(answer: httpx.Response) -> Iterator[tuple[str, Any]]:
    at = _header_length(answer)
    for output in _header(answer)["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            yield output["name"], np.array(output["data"]).reshape(output["shape"])
        else:
            content = answer.content[at : at + size]
            yield output["name"], _array(output["datatype"], content).reshape(output["shape"])
            at += size


def _header(answer: httpx.Response) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(answer.content[: _header_length(answer)])
    return header


def _header_length(answer: httpx.Response) -> int:
    return int(answer.headers.get(_HEADER_LENGTH, len(answer.content)))


def _array(datatype: str, content: bytes) -> Any:
    if datatype == "BYTES":
        return deserialize_bytes_tensor(content)
    return np.frombuffer(content, dtype=triton_to_np_dtype(datatype))
