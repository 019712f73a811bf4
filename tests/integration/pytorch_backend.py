"""A `pytorch` backend for the bundled server, which has none: LibTorch from the torch wheel, behind the Python backend.

It reads what NVIDIA's backend reads (`default_model_filename`, tensors by position, thread counts), so a package for
NVIDIA's server runs in it unchanged. Triton takes this file as the backend itself ("Python-based backend").
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, os.environ["SHIPLIFT_SERVER_SITE"])  # its numpy is the one that the stub was built for
import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.append(str(Path(__file__).absolute().parents[1] / "packages"))
import torch


class TritonPythonModel:
    """Runs the requests of a batch in one call of the script."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        torch.set_num_threads(int(config["parameters"]["INTRA_OP_THREAD_COUNT"]["string_value"]))
        file = Path(args["model_repository"]) / args["model_version"] / config["default_model_filename"]
        self.script = torch.jit.load(str(file), map_location="cpu")
        self.inputs = [f"INPUT__{at}" for at in range(len(config["input"]))]
        self.outputs = [f"OUTPUT__{at}" for at in range(len(config["output"]))]

    def execute(self, requests):
        batches = [[pb_utils.get_input_tensor_by_name(r, name).as_numpy() for name in self.inputs] for r in requests]
        sizes = [len(batch[0]) for batch in batches]
        with torch.inference_mode():
            answers = self.script(*(torch.from_numpy(np.concatenate(parts)) for parts in zip(*batches, strict=True)))
        answers = [answers] if isinstance(answers, torch.Tensor) else answers
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, part.numpy()) for name, part in zip(self.outputs, parts, strict=True)]
            )
            for parts in zip(*(answer.split(sizes) for answer in answers), strict=True)
        ]
