"""What users of streamed answers wait for, computed from the times of the pieces, and what ends a measurement."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from shiplift.runtime.base.errors import MeasurementFailed
from shiplift.runtime.measure.generator import Demand, LoadTarget, Measurement, Window
from shiplift.runtime.measure.generators import load_generator
from shiplift.runtime.measure.perf_analyzer import PerfAnalyzer
from shiplift.runtime.measure.streaming import FinishedRequest, StreamingClient, _requests, streaming_of
from shiplift.runtime.model.generation.signature import SIGNATURE
from shiplift.runtime.serving import streaming
from tests.unit.examples import site

Answer = Callable[[Any, Any], Iterator[Any]]
REQUEST = {"prompt": np.array(["ä"], object), "max_tokens": np.array([4], np.int32)}


def test_the_first_token_the_pauses_and_the_rate_are_told_apart() -> None:
    answers = [
        FinishedRequest(sent=0.0, pieces=((0.5, 1), (0.6, 1), (0.8, 2))),
        FinishedRequest(sent=1.0, pieces=((1.1, 1), (1.3, 1))),
    ]
    arrivals = [piece for answer in answers for piece in answer.pieces] + [(2.5, 100)]
    seen = streaming_of(answers, arrivals, 0.0, 2.0)
    assert seen.ttft_p50_ms == pytest.approx(100)
    assert seen.ttft_p99_ms == pytest.approx(500)
    assert seen.inter_token_p50_ms == pytest.approx(100)
    assert seen.inter_token_p99_ms == pytest.approx(200)
    assert seen.tokens_per_s == 3  # those that came later do not count
    assert answers[0].whole_s == pytest.approx(0.8)


def test_requests_are_read_as_they_were_written(tmp_path: Path) -> None:
    (request_arrays,) = _requests(StreamingClient().write_requests(tmp_path / "r.json", SIGNATURE, [REQUEST]))
    assert {name: (array.tolist(), array.shape) for name, array in request_arrays.items()} == {
        "prompt": ([["ä"]], (1, 1)),
        "max_tokens": ([[4]], (1, 1)),
    }
    request = streaming.request_of("m", SIGNATURE, request_arrays)
    assert [(entry.name, list(entry.shape)) for entry in request.inputs] == [("prompt", [1, 1]), ("max_tokens", [1, 1])]
    assert list(request.raw_input_contents) == [b"\x02\x00\x00\x00" + "ä".encode(), b"\x04\x00\x00\x00"]


def test_pieces_are_put_together() -> None:
    def piece(text: bytes, ended: bytes, tokens: int) -> dict[str, np.ndarray]:
        texts = {"text": text, "finish_reason": ended}
        arrays = {name: np.array([[value]], object) for name, value in texts.items()}
        return {**arrays, "tokens": np.array([[tokens]], np.int32)}

    answer = streaming.whole(SIGNATURE, [piece(b"a", b"", 1), piece(b"b", b"", 2), piece(b"", b"length", 1)])
    assert {name: array.item() for name, array in answer.items()} == {
        "text": b"ab",
        "finish_reason": b"length",
        "tokens": 4,
    }
    with pytest.raises(InferenceServerException, match="it ended without a piece"):
        streaming.whole(SIGNATURE, [])


def test_answers_in_pieces_have_a_load_generator_of_their_own(tmp_path: Path) -> None:
    assert isinstance(load_generator(site(tmp_path), "grpc", streamed=True), StreamingClient)
    assert isinstance(load_generator(site(tmp_path), "grpc"), PerfAnalyzer)
    with pytest.raises(MeasurementFailed, match="a model that streams has no sequences"):
        StreamingClient().write_sequences(tmp_path / "r.json", SIGNATURE, [[REQUEST]])


# --- a server that fails as the real one can't be made to ---


class Server(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc] # generated without types
    """Answers each request as told; `seen` are the requests, and `left` says that a client gave one up."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.left = answer, threading.Event()
        self.seen: list[Any] = []

    def ModelStreamInfer(self, request_iterator: Any, context: Any) -> Iterator[Any]:  # noqa: N802 - the protocol's name
        request = next(request_iterator)
        self.seen.append(request)
        context.add_callback(lambda: self.left.set() if context.code() is None else None)
        yield from self.answer(request, context)


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[Server, str]]:
    server, service = grpc.server(ThreadPoolExecutor(16)), Server(answer)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield service, f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def piece(text: str = "a", ended: str = "", tokens: int = 1) -> Any:
    answer = service_pb2.ModelStreamInferResponse()
    for name, datatype, raw in (
        ("text", "BYTES", serialize_byte_tensor(np.array([[text.encode()]], object)).item()),
        ("finish_reason", "BYTES", serialize_byte_tensor(np.array([[ended.encode()]], object)).item()),
        ("tokens", "INT32", np.array([[tokens]], np.int32).tobytes()),
        ("prompt_tokens", "INT32", np.array([[0]], np.int32).tobytes()),
    ):
        answer.infer_response.outputs.add(name=name, datatype=datatype, shape=[1, 1])
        answer.infer_response.raw_output_contents.append(raw)
    return answer


