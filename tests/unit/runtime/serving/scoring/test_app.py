"""The application in front of a server that speaks Triton's gRPC, with the faults of one."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from shiplift.runtime.base.errors import StackDown
from shiplift.runtime.records.scoring import AnswerForm
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.scoring.app import MAX_BODY_BYTES, ScoringApp
from shiplift.runtime.serving.scoring.scorer import answer_once
from tests.unit.runtime.serving.scoring.schemas import of_columns, of_tensors

BODY = {"dataframe_split": {"columns": ["a"], "data": [[1.0], [2.0], [3.0]]}}
FLAT = {"kind": "array", "parts": [{"tensor": "y", "rank": 1}]}


class Doubler(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc] # generated
    """Doubles `a`, at most two rows at a time; `code` is an error instead."""

    def __init__(self) -> None:
        self.code: Any = None
        self.rows: list[int] = []

    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        response = service_pb2.ModelConfigResponse()
        response.config.max_batch_size = 2
        return response

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.code:
            await context.abort(self.code, "said the server")
        values = np.frombuffer(request.raw_input_contents[0], np.float64)
        self.rows.append(len(values))
        response = service_pb2.ModelInferResponse(model_name="m", model_version="1")
        response.outputs.add(name="y", datatype="FP32", shape=[len(values), 1])
        response.raw_output_contents.append((2 * values).astype(np.float32).tobytes())
        return response


@pytest.fixture
def doubler() -> Iterator[tuple[Doubler, ServedModel]]:
    """The server, and its model."""
    servicer, started, loop = Doubler(), threading.Event(), asyncio.new_event_loop()
    address: list[str] = []
    ended = asyncio.Event()

    async def run() -> None:
        server = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
        address.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        started.set()
        await ended.wait()
        await server.stop(0)

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert started.wait(120)
    try:
        yield servicer, of_columns({"a": "double"}, answer=FLAT, grpc=address[0])
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(timeout=120)
        loop.close()


def ask(
    served: list[ServedModel] | ServedModel,
    path: str = "/models/m/invocations",
    *,
    body: Any = None,
    method: str = "POST",
    key: str = "",
    default: str = "",
    **headers: str,
) -> httpx.Response:
    known = served if isinstance(served, list) else [served]
    app = ScoringApp(lambda: known, default=default, key=key)
    content = json.dumps(BODY if body is None else body).encode() if not isinstance(body, bytes) else body

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]  # plain ASGI
        async with httpx.AsyncClient(transport=transport, base_url="http://scoring") as client:
            sent = {
                "content-type": "application/json",
                **{name.replace("_", "-"): text for name, text in headers.items()},
            }
            return await client.request(method, path, content=content, headers=sent)

    return asyncio.run(send())


def test_rows_are_sent_together_as_far_as_the_batch_allows(doubler: tuple[Doubler, ServedModel]) -> None:
    answer = ask(doubler[1])
    assert (answer.status_code, answer.json()) == (200, {"predictions": [2.0, 4.0, 6.0]})
    assert sorted(doubler[0].rows) == [1, 2]
    assert answer.headers["content-type"] == "application/json"


def test_an_answer_about_a_whole_request_is_not_made_of_its_rows(
    doubler: tuple[Doubler, ServedModel],
) -> None:
    spec = TensorSpec(name="a", datatype="FP64", shape=(1, 1))
    signature = Signature(inputs=(spec,), outputs=(spec.model_copy(update={"name": "y"}),))
    whole = {"kind": "array", "parts": [{"tensor": "y", "rank": 1, "axis": "whole"}]}
    assert doubler[1].scoring
    scoring = doubler[1].scoring.model_copy(update={"answer": AnswerForm.model_validate(whole)})
    single = doubler[1].model_copy(update={"signature": signature, "scoring": scoring})
    one = {"dataframe_split": {"columns": ["a"], "data": [[1.0]]}}
    assert ask(single, body=one).json() == {"predictions": 2.0}
    refused = ask(single)
    assert (refused.status_code, "has 3 rows, and this model takes one" in refused.text) == (400, True)
    together = single.model_copy(update={"signature": doubler[1].signature})
    assert ask(together).json() == {"predictions": 2.0}  # it was proved to be the same for each row


def test_a_program_can_ask_without_a_scoring_server(doubler: tuple[Doubler, ServedModel]) -> None:
    async def within_a_loop() -> bytes:
        return answer_once(doubler[1], "application/json", json.dumps(BODY).encode())

    assert json.loads(asyncio.run(within_a_loop())) == {"predictions": [2.0, 4.0, 6.0]}


def test_the_root_is_the_default_s_or_the_host_s_or_the_only_model_s(doubler: tuple[Doubler, ServedModel]) -> None:
    model = doubler[1]
    other = model.model_copy(update={"model": "other", "host": "other.models"})
    assert ask(model, "/invocations").status_code == 200
    assert ask([model, other], "/invocations", default="m").status_code == 200
    assert ask([model, other], "/invocations", host="Other.models:8000").status_code == 200
    unclear = ask([model, other], "/invocations")
    assert unclear.status_code == 404
    assert "/models/NAME/invocations" in unclear.json()["message"]


def test_a_name_may_need_an_escape(doubler: tuple[Doubler, ServedModel]) -> None:
    odd = doubler[1].model_copy(update={"model": "odd name?"})
    assert ask(odd, "/models/odd%20name%3F/invocations").status_code == 200


def test_alive_routes_answer_as_mlflow_s(doubler: tuple[Doubler, ServedModel]) -> None:
    for path in ("/ping", "/health", "/models/m/ping", "/models/m/health"):
        answer = ask(doubler[1], path, method="GET")
        assert (answer.status_code, answer.text) == (200, "\n")
    assert ask(doubler[1], "/models/other/ping", method="GET").status_code == 404
    assert ask(doubler[1], "/version", method="GET").text.startswith("3.")


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/", "GET", 404), ("/models/m", "GET", 404), ("/models/m/other", "POST", 404), ("/invocations", "GET", 405)],
)
def test_other_routes_are_named(doubler: tuple[Doubler, ServedModel], path: str, method: str, status: int) -> None:
    answer = ask(doubler[1], path, method=method)
    assert answer.status_code == status
    assert "invocations" in answer.json()["message"]


def test_a_key_is_checked_before_anything_else(doubler: tuple[Doubler, ServedModel]) -> None:
    for sent in ({}, {"authorization": "Bearer wrong"}):
        assert ask(doubler[1], key="secret", body=b"{", **sent).status_code == 401
        assert ask(doubler[1], "/models/other/ping", key="secret", method="GET", **sent).status_code == 401
    assert ask(doubler[1], key="secret", authorization="Bearer secret").status_code == 200
    assert ask(doubler[1], "/ping", key="secret", method="GET").status_code == 200


def test_a_body_is_limited_whether_it_says_its_size_or_not(doubler: tuple[Doubler, ServedModel]) -> None:
    for headers in ({}, {"content_length": str(MAX_BODY_BYTES + 1)}):
        answer = ask(doubler[1], body=b" " * (MAX_BODY_BYTES + 1), **headers)
        assert answer.status_code == 413
        assert str(MAX_BODY_BYTES) in answer.json()["message"]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (grpc.StatusCode.UNAVAILABLE, 503),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
        (grpc.StatusCode.DEADLINE_EXCEEDED, 504),
        (grpc.StatusCode.NOT_FOUND, 404),
        (grpc.StatusCode.INTERNAL, 400),
        (grpc.StatusCode.INVALID_ARGUMENT, 400),
    ],
)
def test_the_server_s_errors_are_passed_on(doubler: tuple[Doubler, ServedModel], code: Any, status: int) -> None:
    doubler[0].code = code
    answer = ask(doubler[1])
    assert answer.status_code == status
    assert answer.json()["error_code"]
    assert status == 504 or "said the server" in answer.json()["message"]


def test_a_refusal_is_given_only_if_the_model_is_still_the_same(doubler: tuple[Doubler, ServedModel]) -> None:
    looks: list[ServedModel] = [of_tensors("float32", -1, 3), doubler[1]]  # promoted between two looks
    app = ScoringApp(lambda: [looks.pop(0) if len(looks) > 1 else looks[0]])

    async def send() -> int:
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]  # plain ASGI
        async with httpx.AsyncClient(transport=transport, base_url="http://scoring") as client:
            assert (await client.get("/models/m/ping")).status_code == 200
            await asyncio.sleep(0.25)
            return (await client.post("/models/m/invocations", json=BODY)).status_code

    assert asyncio.run(send()) == 200


def test_models_that_can_t_be_scored_say_so() -> None:
    streamed = of_columns({"prompt": "string"})
    streamed = streamed.model_copy(
        update={"signature": Signature(inputs=streamed.signature.inputs, outputs=(), streamed=True)}
    )
    assert "shiplift openai" in ask(streamed).json()["message"]

    def down() -> list[ServedModel]:
        raise StackDown("no stack runs", do="Run `shiplift up`.")

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=ScoringApp(down))  # type: ignore[arg-type]  # plain ASGI
        async with httpx.AsyncClient(transport=transport, base_url="http://scoring") as client:
            return await client.post("/models/m/invocations", json=BODY)

    assert asyncio.run(send()).status_code == 503
