"""Asks Triton for a request's rows over gRPC: all in one request, or as many as the model's largest batch allows."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor, triton_to_np_dtype

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.scoring.problems import UNAVAILABLE, UNKNOWN, ScoringProblem

_ANSWER_S = 60.0  # as MLflow's server waits
_AT_ONCE = 16  # parts of one request
_UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_OF_GRPC = {
    grpc.StatusCode.UNAVAILABLE: (503, UNAVAILABLE),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (429, "REQUEST_LIMIT_EXCEEDED"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (504, UNAVAILABLE),
    grpc.StatusCode.NOT_FOUND: (404, UNKNOWN),
}
_FAILED = (
    "Encountered an unexpected error while evaluating the model. Verify that the input is compatible with the model "
    "for inference. The model's server said: "
)


class Servers:
    """Connections to the servers of models, one for each address."""

    def __init__(self) -> None:
        self._channels: dict[tuple[str, str, bool], grpc.aio.Channel] = {}
        self._largest: dict[tuple[str, int, str], int] = {}

    async def ask(self, served: ServedModel, inputs: Arrays, wanted: tuple[str, ...], params: str = "") -> list[Arrays]:
        """The wanted outputs for consecutive rows, in their order; `params` are parameters as JSON, if any.

        Raises:
            ScoringProblem: the server refuses or fails the request, or does not answer.
        """
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel(served))
        try:
            most = await self._most(served, stub)
            rows = len(next(iter(inputs.values())))

            async def part(start: int) -> Arrays:
                some = {name: array[start : start + most] for name, array in inputs.items()}
                request = _request(served, some, wanted)
                if params:
                    request.parameters["params"].string_param = params
                return await _asked(stub, request)

            return [await part(0)] if rows <= most else await _in_parts(part, range(0, rows, most))
        except grpc.aio.AioRpcError as error:
            raise _problem(error, served) from error

    async def close(self) -> None:
        """Closes all connections."""
        for channel in self._channels.values():
            await channel.close()

    async def _most(self, served: ServedModel, stub: Any) -> int:
        """How many rows a request may have."""
        key = served.name, served.version, served.grpc
        if key not in self._largest:
            asked = service_pb2.ModelConfigRequest(name=served.name)
            config = (await stub.ModelConfig(asked, timeout=_ANSWER_S)).config
            self._largest[key] = max(1, config.max_batch_size) if served.signature.batch == -1 else 1
        return self._largest[key]

    def _channel(self, served: ServedModel) -> grpc.aio.Channel:
        key = served.grpc, served.host, served.secure
        if key not in self._channels:
            options = [*_UNLIMITED, *([("grpc.default_authority", served.host)] if served.host else [])]
            self._channels[key] = (
                grpc.aio.secure_channel(served.grpc, grpc.ssl_channel_credentials(), options=options)
                if served.secure
                else grpc.aio.insecure_channel(served.grpc, options=options)
            )
        return self._channels[key]


async def _in_parts(part: Callable[[int], Awaitable[Arrays]], starts: Iterable[int]) -> list[Arrays]:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def limited(start: int) -> Arrays:
        async with limit:
            return await part(start)

    tasks = [asyncio.create_task(limited(start)) for start in starts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _asked(stub: Any, request: Any) -> Arrays:
    answer = await stub.ModelInfer(request, timeout=_ANSWER_S)
    contents = answer.raw_output_contents
    return {output.name: _array(output, content) for output, content in zip(answer.outputs, contents, strict=True)}


def _request(served: ServedModel, inputs: Arrays, wanted: tuple[str, ...]) -> Any:
    request = service_pb2.ModelInferRequest(model_name=served.name)
    for spec in served.signature.inputs:
        if spec.name not in inputs:
            continue
        array = inputs[spec.name]
        entry = request.inputs.add(name=spec.name, datatype=spec.datatype)
        entry.shape.extend(array.shape)
        if spec.datatype == "BYTES":
            request.raw_input_contents.append(_texts(array))
        else:
            request.raw_input_contents.append(np.ascontiguousarray(array).tobytes())
    for name in wanted:
        request.outputs.add(name=name)
    return request


def _texts(array: Any) -> bytes:
    encoded = np.array([item if isinstance(item, bytes) else item.encode() for item in array.ravel()], object)
    content: bytes = serialize_byte_tensor(encoded).item() if encoded.size else b""
    return content


def _array(output: Any, content: bytes) -> Any:
    if output.datatype == "BYTES":
        return deserialize_bytes_tensor(content).reshape(tuple(output.shape))
    return np.frombuffer(content, triton_to_np_dtype(output.datatype)).reshape(tuple(output.shape))


def _problem(error: grpc.aio.AioRpcError, served: ServedModel) -> ScoringProblem:
    said = " ".join((error.details() or "it does not answer").split())[:600]
    status, code = _OF_GRPC.get(error.code(), (400, "BAD_REQUEST"))
    if "unknown model" in said:
        return ScoringProblem(404, f"{served.model!r} is not served any more", code=UNKNOWN)
    if status == 504:
        return ScoringProblem(504, "Request processing time exceeded limit", code=code)
    return ScoringProblem(
        status, f"the server of {served.model!r} says: {said}" if status != 400 else _FAILED + said, code=code
    )
