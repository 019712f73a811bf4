"""The memory a model needs when it is served: `python footprint.py MODEL NPZ` prints MiB.

Measured as the growth of a fresh process's resident memory until its session has answered once. This module imports
nothing of ours, so that only ONNX Runtime's memory is counted.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort


def resident_mb() -> float:
    """This process's resident memory in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def main(model: str, inputs: str) -> None:
    """Loads the model, answers once and prints the memory that took, in MiB."""
    feeds = {
        name: array.astype(object) if array.dtype.kind == "U" else array for name, array in np.load(inputs).items()
    }
    before = resident_mb()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    running = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    running.run(None, feeds)
    print(round(resident_mb() - before, 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
