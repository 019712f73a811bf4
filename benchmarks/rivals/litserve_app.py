"""LitServe with batching, over ONNX Runtime or torch in bf16: raw tensors, and ZeroMQ between its processes."""

from typing import Annotated, Any

import litserve
import numpy as np
from fastapi import Body, Response
from numpy.typing import NDArray

from benchmarks.rivals.model import PORT, SETTINGS, batch_of, bf16, onnx


class Api(litserve.LitAPI):
    """Raw samples in, raw float32 scores out."""

    def setup(self, device: str) -> None:
        """Loads the model in the worker."""
        del device
        if SETTINGS["engine"] == "torch-bf16":
            sizes = (2, SETTINGS["batch"], 1)  # the first is the one that a dynamic graph is traced with
            self.scores = bf16(compiled=SETTINGS["compile"], batches=sizes)
        else:
            self.scores = onnx()

    def decode_request(self, request: Annotated[bytes, Body()]) -> bytes:
        """The body."""
        return request

    def batch(self, inputs: list[bytes]) -> NDArray[Any]:
        """The bodies as one array."""
        return batch_of(inputs)

    def predict(self, x: NDArray[Any]) -> NDArray[Any]:
        """The scores of a batch."""
        return np.ascontiguousarray(self.scores(x))

    def unbatch(self, output: NDArray[Any]) -> list[bytes]:
        """The answers' bodies."""
        return [row.tobytes() for row in output]

    def encode_response(self, output: bytes) -> Response:
        """The answer; LitServe has `Response` in the signature of its endpoint."""
        return Response(output, media_type="application/octet-stream")


if __name__ == "__main__":
    api = Api(max_batch_size=SETTINGS["batch"], batch_timeout=SETTINGS["wait_ms"] / 1000)
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=SETTINGS["workers"], fast_queue=True, timeout=False
    )
    server.run(
        host="127.0.0.1",
        port=PORT,
        num_api_servers=SETTINGS["api_servers"],
        log_level="warning",
        access_log=False,
        generate_client_file=False,
        timeout_keep_alive=75,
    )
