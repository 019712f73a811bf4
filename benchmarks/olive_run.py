"""Runs inside Olive's own environment: quantizes one ONNX file by Olive's defaults. Imports nothing of Shiplift.

`python olive_run.py MODEL FOLDER`: FOLDER holds `samples.npz`, and gets `model.onnx`.
"""

import shutil
import sys
from pathlib import Path


def main(model: str, folder: str) -> None:
    """Olive's OnnxQuantization pass with its default choices, calibrated on the samples."""
    import numpy as np
    from olive.data.config import DataComponentConfig, DataConfig
    from olive.data.registry import Registry
    from olive.workflows import run

    samples = dict(np.load(Path(folder) / "samples.npz"))

    class Samples:
        """One sample a time, as Olive's loader wants it."""

        def __len__(self) -> int:
            return len(next(iter(samples.values())))

        def __getitem__(self, at: int) -> tuple[dict[str, object], int]:
            return {name: array[at] for name, array in samples.items()}, 0

    @Registry.register_dataset("benchmark_samples")  # type: ignore[untyped-decorator]
    def benchmark_samples(**_: object) -> Samples:
        return Samples()

    data = DataConfig(name="samples", load_dataset_config=DataComponentConfig(type="benchmark_samples"))
    run({
        "input_model": {"type": "ONNXModel", "model_path": model},
        "data_configs": [data.to_json()],
        "passes": {"quantize": {"type": "OnnxQuantization", "data_config": "samples"}},
        "output_dir": f"{folder}/out", "cache_dir": f"{folder}/cache", "log_severity_level": 3,
    })  # fmt: skip
    made = next(Path(folder, "out").rglob("*.onnx"))
    shutil.copyfile(made, Path(folder) / "model.onnx")


if __name__ == "__main__":
    main(*sys.argv[1:])
