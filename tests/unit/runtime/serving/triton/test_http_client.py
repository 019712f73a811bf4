"""Every type of tensor over HTTP: written in KServe v2's binary form, and read back unchanged."""

import json
from collections.abc import Callable

import httpx
import numpy as np
import pytest

from shiplift.runtime.base.errors import NotFound, ServerFailed, Temporary
from shiplift.runtime.records.tensor import Datatype, Signature
from shiplift.runtime.serving.triton.client import OWN_REQUESTS, SequenceStep
from shiplift.runtime.serving.triton.http_client import TritonHttpClient
from tests.unit.examples import tensor

Handler = Callable[[httpx.Request], httpx.Response]
LENGTH = "Inference-Header-Content-Length"


def client(handler: Handler) -> TritonHttpClient:
    return TritonHttpClient(httpx.Client(base_url="http://triton", transport=httpx.MockTransport(handler)))


def echo(request: httpx.Request) -> httpx.Response:
    """Returns each input as the output at its position, as bytes."""
    length = int(request.headers[LENGTH])
    header = json.loads(request.content[:length])
    outputs = [
        {**sent, "name": requested["name"]} for sent, requested in zip(header["inputs"], header["outputs"], strict=True)
    ]
    answer = json.dumps({"model_name": "m", "model_version": "1", "outputs": outputs}).encode()
    return httpx.Response(200, content=answer + request.content[length:], headers={LENGTH: str(len(answer))})


@pytest.mark.parametrize(
    ("datatype", "array"),
    [
        ("FP32", np.array([[1.5, np.nan, -np.inf]], np.float32)),
        ("FP16", np.array([[1.5, 65504, np.inf]], np.float16)),
        ("FP64", np.array([[np.pi]])),
        ("INT64", np.array([[2**62, -1]])),
        ("UINT8", np.array([[0, 255]], np.uint8)),
        ("BOOL", np.array([[True, False]])),
        ("BYTES", np.array([[b"", "größe".encode(), b"\x00\xff"]], dtype=object)),
        ("FP32", np.zeros((0, 3), np.float32)),
        ("BYTES", np.zeros((0, 3), object)),
    ],
)
def test_a_tensor_comes_back_as_it_was_sent(datatype: Datatype, array: np.ndarray) -> None:
    signature = Signature(
        inputs=(tensor("x", -1, -1, datatype=datatype), tensor("n", -1, -1, datatype="INT32")),
        outputs=(tensor("y", -1, -1, datatype=datatype), tensor("m", -1, -1, datatype="INT32")),
    )
    other = np.arange(4, dtype=np.int32).reshape(2, 2)
    outputs = client(echo).infer("m", signature, {"x": array, "n": other})
    np.testing.assert_array_equal(outputs["y"], array)
    np.testing.assert_array_equal(outputs["m"], other)
    assert outputs["y"].dtype == array.dtype


def test_a_server_that_answers_in_json_is_understood() -> None:
    outputs = [{"name": "y", "datatype": "FP32", "shape": [2, 1], "data": [1.0, 2.0]}]
    signature = Signature(inputs=(tensor("x", -1, 1),), outputs=(tensor("y", -1, 1),))
    json_server = client(lambda _: httpx.Response(200, json={"outputs": outputs}))
    assert json_server.infer("m", signature, {"x": np.zeros((2, 1))})["y"].tolist() == [[1.0], [2.0]]


def test_a_step_says_its_sequence_and_a_version_is_in_the_path() -> None:
    requests: list[httpx.Request] = []
    signature = Signature(inputs=(tensor("x", -1, 1),), outputs=(tensor("y", -1, 1),))

    def note(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return echo(request)

    step = SequenceStep(sequence_id=7, sequence_start=True)
    client(note).infer("m", signature, {"x": np.zeros((1, 1))}, version=3, step=step)
    header = json.loads(requests[0].content[: int(requests[0].headers[LENGTH])])
    assert header["parameters"] == {"sequence_id": 7, "sequence_start": True, "sequence_end": False}
    assert requests[0].url.path == "/v2/models/m/versions/3/infer"


def test_requests_of_shiplift_itself_say_so() -> None:
    """Capture leaves them out by their id; a client's request has none of ours."""
    ids: list[str] = []
    signature = Signature(inputs=(tensor("x", -1, 1),), outputs=(tensor("y", -1, 1),))

    def note(request: httpx.Request) -> httpx.Response:
        ids.append(json.loads(request.content[: int(request.headers[LENGTH])]).get("id", ""))
        return echo(request)

    http = httpx.Client(base_url="http://triton", transport=httpx.MockTransport(note))
    for server in (TritonHttpClient(http), TritonHttpClient(http, request_id=OWN_REQUESTS)):
        server.infer("m", signature, {"x": np.zeros((1, 1))})
    assert ids == ["", OWN_REQUESTS]


def test_a_server_s_refusal_is_quoted() -> None:
    signature = Signature(inputs=(tensor("x", -1, 1),), outputs=(tensor("y", -1, 1),))
    refused = client(lambda _: httpx.Response(400, json={"error": "unexpected shape for input 'x'"}))
    with pytest.raises(ServerFailed, match="unexpected shape for input 'x'"):
        refused.infer("m", signature, {"x": np.zeros((1, 1))})
    unknown = client(lambda _: httpx.Response(400, json={"error": "Request for unknown model: 'm' is not found"}))
    with pytest.raises(NotFound, match="does not serve 'm'"):
        unknown.signature("m")

    def silent(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(Temporary, match="does not answer"):
        client(silent).versions("m")