def three_pieces(request: Any, context: Any) -> Iterator[Any]:
    yield from (piece(), piece("b", tokens=2), piece("", "length"))
    yield service_pb2.ModelStreamInferResponse()  # Triton's own end: it has no outputs


def measured(tmp_path: Path, answer: Answer, demand: Demand, **window: Any) -> tuple[Measurement, Server]:
    file = StreamingClient().write_requests(
        tmp_path / "r.json", SIGNATURE, [REQUEST, {**REQUEST, "seed": np.array([1])}]
    )
    with serving(answer) as (server, address):
        target = LoadTarget(model="m", address=address, requests=file)
        how = Window(**{"window_ms": 50, "attempts": 1} | window)
        return StreamingClient().measure(target, demand, how, tmp_path), server


def test_clients_send_one_request_after_another_and_all_tokens_count(tmp_path: Path) -> None:
    result, server = measured(tmp_path, three_pieces, Demand(concurrency=2))
    point, (raw,) = result.point, result.runs
    assert point.concurrency == 2
    assert point.streaming is not None
    assert point.streaming.tokens_per_s >= 4 * point.throughput_per_s > 0
    assert 0 < point.streaming.ttft_p50_ms <= point.p50_ms <= point.p99_ms
    assert raw["row"]["answers"] == len(raw["answers"]) <= len(server.seen)
    assert [tokens for _, tokens in raw["answers"][0]["pieces"]] == [1, 2, 1]
    assert {len(request.inputs) for request in server.seen} == {2, 3}  # both requests are asked


def test_requests_arrive_at_a_rate_whatever_is_unanswered(tmp_path: Path) -> None:
    result, server = measured(tmp_path, three_pieces, Demand(rate_per_s=200))
    seconds = result.runs[0]["seconds"]
    assert (result.point.concurrency, result.point.rate_per_s) == (0, 200)
    assert result.point.sent_per_s == pytest.approx(len(server.seen) / seconds)


def test_a_measurement_that_does_not_agree_is_repeated_and_the_last_one_counts(tmp_path: Path) -> None:
    result, _ = measured(tmp_path, three_pieces, Demand(concurrency=1), attempts=2, stability_percent=-1)
    assert (len(result.runs), result.point.stable) == (2, False)
    tokens_per_s = [run["row"]["tokens_per_s"] for run in result.runs]
    assert result.point.streaming is not None
    assert result.point.streaming.tokens_per_s == pytest.approx(tokens_per_s[-1])


def test_a_request_that_fails_ends_the_measurement_with_the_reason(tmp_path: Path) -> None:
    def refusing(request: Any, context: Any) -> Iterator[Any]:
        yield service_pb2.ModelStreamInferResponse(error_message="out of tokens")

    def breaking(request: Any, context: Any) -> Iterator[Any]:
        yield piece()
        context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    def silent(request: Any, context: Any) -> Iterator[Any]:
        yield from ()

    for answer, reason in ((refusing, "out of tokens"), (breaking, "gone"), (silent, "its answer had no pieces")):
        with pytest.raises(MeasurementFailed, match=f"a request failed at concurrency 1: .*{reason}"):
            measured(tmp_path, answer, Demand(concurrency=1))


def test_who_stops_listening_cancels_the_request() -> None:
    def endless(request: Any, context: Any) -> Iterator[Any]:
        while context.is_active():
            yield piece()

    request = streaming.request_of("m", SIGNATURE, REQUEST)
    with serving(endless) as (server, address), streaming.connected(address) as service:
        first = next(parts := streaming.pieces(service, request, SIGNATURE, 30))
        parts.close()
        assert first["text"].item() == b"a"
        assert server.left.wait(120)


def test_an_answer_that_does_not_come_in_time_is_an_error() -> None:
    released = threading.Event()

    def waiting(request: Any, context: Any) -> Iterator[Any]:
        released.wait(30)
        yield piece()

    request = streaming.request_of("m", SIGNATURE, REQUEST)
    with serving(waiting) as (_, address), streaming.connected(address) as service:
        with pytest.raises(grpc.RpcError) as error:
            list(streaming.pieces(service, request, SIGNATURE, 0.2))
        released.set()
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
