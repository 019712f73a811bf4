"""The protocols of the sides of `make bench`: HTTP/1.1 requests with one sample each, and their answers.

Every server gets the fastest format that it accepts, because the format is not what is compared.
"""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

HOST = "127.0.0.1"
Decode = Callable[[bytes, dict[str, str]], NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How to talk to a side: the path, the encoding of a sample as headers and body, and the decoding of an answer."""

    path: str
    encode: Callable[[NDArray[Any]], tuple[dict[str, str], bytes]]
    decode: Decode
    textual: bool = False  # numbers are text, so answers have no fixed length


def raw_protocol(answers: NDArray[Any]) -> Protocol:
    """Raw tensors, both ways."""
    return Protocol(
        path="/predict",
        encode=lambda sample: ({"Content-Type": "application/octet-stream"}, sample[None].tobytes()),
        decode=lambda body, _: np.frombuffer(body, np.float32).reshape(1, *answers.shape[1:]),
    )


def mlflow_protocol() -> Protocol:
    """`/invocations` with `inputs`, which MLflow's documentation recommends for tensors."""
    return Protocol(
        path="/invocations",
        encode=lambda sample: (
            {"Content-Type": "application/json"},
            json.dumps({"inputs": [sample.tolist()]}).encode(),
        ),
        decode=lambda body, _: _from_mlflow(json.loads(body)["predictions"]),
        textual=True,
    )


def _from_mlflow(predictions: Any) -> NDArray[Any]:
    values = [next(iter(row.values())) if isinstance(row, dict) else row for row in predictions]
    return np.asarray(values, np.float32).reshape(1, -1)


def triton_protocol(model: str, signature: Any) -> Protocol:
    """KServe v2 with Triton's binary extension, requesting only the first output."""
    first_input, first_output = signature.inputs[0], signature.outputs[0]

    def encode(sample: NDArray[Any]) -> tuple[dict[str, str], bytes]:
        asked = {first_input.name: (first_input.datatype, (1, *sample.shape), sample[None].tobytes())}
        return binary_request(asked, first_output.name)

    def decode(body: bytes, headers: dict[str, str]) -> NDArray[Any]:
        length = int(headers["inference-header-content-length"])
        shape = json.loads(body[:length])["outputs"][0]["shape"]
        return np.frombuffer(body[length:], np.float32).reshape(shape)

    return Protocol(path=f"/v2/models/{model}/infer", encode=encode, decode=decode)


def binary_request(
    inputs: Mapping[str, tuple[str, tuple[int, ...], bytes]], output: str
) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request with Triton's binary extension, for one output.

    `inputs` are datatypes, shapes and raw bytes, by name.
    """
    head = json.dumps(
        {
            "inputs": [
                {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": len(body)}}
                for name, (datatype, shape, body) in inputs.items()
            ],
            "outputs": [{"name": output, "parameters": {"binary_data": True}}],
        }
    ).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return headers, head + b"".join(body for *_, body in inputs.values())


def request_bytes(port: int, path: str, headers: dict[str, str], body: bytes) -> bytes:
    """A complete HTTP/1.1 request."""
    lines = {"Host": f"{HOST}:{port}", **headers, "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def base64_protocol(answers: NDArray[Any]) -> Protocol:
    """A list of samples as base64 in JSON, both ways: the cheapest form where bodies must be JSON."""
    return Protocol(
        path="/predict",
        encode=lambda sample: ({"Content-Type": "application/json"}, json.dumps({"samples": [_text(sample)]}).encode()),
        decode=lambda body, _: _floats(json.loads(body)[0], answers),
    )


def mlserver_protocol(answers: NDArray[Any]) -> Protocol:
    """KServe v2 without Triton's binary extension, which MLServer lacks: a tensor of base64, which it decodes."""

    def encode(sample: NDArray[Any]) -> tuple[dict[str, str], bytes]:
        tensor = {"name": "samples", "shape": [1], "datatype": "BYTES", "data": [_text(sample)]}
        body = {"id": "0", "inputs": [tensor | {"parameters": {"content_type": "base64"}}]}
        return {"Content-Type": "application/json"}, json.dumps(body).encode()

    return Protocol(
        path="/v2/models/model/infer",
        encode=encode,
        decode=lambda body, _: _floats(json.loads(body)["outputs"][0]["data"][0], answers),
    )


def embeddings_protocol() -> Protocol:
    """OpenAI's embeddings of a text, as base64: what Infinity's clients ask for.

    The identifiers and times in its answers differ in length, which therefore says nothing.
    """

    def encode(sample: NDArray[Any]) -> tuple[dict[str, str], bytes]:
        body = {"model": "model", "input": [str(sample)], "encoding_format": "base64"}
        return {"Content-Type": "application/json"}, json.dumps(body).encode()

    def decode(body: bytes, _: dict[str, str]) -> NDArray[Any]:
        return np.frombuffer(base64.b64decode(json.loads(body)["data"][0]["embedding"]), np.float32)[None]

    return Protocol(path="/embeddings", encode=encode, decode=decode, textual=True)


def _text(sample: NDArray[Any]) -> str:
    return base64.b64encode(sample.tobytes()).decode()


def _floats(text: str, answers: NDArray[Any]) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text), np.float32).reshape(1, *answers.shape[1:])
