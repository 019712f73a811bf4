"""MLServer with adaptive batching: a custom runtime over ONNX Runtime, because MLServer has none for it."""

import asyncio
import json
import sys
from pathlib import Path

from mlserver import MLModel
from mlserver.cli.main import main
from mlserver.codecs import Base64Codec
from mlserver.types import InferenceRequest, InferenceResponse

from benchmarks.rivals.model import PORT, SETTINGS, batch_of, onnx


class Model(MLModel):
    """Samples in base64 in, scores in base64 out."""

    async def load(self) -> bool:
        """Loads the model in the worker."""
        self.scores = onnx()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answers the requests of a batch, which MLServer has joined."""
        bodies = Base64Codec.decode_input(payload.inputs[0])
        scores = await asyncio.get_running_loop().run_in_executor(None, self.scores, batch_of(bodies))
        output = Base64Codec.encode_output("scores", [row.tobytes() for row in scores])
        return InferenceResponse(model_name=self.name, outputs=[output])


def write(folder: Path) -> None:
    """Writes MLServer's two files of settings."""
    server = {
        "host": "127.0.0.1",
        "http_port": PORT,
        "grpc_port": 0,
        "metrics_port": 0,
        "debug": False,
        "parallel_workers": SETTINGS["parallel_workers"],
        "metrics_endpoint": None,
    }
    model = {
        "name": "model",
        "implementation": "benchmarks.rivals.mlserver_app.Model",
        "max_batch_size": SETTINGS["batch"],
        "max_batch_time": SETTINGS["wait_ms"] / 1000,
    }
    folder.mkdir(exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(server))
    (folder / "model-settings.json").write_text(json.dumps(model))


if __name__ == "__main__":
    write(Path("mlserver"))
    sys.argv = ["mlserver", "start", "mlserver"]
    main()
