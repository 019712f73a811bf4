"""Requests that Triton answers in pieces, over gRPC: one call per request, so cancelling the call cancels the request.

Models that stream need this: Triton refuses ordinary requests to them.
"""

from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, triton_to_np_dtype

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.tensor import Datatype, Signature

Options = Sequence[tuple[str, str | int]]


@contextmanager
def connected(address: str, options: Options = (), *, secure: bool = False) -> Iterator[Any]:
    """Triton's gRPC service at `host:port`, for as long as the context lasts."""
    channel = (
        grpc.secure_channel(address, grpc.ssl_channel_credentials(), options=list(options))
        if secure
        else grpc.insecure_channel(address, options=list(options))
    )
    with channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def request_of(model: str, signature: Signature, inputs: Arrays, version: int | None = None) -> Any:
    """A request of one sample; optional inputs may be missing."""
    request = service_pb2.ModelInferRequest(model_name=model, model_version=str(version or ""))
    for spec in signature.inputs:
        if spec.optional and spec.name not in inputs:
            continue
        array = _tensor(spec.datatype, inputs[spec.name])
        entry = request.inputs.add(name=spec.name, datatype=spec.datatype)
        entry.shape.extend(array.shape)
        texts = spec.datatype == "BYTES"
        request.raw_input_contents.append(serialize_byte_tensor(array).item() if texts else array.tobytes())
    return request


def pieces(service: Any, request: Any, signature: Signature, timeout_s: float) -> Generator[Arrays]:
    """The pieces of a request's answer as they come, each with the outputs by name.

    Closing the generator before the last piece cancels the request.

    Raises:
        InferenceServerException, grpc.RpcError: Triton refuses or fails the request, or does not answer in time.
    """
    call = service.ModelStreamInfer(iter([request]), timeout=timeout_s)
    try:
        for answer in call:
            if arrays := _outputs(answer, signature):
                yield arrays
    finally:
        call.cancel()


def answering_version(service: Any, request: Any, timeout_s: float) -> int:
    """The version that answers a request, according to the first piece; the rest is cancelled.

    Raises:
        InferenceServerException: Triton refuses or fails the request, or does not answer in time.
    """
    call = service.ModelStreamInfer(iter([request]), timeout=timeout_s)
    try:
        for answer in call:
            if answer.error_message:
                raise InferenceServerException(answer.error_message)
            return int(answer.infer_response.model_version)
        raise InferenceServerException("the stream ended without an answer")
    except grpc.RpcError as error:
        raise InferenceServerException(str(error.details()), status=str(error.code())) from error
    finally:
        call.cancel()


async def pieces_async(service: Any, request: Any, signature: Signature, timeout_s: float) -> AsyncGenerator[Arrays]:
    """Like `pieces`, over a channel of `grpc.aio`."""
    call = service.ModelStreamInfer(iter([request]), timeout=timeout_s)
    try:
        async for answer in call:
            if arrays := _outputs(answer, signature):
                yield arrays
    finally:
        call.cancel()


def _outputs(answer: Any, signature: Signature) -> Arrays:
    """The outputs in one answer; empty in an answer that only ends the stream."""
    if answer.error_message:
        raise InferenceServerException(answer.error_message)
    result = triton.InferResult(answer.infer_response)
    arrays = {spec.name: result.as_numpy(spec.name) for spec in signature.outputs}
    return arrays if all(array is not None for array in arrays.values()) else {}


def whole(signature: Signature, parts: Iterable[Arrays]) -> Arrays:
    """The pieces of an answer put together: texts one after the other, numbers by addition.

    Raises:
        InferenceServerException: there are no pieces.
    """
    answer: Arrays = {}
    for part in parts:
        answer = {name: answer[name] + array for name, array in part.items()} if answer else dict(part)
    if not answer:
        raise InferenceServerException(f"the answer has no {signature.outputs[0].name!r}: it ended without a piece")
    return answer


def _tensor(datatype: Datatype, array: Any) -> Any:
    shaped = np.asarray(array)
    shaped = shaped.reshape(-1, 1) if shaped.ndim == 1 else shaped
    if datatype == "BYTES":
        texts = [item if isinstance(item, bytes) else str(item).encode() for item in shaped.reshape(-1)]
        return np.array(texts, dtype=np.object_).reshape(shaped.shape)
    return np.ascontiguousarray(shaped, dtype=triton_to_np_dtype(datatype))
