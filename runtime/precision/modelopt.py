"""NVIDIA's modelopt as a command: mixed-precision, INT8 and FP8 graphs for TensorRT.

modelopt pins ONNX Runtime and cupy, so it has an environment of its own (in the image that `make image-gpu` builds). It
runs as a process and is never imported. Its options are those of `python -m modelopt.onnx.quantization` and `...
.autocast`.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from shiplift.runtime.base.errors import MissingTool, QuantizeFailed
from shiplift.runtime.host.processes import inherited
from shiplift.runtime.model.tensors import Arrays, dump_npz
from shiplift.runtime.spec.model import Method

IMAGE_PYTHON = "/opt/modelopt/bin/python"  # in the image for GPUs
METHODS: dict[Method, str] = {"minmax": "max", "entropy": "entropy"}  # in modelopt's terms; it has no percentile method
_LIMIT_S = 3600


def quantize_command(
    python: str, model: Path, to: Path, mode: Literal["int8", "fp8"], method: Method, calibration: Path
) -> list[str]:
    """The command that writes a Q/DQ graph; float layers become FP16, and inputs and outputs keep their types."""
    return [
        python,
        "-m",
        "modelopt.onnx.quantization",
        f"--onnx_path={model}",
        f"--output_path={to}",
        f"--quantize_mode={mode}",
        f"--calibration_method={METHODS[method]}",
        f"--calibration_data_path={calibration}",
        "--calibration_eps",
        "cuda:0",
        "cpu",
        "--high_precision_dtype=fp16",
        "--log_level=WARNING",
    ]


def autocast_command(python: str, model: Path, to: Path, kind: Literal["fp16", "bf16"], samples: Path) -> list[str]:
    """The command that writes a mixed-precision graph, with sensitive nodes left in FP32."""
    return [
        python,
        "-m",
        "modelopt.onnx.autocast",
        f"--onnx_path={model}",
        f"--output_path={to}",
        f"--low_precision_type={kind}",
        f"--calibration_data={samples}",
        "--keep_io_types",
        "--providers",
        "cuda:0",
        "cpu",
        "--log_level=WARNING",
    ]


def write_samples(samples: Arrays, to: Path) -> Path:
    """Writes samples in modelopt's format: an NPZ of arrays by input name."""
    to.write_bytes(dump_npz(samples))
    return to


def run(command: Sequence[str], to: Path) -> Path:
    """Runs a command that writes the model `to`.

    Raises:
        MissingTool: modelopt's environment is missing.
        QuantizeFailed: the command wrote no model; the message ends with its last line of output.
    """
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT_S, env=inherited(), cwd=to.parent
        )
    except FileNotFoundError as error:
        raise MissingTool(
            f"{command[0]} is missing: modelopt is in the image for GPUs",
            do="Build it with `make image-gpu`, and name it as `images.gpu` in the values.",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise QuantizeFailed(f"{command[2]} took more than {_LIMIT_S} s", do="Calibrate on fewer samples.") from error
    if completed.returncode or not to.is_file():
        lines = (completed.stderr or completed.stdout).strip().splitlines()[-1:] or ["it wrote nothing"]
        raise QuantizeFailed(
            f"{command[2]} failed with exit code {completed.returncode}: {lines[0][:300]}",
            do="Leave that precision out of the target's precisions.",
        )
    return to
