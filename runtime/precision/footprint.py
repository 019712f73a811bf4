"""The memory that a model needs when it is served: `python footprint.py MODEL NPZ [HINT]` prints MiB.

It is the growth of a fresh process's resident memory until its session has answered once. This module imports nothing
of ours, so that only the engine's memory counts: treelite's with the HINT `trees`, OpenVINO's with another (its
precision), otherwise ONNX Runtime's.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np


def resident_mb() -> float:
    """This process's resident memory in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def main(model: str, inputs: str, hint: str = "") -> None:
    """Loads the model, answers once, and prints the memory that this took, in MiB."""
    feeds = {
        name: array.astype(object) if array.dtype.kind == "U" else array for name, array in np.load(inputs).items()
    }
    ask = _on_treelite if hint == "trees" else _on_openvino if hint else _on_onnxruntime
    print(ask(model, feeds, hint))


def _on_onnxruntime(model: str, feeds: dict[str, Any], _hint: str) -> float:
    import onnxruntime as ort  # noqa: PLC0415 - loads only the engine that is measured

    before = resident_mb()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    running = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    running.run(None, feeds)
    return round(resident_mb() - before, 1)


def _on_openvino(model: str, feeds: dict[str, Any], hint: str) -> float:
    import openvino  # noqa: PLC0415 - see above

    before = resident_mb()
    settings = {"INFERENCE_PRECISION_HINT": hint, "NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": "1"}
    running = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    running.infer(feeds)
    return round(resident_mb() - before, 1)


def _on_treelite(model: str, feeds: dict[str, Any], _hint: str) -> float:
    import treelite  # noqa: PLC0415 - see above

    before = resident_mb()
    forest = treelite.Model.deserialize(model)
    rows = np.concatenate([column.reshape(len(column), -1) for column in feeds.values()], axis=1)
    treelite.gtil.predict(forest, rows.astype(forest.input_type), nthread=1)
    return round(resident_mb() - before, 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
