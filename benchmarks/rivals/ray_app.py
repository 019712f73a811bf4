"""Ray Serve with `@serve.batch` over ONNX Runtime: raw tensors, the throughput-optimized proxy."""

import signal

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from benchmarks.rivals.model import PORT, SETTINGS, batch_of, onnx


@serve.deployment(
    num_replicas=SETTINGS["replicas"], max_ongoing_requests=256, ray_actor_options={"num_cpus": SETTINGS["cpus"]}
)
class Model:
    """Raw samples in, raw float32 scores out."""

    def __init__(self) -> None:
        """Loads the model in the replica."""
        self.scores = onnx()

    @serve.batch(max_batch_size=SETTINGS["batch"], batch_wait_timeout_s=SETTINGS["wait_ms"] / 1000)
    async def batched(self, bodies: list[bytes]) -> list[bytes]:
        """The scores of a batch."""
        return [row.tobytes() for row in self.scores(batch_of(bodies))]

    async def __call__(self, request: Request) -> Response:
        """Answers a request."""
        return Response(await self.batched(await request.body()), media_type="application/octet-stream")


if __name__ == "__main__":
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=256 << 20,
        log_to_driver=False,
        configure_logging=False,
        _node_ip_address="127.0.0.1",
    )
    serve.start(http_options={"host": "127.0.0.1", "port": PORT, "keep_alive_timeout_s": 75})
    serve.run(Model.bind(), route_prefix="/predict")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    ray.shutdown()
