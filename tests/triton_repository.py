"""A small Triton model repository, as people have them: a graph in two versions, Python, an ensemble, a bare graph."""

from pathlib import Path

import numpy as np

PLAIN = """name: "plain"
platform: "onnxruntime_onnx"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [4] }
output { name: "y" data_type: TYPE_FP32 dims: [3] label_filename: "labels.txt" }
instance_group { count: 2 kind: KIND_CPU }
"""
HALVE = """backend: "python"
max_batch_size: 8
input { name: "y" data_type: TYPE_FP32 dims: [3] }
output { name: "half" data_type: TYPE_FP32 dims: [3] }
"""
BOTH = """name: "both"
platform: "ensemble"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [4] }
output { name: "half" data_type: TYPE_FP32 dims: [3] }
ensemble_scheduling {
  step { model_name: "plain" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "m" } }
  step { model_name: "halve" model_version: -1
    input_map { key: "y" value: "m" } output_map { key: "half" value: "half" } }
}
"""
CODE = """import json
import triton_python_backend_utils as pb_utils
from helper import FACTOR


class TritonPythonModel:
    def initialize(self, args):
        entry = pb_utils.get_output_config_by_name(json.loads(args["model_config"]), "half")
        self.kind = pb_utils.triton_string_to_numpy(entry["data_type"])

    def execute(self, requests):
        answers = [pb_utils.get_input_tensor_by_name(request, "y").as_numpy() * FACTOR for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("half", y.astype(self.kind))]) for y in answers]
"""


def write(root: Path) -> Path:
    """Writes it into `root`, and returns that."""
    for version in (1, 2):
        graph(root / f"plain/{version}/model.onnx", float(version))
    graph(root / "bare/1/model.onnx", 3.0)
    texts = {
        "plain/config.pbtxt": PLAIN,
        "plain/labels.txt": "a\nb\nc\n",
        "halve/config.pbtxt": HALVE,
        "halve/1/model.py": CODE,
        "halve/1/helper.py": "FACTOR = 0.5\n",
        "both/config.pbtxt": BOTH,
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def graph(file: Path, scale: float) -> None:
    """Writes a graph that sums rows `x` of 4 numbers, times `scale`, into each of 3 columns of `y`."""
    import onnx
    from onnx import TensorProto, helper

    file.parent.mkdir(parents=True, exist_ok=True)
    weights = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], np.full(12, scale, np.float32))
    rows = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 4), ("y", 3))]
    made = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", rows[:1], rows[1:], [weights])
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
