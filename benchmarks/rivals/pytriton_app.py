"""PyTriton over ONNX Runtime: NVIDIA's server in front of a Python function, with dynamic batching."""

import numpy as np
from numpy.typing import NDArray
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from benchmarks.rivals.model import PORT, SETTINGS, SPEC, onnx


def functions(count: int) -> list:
    """As many functions, each with its own session, as instances."""

    def function():
        scores = onnx()

        @batch
        def infer(samples: NDArray) -> dict[str, NDArray]:
            return {"scores": scores(samples)}

        return infer

    return [function() for _ in range(count)]


if __name__ == "__main__":
    config = TritonConfig(
        http_address="127.0.0.1", http_port=PORT, allow_grpc=False, allow_metrics=False, log_verbose=0
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="model",
            infer_func=functions(SETTINGS["instances"]),
            inputs=[Tensor(name="samples", dtype=np.dtype(SPEC["dtype"]), shape=tuple(SPEC["shape"]))],
            outputs=[Tensor(name="scores", dtype=np.float32, shape=(-1,))],
            config=ModelConfig(
                max_batch_size=SETTINGS["batch"],
                batcher=DynamicBatcher(max_queue_delay_microseconds=SETTINGS["delay_us"]),
            ),
        )
        triton.serve()
