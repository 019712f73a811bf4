"""NVIDIA's modelopt as a command: mixed precision, INT8 and FP8 graphs as TensorRT takes them.

It pins an ONNX Runtime and a cupy, so it lives in an environment of its own (`Containerfile.modelopt`) and is run,
never imported. Its options are those of `python -m modelopt.onnx.quantization` and `... .autocast`.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from shiplift.runtime.base.errors import MissingTool, QuantizeFailed
from shiplift.runtime.host.processes import inherited
from shiplift.runtime.model.tensors import Arrays, dump_npz
from shiplift.runtime.spec.model import Method

IMAGE_PYTHON = "/opt/modelopt/bin/python"  # where the image has it
METHODS: dict[Method, str] = {"minmax": "max", "entropy": "entropy"}  # what it calls them; it has no percentiles
_LIMIT_S = 3600


def quantize_command(
    python: str, model: Path, to: Path, mode: Literal["int8", "fp8"], method: Method, calibration: Path
) -> list[str]:
    """What writes the Q/DQ form of a model; what stays in float is FP16, inputs and outputs keep their types."""
    return [
        python, "-m", "modelopt.onnx.quantization", f"--onnx_path={model}", f"--output_path={to}",
        f"--quantize_mode={mode}", f"--calibration_method={METHODS[method]}",
        f"--calibration_data_path={calibration}", "--calibration_eps", "cuda:0", "cpu",
        "--high_precision_dtype=fp16", "--log_level=WARNING",
    ]  # fmt: skip


def autocast_command(python: str, model: Path, to: Path, kind: Literal["fp16", "bf16"], samples: Path) -> list[str]:
    """What writes the mixed-precision form of a model, with its sensitive nodes left in FP32."""
    return [
        python, "-m", "modelopt.onnx.autocast", f"--onnx_path={model}", f"--output_path={to}",
        f"--low_precision_type={kind}", f"--calibration_data={samples}", "--keep_io_types", "--providers", "cuda:0",
        "cpu", "--log_level=WARNING",
    ]  # fmt: skip


def write_samples(samples: Arrays, to: Path) -> Path:
    """Samples as it reads them: an NPZ of arrays by input name."""
    to.write_bytes(dump_npz(samples))
    return to


def run(words: Sequence[str], to: Path) -> Path:
    """Runs a command that writes the model `to`.

    Raises:
        MissingTool: its environment is not there.
        QuantizeFailed: it ended without a model; the message is its last line.
    """
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=_LIMIT_S, env=inherited(), cwd=to.parent
        )
    except FileNotFoundError as error:
        raise MissingTool(
            f"{words[0]} is not there: modelopt lives in an image of its own",
            do="Build Containerfile.modelopt, and name it as `images.modelopt` in the values.",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise QuantizeFailed(f"{words[2]} took more than {_LIMIT_S} s", do="Calibrate on fewer samples.") from error
    if done.returncode or not to.is_file():
        said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        raise QuantizeFailed(
            f"{words[2]} failed with exit code {done.returncode}: {said[0][:300]}",
            do="Leave that precision out of the target's.",
        )
    return to
