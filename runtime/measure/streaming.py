"""Load on a model that streams its answers, and what its users wait for: the first token, and each later one.

perf_analyzer measures whole requests, and NVIDIA's generators for language models speak other protocols, so this client
is our own: one thread per request in flight notes when each piece came.
"""

import json
import math
import random
import resource
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.utils import InferenceServerException

from shiplift.runtime.base.errors import MeasurementFailed
from shiplift.runtime.base.progress import measuring
from shiplift.runtime.measure.generator import Demand, LoadTarget, Measurement, Window
from shiplift.runtime.model.generation.signature import CHAT_SIGNATURE, TOKENS
from shiplift.runtime.model.tensors import Arrays, numpy_type
from shiplift.runtime.records.measurement import LoadPoint, Streaming
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving import streaming

_WINDOWS = 3  # that are compared with each other
_LEAST = 2  # answers per client, so that slow models are measured too
_LONGEST_S = 120.0
_REQUEST_S = 600.0
_MOST_IN_FLIGHT = 256  # more would measure this process instead of the server
_LOOK_S = 0.02
_SEED = 20240229
_MS = 1000.0


@dataclass(frozen=True, kw_only=True)
class FinishedRequest:
    """A finished request: when it was sent, and when its pieces came with how many tokens each, in seconds."""

    sent: float
    pieces: tuple[tuple[float, int], ...]

    @property
    def first_s(self) -> float:
        """How long its client waited for the first piece."""
        return self.pieces[0][0] - self.sent

    @property
    def whole_s(self) -> float:
        """How long its client waited for the last piece."""
        return self.pieces[-1][0] - self.sent

    @property
    def gaps_s(self) -> list[float]:
        """The pauses between pieces, divided among their tokens."""
        return [
            (after[0] - before[0]) / max(1, after[1])
            for before, after in zip(self.pieces, self.pieces[1:], strict=False)
            for _ in range(max(1, after[1]))
        ]


@dataclass(kw_only=True)
class _Seen:
    """What all clients have observed; `stop` ends them."""

    answered: list[FinishedRequest] = field(default_factory=list)
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # of tokens, including those of unfinished requests
    sent: int = 0
    error: str = ""
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)


class StreamingClient:
    """A load generator for streamed answers. See `runtime.measure.generator.LoadGenerator`."""

    def write_requests(self, path: Path, signature: Signature, samples: Iterable[Arrays]) -> Path:  # noqa: ARG002
        """Writes requests as JSON, each with its inputs by name."""
        path.write_text(json.dumps([{name: array.tolist() for name, array in sample.items()} for sample in samples]))
        return path

    def write_sequences(self, path: Path, signature: Signature, sequences: Iterable[Iterable[Arrays]]) -> Path:  # noqa: ARG002
        """Fails: streamed requests have no sequences."""
        raise MeasurementFailed("a model that streams has no sequences", do="Leave `serving.sequence_batching` out.")

    def measure(self, target: LoadTarget, demand: Demand, window: Window, work: Path) -> Measurement:  # noqa: ARG002
        """Repeats runs until the windows agree; the point is the last run's."""
        requests = [streaming.request_of(target.model, CHAT_SIGNATURE, arrays) for arrays in _requests(target.requests)]
        runs: list[tuple[LoadPoint, dict[str, Any]]] = []
        while not runs or (len(runs) < window.attempts and not runs[-1][0].stable):
            with measuring():
                runs.append(_run(target, demand, window, requests))
        return Measurement(point=runs[-1][0], runs=tuple(raw for _, raw in runs))


def _requests(path: Path) -> list[Arrays]:
    types = {spec.name: numpy_type(spec.datatype) for spec in CHAT_SIGNATURE.inputs}
    return [
        {name: np.array(values, types[name]).reshape(1, -1) for name, values in request.items()}
        for request in json.loads(path.read_text())
    ]


def _run(
    target: LoadTarget, demand: Demand, window: Window, requests: Sequence[Any]
) -> tuple[LoadPoint, dict[str, Any]]:
    seen, started = _Seen(), time.monotonic()
    used = _cpu_s()
    with streaming.connected(target.address, (("grpc.use_local_subchannel_pool", 1),)) as service:
        clients = _closed(service, demand, requests, seen) if demand.concurrency else []
        if demand.rate_per_s:
            clients = [_thread(partial(_arrive, service, demand, requests, seen))]
        _wait(seen, started, window.window_ms / _MS * _WINDOWS, _LEAST * max(1, demand.concurrency))
        seen.stop.set()
        ended = time.monotonic()
        for client in clients:
            client.join()
    if seen.error:
        raise MeasurementFailed(
            f"a request failed at {demand}: {seen.error}",
            do="Send one with `shiplift infer`; `load.tokens` says how many tokens the load test asks for.",
        )
    cores = (_cpu_s() - used) / (ended - started)
    return _point(seen, demand, window, started, ended, cores), _raw(seen, started, ended)


def _wait(seen: _Seen, started: float, least_s: float, least_answers: int) -> None:
    """Waits until the time is over and there are enough answers, or until a request failed."""
    while not seen.error:
        seconds = time.monotonic() - started
        if seconds >= least_s and (len(seen.answered) >= least_answers or seconds > _LONGEST_S):
            return
        time.sleep(_LOOK_S)


