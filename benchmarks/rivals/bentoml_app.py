"""BentoML with adaptive batching over ONNX Runtime; its endpoints take JSON, in which base64 is cheapest."""

import bentoml

from benchmarks.rivals.model import SETTINGS, batch_of_text, onnx, texts_of


@bentoml.service(
    workers=SETTINGS["workers"],
    traffic={"timeout": 60, "max_concurrency": 1024},
    metrics={"enabled": False},
    logging={"access": {"enabled": False}},
)
class Model:
    """Samples in base64 in, scores in base64 out."""

    def __init__(self) -> None:
        """Loads the model in the worker."""
        self.scores = onnx()

    @bentoml.api(batchable=True, max_batch_size=SETTINGS["batch"], max_latency_ms=SETTINGS["latency_ms"])
    def predict(self, samples: list[str]) -> list[str]:
        """The scores of a batch."""
        return texts_of(self.scores(batch_of_text(samples)))
