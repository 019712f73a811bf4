"""Holds calls over gRPC and forwards them as raw bytes, whatever the method."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, NoReturn

import grpc
import grpc.aio

from shiplift.pipelines.daemons.activator.forwarding import OWN_PREFIX, Addresses, target_of
from shiplift.pipelines.daemons.activator.holding import AskedService, Holding, HoldingLimit, NotHeld
from shiplift.runtime.serving.kubernetes.objects.activator import ANSWERED_HEADER, PROBE_HEADER

_STREAMS = ("/inference.GRPCInferenceService/ModelStreamInfer",)
_YES = b"\x08\x01"  # a message whose first field is 1: SERVING for a health check, true for ServerLive
_CODE = {HoldingLimit.FULL: grpc.StatusCode.RESOURCE_EXHAUSTED, HoldingLimit.LATE: grpc.StatusCode.UNAVAILABLE}
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_CHANNELS = 64


class GrpcFront(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc has no types
    """The handler for every method. Calls without a route's metadata are health checks, which it answers itself."""

    def __init__(self, holding: Holding, addresses: Addresses) -> None:
        self._holding, self._addresses = holding, addresses
        self._channels: dict[str, Any] = {}

    def service(self, details: Any) -> Any:
        """The handler of a call."""
        metadata = {str(name): str(value) for name, value in details.invocation_metadata}
        target = target_of(metadata)
        if target is None or PROBE_HEADER in metadata:
            return grpc.unary_unary_rpc_method_handler(partial(_own_answer, target))
        if details.method in _STREAMS:
            return grpc.stream_stream_rpc_method_handler(partial(self._stream, details.method, target))
        return grpc.unary_unary_rpc_method_handler(partial(self._call, details.method, target))

    async def close(self) -> None:
        """Closes all channels."""
        for channel in self._channels.values():
            await channel.close()

    async def _call(self, method: str, target: AskedService, request: bytes, context: Any) -> bytes:
        try:
            async with self._holding.place(target, len(request)) as deadline:
                channel = await self._channel(target, deadline)
                call = channel.unary_unary(method)(request, **_arguments(context))
                return await _passed_on(call, context)
        except NotHeld as refused:
            await _abort(context, refused)

    async def _stream(
        self, method: str, target: AskedService, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes]:
        """Holds a stream before reading any of it, then forwards messages in both directions."""
        try:
            async with self._holding.place(target, 0) as deadline:
                channel = await self._channel(target, deadline)
        except NotHeld as refused:
            await _abort(context, refused)
        call = channel.stream_stream(method)(requests, **_arguments(context))
        try:
            async for response in call:
                yield response
            context.set_trailing_metadata(await call.trailing_metadata())
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details(), tuple(error.trailing_metadata()))

    async def _channel(self, target: AskedService, deadline: float) -> Any:
        """A connected channel to a ready server: a call over it reaches the server or fails with its own error."""
        address = self._addresses.grpc(await self._holding.ready(target, deadline))
        if address not in self._channels and len(self._channels) >= _CHANNELS:
            await self._channels.pop(next(iter(self._channels))).close(grace=self._holding.bounds.seconds)
        channel = self._channels.setdefault(address, None) or grpc.aio.insecure_channel(address, options=_UNLIMITED)
        self._channels[address] = channel
        try:
            await asyncio.wait_for(channel.channel_ready(), deadline - asyncio.get_running_loop().time())
        except TimeoutError:
            raise self._holding.late(target) from None
        return channel


async def _own_answer(target: AskedService | None, _: bytes, context: Any) -> bytes:
    if target is not None:
        await context.send_initial_metadata(((ANSWERED_HEADER, target.service),))
    return _YES


async def _passed_on(call: Any, context: Any) -> bytes:
    """Forwards a call's answer and metadata, or its error."""
    try:
        response: bytes = await call
    except grpc.aio.AioRpcError as error:
        await context.abort(error.code(), error.details(), tuple(error.trailing_metadata()))
        raise
    await context.send_initial_metadata(tuple(await call.initial_metadata()))
    context.set_trailing_metadata(tuple(await call.trailing_metadata()))
    return response


def _arguments(context: Any) -> dict[str, Any]:
    """The client's metadata without what the route added, and the time left for the call."""
    kept: Sequence[tuple[str, Any]] = [
        (name, value)
        for name, value in context.invocation_metadata()
        if not name.startswith(OWN_PREFIX) and name != "user-agent"
    ]
    return {"metadata": tuple(kept), "timeout": context.time_remaining()}


async def _abort(context: Any, refused: NotHeld) -> NoReturn:
    await context.abort(_CODE[refused.limit], str(refused))
    raise refused
