"""What a model takes in memory when it is served: `python footprint.py MODEL NPZ` prints MiB.

The resident memory of a fresh process before and after its session has answered once. It imports nothing of ours: what
is counted is ONNX Runtime's, not Shiplift's.
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
    """Loads, answers once, prints what that took."""
    given = {
        name: array.astype(object) if array.dtype.kind == "U" else array for name, array in np.load(inputs).items()
    }
    before = resident_mb()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    running = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    running.run(None, given)
    print(round(resident_mb() - before, 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
