"""The bare rate of a promoted package: its engine in this process, without a server, a socket or a copy.

Like OpenVINO's benchmark_app, it keeps an asynchronous queue of requests full: as many as the package has instances,
with its file, engine, precision, threads and streams, which it reads from config.pbtxt. What a server answers per
second is a share of this.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from tritonclient.grpc import model_config_pb2 as pb

from shiplift.runtime.records.base import Record
from shiplift.runtime.serving.triton.config import parse

CLIENTS = 16  # with one sample each, so that no batch can be larger
_WARM_S = 0.2
Samples = NDArray[Any]
Run = Callable[[Samples, float], float]  # a batch and seconds; returns batches per second


class Bare(Record):
    """The samples per second of a package's engine without a server, by batch size, and the settings it ran with."""

    engine: str
    settings: dict[str, str]
    samples_per_s: dict[int, float] = Field(description="by batch size")

    @property
    def best(self) -> float:
        """The rate of the best batch size."""
        return max(self.samples_per_s.values())


def bare(package: Path, samples: Samples, *, window_s: float, windows: int) -> Bare:
    """Measures a package (a folder with config.pbtxt and VERSION/model.onnx) on samples (count, *shape).

    Each batch size that 16 clients can fill is measured in several windows, of which the median counts.

    Raises:
        ValueError: the package's backend is neither onnxruntime nor openvino.
    """
    config = parse((package / "config.pbtxt").read_text())
    if config.backend not in _ENGINES:
        raise ValueError(f"the bare rate can be measured of {', '.join(_ENGINES)}, not of backend {config.backend!r}")
    run = _ENGINES[config.backend](next(package.glob("*/model.onnx")), config)
    rates = {}
    for size in batch_sizes(config.max_batch_size):
        batch = np.concatenate([samples] * (size // len(samples) + 1))[:size]
        run(batch, _WARM_S)
        rates[size] = median(run(batch, window_s) for _ in range(windows)) * size
    settings = {key: value.string_value for key, value in sorted(config.parameters.items())}
    instances = {"instances": str(_instances(config))}
    return Bare(engine=config.backend, settings=settings | instances, samples_per_s=rates)


def batch_sizes(most: int) -> list[int]:
    """The powers of two up to what a package accepts and 16 clients can fill; 0 means that it takes no batches."""
    return [size for size in (1, 2, 4, 8, CLIENTS) if size <= max(1, most)]


def _instances(config: pb.ModelConfig) -> int:
    return max(1, sum(int(group.count) for group in config.instance_group))


def _onnxruntime(file: Path, config: pb.ModelConfig) -> Run:
    """A thread per instance; single-threaded ones share a session, as in the backend."""
    import onnxruntime as ort

    threads = int(_parameter(config, "intra_op_thread_count", "1"))
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    count = _instances(config)
    sessions = [
        ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        for _ in range(1 if threads == 1 else count)
    ]
    name, outputs = config.input[0].name, [output.name for output in config.output]

    def run(batch: Samples, seconds: float) -> float:
        done = [0] * count

        def work(index: int) -> None:
            session = sessions[index % len(sessions)]
            while time.perf_counter() < end:
                session.run(outputs, {name: batch})
                done[index] += 1

        started = time.perf_counter()
        end = started + seconds
        workers = [threading.Thread(target=work, args=(index,)) for index in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return sum(done) / (time.perf_counter() - started)

    return run


def _openvino(file: Path, config: pb.ModelConfig) -> Run:
    """OpenVINO's own asynchronous queue, with the properties that the backend compiles with."""
    import openvino

    compiled = openvino.Core().compile_model(file, "CPU", openvino_properties(config))
    name, count = config.input[0].name, _instances(config)

    def run(batch: Samples, seconds: float) -> float:
        queue = openvino.AsyncInferQueue(compiled, count)
        tensor, done = openvino.Tensor(batch), 0
        started = time.perf_counter()
        while time.perf_counter() < started + seconds:
            queue.start_async({name: tensor})
            done += 1
        queue.wait_all()
        return done / (time.perf_counter() - started)

    return run


def openvino_properties(config: pb.ModelConfig) -> dict[str, str]:
    """The properties that the bundled server's backend compiles with."""
    hinted = "bf16" if _parameter(config, "HINT_BF16", "").lower() == "yes" else "f32"
    otherwise = {
        "INFERENCE_PRECISION_HINT": hinted,
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": "0",
        "PERFORMANCE_HINT": "LATENCY",
    }
    return {key: _parameter(config, key, value) for key, value in otherwise.items()}


def _parameter(config: pb.ModelConfig, key: str, otherwise: str) -> str:
    return config.parameters[key].string_value if key in config.parameters else otherwise


_ENGINES: dict[str, Callable[[Path, pb.ModelConfig], Run]] = {"onnxruntime": _onnxruntime, "openvino": _openvino}
