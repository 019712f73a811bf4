"""Sends requests at given times, without waiting for earlier ones, or one after the other; and times them.

perf_analyzer draws its own arrivals, which a plan can't know: of 555 requests in half a minute, it sends 18.5 a second
where 20 were asked for. A plan for recorded arrivals is measured on these very arrivals.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio

from shiplift.runtime.planning.arrivals import Floats


def replayed(address: str, model: str, rows: Sequence[Any], times: Floats) -> Floats:
    """The latency in ms of each request: one at each of `times` (s), with the next of `rows`, FP32 of shape (1, n)."""
    return asyncio.run(_replayed(address, model, rows, times))


def in_turn(address: str, model: str, rows: Sequence[Any], count: int, pause_s: float = 0.0) -> Floats:
    """The latency in ms of each of `count` requests, each sent so long after the one before is answered."""
    return asyncio.run(_in_turn(address, model, rows, count, pause_s))


def computed_after(address: str, model: str, rows: Sequence[Any], pause_s: float, count: int) -> float:
    """The mean of what Triton computes, in ms, for `count` requests that each come so long after the last answer."""
    return asyncio.run(_computed_after(address, model, rows, pause_s, count))


async def _computed_after(address: str, model: str, rows: Sequence[Any], pause_s: float, count: int) -> float:
    async with triton_aio.InferenceServerClient(address) as client:
        before = await _computed(client, model)
        await _each(client, model, rows, count, pause_s)
        after = await _computed(client, model)
    return float((after.ns - before.ns) / (after.count - before.count) / 1e6)


async def _computed(client: Any, model: str) -> Any:
    statistics = await client.get_inference_statistics(model)
    return statistics.model_stats[0].inference_stats.compute_infer


async def _replayed(address: str, model: str, rows: Sequence[Any], times: Floats) -> Floats:
    async with triton_aio.InferenceServerClient(address) as client:
        start = time.perf_counter() + 0.1

        async def send(number: int) -> float:
            await asyncio.sleep(start + times[number] - time.perf_counter())
            return await _asked(client, model, rows[number % len(rows)])

        return np.array(await asyncio.gather(*map(send, range(len(times)))))


async def _in_turn(address: str, model: str, rows: Sequence[Any], count: int, pause_s: float) -> Floats:
    async with triton_aio.InferenceServerClient(address) as client:
        return np.array(await _each(client, model, rows, count, pause_s))


async def _each(client: Any, model: str, rows: Sequence[Any], count: int, pause_s: float) -> list[float]:
    """The latency in ms of each request, each sent so long after the one before is answered."""
    latencies = []
    for number in range(count):
        await asyncio.sleep(pause_s)
        latencies.append(await _asked(client, model, rows[number % len(rows)]))
    return latencies


async def _asked(client: Any, model: str, row: Any) -> float:
    tensor = triton.InferInput("x", list(row.shape), "FP32")
    tensor.set_data_from_numpy(row)
    begun = time.perf_counter()
    await client.infer(model, [tensor])
    return (time.perf_counter() - begun) * 1000