def _closed(service: Any, demand: Demand, requests: Sequence[Any], seen: _Seen) -> list[threading.Thread]:
    """Clients that each send the next request after the whole answer to the last one."""

    def client(at: int) -> None:
        turn = at
        while not seen.stop.is_set():
            _ask(service, requests[turn % len(requests)], seen)
            turn += demand.concurrency

    return [_thread(partial(client, at)) for at in range(demand.concurrency)]


def _arrive(service: Any, demand: Demand, requests: Sequence[Any], seen: _Seen) -> None:
    """Sends requests at random (Poisson) intervals, no matter how many are unanswered."""
    rng, due = random.Random(_SEED), time.monotonic()  # noqa: S311 - arrivals, no secrets
    senders: list[threading.Thread] = []
    turn = 0
    while not seen.stop.is_set():
        due += rng.expovariate(demand.rate_per_s)
        if seen.stop.wait(max(0.0, due - time.monotonic())):
            break
        senders = [sender for sender in senders if sender.is_alive()]
        if len(senders) < _MOST_IN_FLIGHT:
            senders.append(_thread(partial(_ask, service, requests[turn % len(requests)], seen)))
            turn += 1
    for sender in senders:
        sender.join()


def _thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _ask(service: Any, request: Any, seen: _Seen) -> None:
    """Sends a request and notes its pieces; cancels it when the measurement ends."""
    sent, pieces = time.monotonic(), []
    with seen.lock:
        seen.sent += 1
    try:
        for piece in streaming.pieces(service, request, CHAT_SIGNATURE, _REQUEST_S):
            arrival = time.monotonic(), int(piece[TOKENS].sum())
            pieces.append(arrival)
            with seen.lock:
                seen.arrivals.append(arrival)
            if seen.stop.is_set():
                return
    except (InferenceServerException, grpc.RpcError) as error:
        with seen.lock:
            seen.error = seen.error or " ".join(str(error).split())[:300]
        return
    with seen.lock:
        if pieces:
            seen.answered.append(FinishedRequest(sent=sent, pieces=tuple(pieces)))
        else:
            seen.error = seen.error or "its answer had no pieces"


def _point(seen: _Seen, demand: Demand, window: Window, started: float, ended: float, cores: float) -> LoadPoint:
    answered = [answer for answer in seen.answered if answer.pieces[-1][0] <= ended]
    if not answered:
        raise MeasurementFailed(
            f"no request was answered at {demand} within {ended - started:.0f} s",
            do="Lower `load.tokens` or `load.concurrency`, or see the server's log.",
        )
    seconds, spread = ended - started, _spread_percent(seen.arrivals, started, ended)
    whole = [answer.whole_s for answer in answered]
    p50, p90, p95, p99 = (_ms(whole, percent) for percent in (50, 90, 95, 99))
    return LoadPoint(
        concurrency=demand.concurrency,
        throughput_per_s=len(answered) / seconds,
        p50_ms=p50,
        p90_ms=p90,
        p95_ms=p95,
        p99_ms=p99,
        queue_ms=0.0,
        compute_ms=0.0,
        stable=spread <= window.stability_percent,
        spread_percent=round(spread, 1),
        rate_per_s=demand.rate_per_s,
        sent_per_s=seen.sent / seconds if demand.rate_per_s else 0.0,
        client_cores=round(cores, 3),
        streaming=streaming_of(answered, seen.arrivals, started, ended),
    )


def streaming_of(
    answered: Sequence[FinishedRequest], arrivals: Sequence[tuple[float, int]], started: float, ended: float
) -> Streaming:
    """What users of streamed answers experienced between two times (s), from whole answers and from all tokens."""
    first = [answer.first_s for answer in answered]
    gaps = [gap for answer in answered for gap in answer.gaps_s]
    tokens = sum(count for at, count in arrivals if started <= at <= ended)
    return Streaming(
        ttft_p50_ms=_ms(first, 50),
        ttft_p99_ms=_ms(first, 99),
        inter_token_p50_ms=_ms(gaps, 50),
        inter_token_p99_ms=_ms(gaps, 99),
        tokens_per_s=tokens / (ended - started),
    )


def _ms(seconds: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile, in milliseconds; 0 for no values."""
    if not seconds:
        return 0.0
    ordered = sorted(seconds)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] * _MS


def _spread_percent(arrivals: Sequence[tuple[float, int]], started: float, ended: float) -> float:
    """The largest deviation of a window's tokens from the mean of all windows."""
    size = (ended - started) / _WINDOWS
    counts = [0] * _WINDOWS
    for at, tokens in arrivals:
        if started <= at < ended:
            counts[int((at - started) / size)] += tokens
    mean = sum(counts) / _WINDOWS
    return max(abs(count - mean) for count in counts) / mean * 100 if mean else 100.0


def _raw(seen: _Seen, started: float, ended: float) -> dict[str, Any]:
    """Every answer, and the figures as a row of the table."""
    answers = [
        {"sent_s": answer.sent - started, "pieces": [(at - started, tokens) for at, tokens in answer.pieces]}
        for answer in seen.answered
    ]
    figures = streaming_of(seen.answered, seen.arrivals, started, ended).model_dump()
    return {"row": {"answers": len(answers), **figures}, "answers": answers, "seconds": ended - started}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
