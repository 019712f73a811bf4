"""modelopt up to its command line. It can't be installed here, so a script stands in for its Python."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.base.errors import MissingTool, QuantizeFailed
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import load_npz
from shiplift.runtime.precision import modelopt, rungs
from shiplift.runtime.precision.evaluation import Validation
from shiplift.runtime.records.precision import Evaluation
from shiplift.runtime.spec.model import Quantization
from shiplift.runtime.spec.target import Target
from tests.unit.examples import perceptron, signature

GPU = Target(name="h200", accelerator="nvidia", server="nvidia", compute_capability="9.0")
COPIES = """#!/bin/sh
for word in "$@"; do case "$word" in
  --onnx_path=*) from="${word#*=}";;
  --output_path=*) to="${word#*=}";;
  --calibration_data*=*) test -f "${word#*=}" || exit 9;;
esac; done
echo "$2 $4" >>"$0.asked"; cp "$from" "$to"
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """What copies the model, as if it had converted it."""
    file = tmp_path / "python"
    file.write_text(COPIES)
    file.chmod(0o755)
    return file


def job(tmp_path: Path, kind: Any, python: Path, target: Target = GPU, **settings: Any) -> rungs.RungJob:
    model = perceptron(tmp_path / "fp32" / "model.onnx")
    samples = {"input": np.zeros((8, 4), np.float32)}
    validation = Validation(metric=None, asked=samples, reference={})
    (tmp_path / "work").mkdir(exist_ok=True)
    return rungs.RungJob(
        kind=kind,
        model=str(model),
        folder=str(tmp_path / "work"),
        sensitivities=str(tmp_path / "kept"),
        target=target,
        arrays=str(rungs.write_arrays(tmp_path / "arrays.npz", samples, validation)),
        signature=signature(),
        metric=None,
        base=Evaluation(),
        settings=Quantization(**settings),
        modelopt=str(python),
    )


def test_the_commands_are_those_of_its_own_documentation(tmp_path: Path) -> None:
    quantize_ = modelopt.quantize_command("py", Path("a.onnx"), Path("b.onnx"), "fp8", "minmax", Path("c.npz"))
    assert quantize_ == [
        "py",
        "-m",
        "modelopt.onnx.quantization",
        "--onnx_path=a.onnx",
        "--output_path=b.onnx",
        "--quantize_mode=fp8",
        "--calibration_method=max",
        "--calibration_data_path=c.npz",
        "--calibration_eps",
        "cuda:0",
        "cpu",
        "--high_precision_dtype=fp16",
        "--log_level=WARNING",
    ]
    autocast = modelopt.autocast_command("py", Path("a.onnx"), Path("b.onnx"), "bf16", Path("c.npz"))
    assert autocast == [
        "py",
        "-m",
        "modelopt.onnx.autocast",
        "--onnx_path=a.onnx",
        "--output_path=b.onnx",
        "--low_precision_type=bf16",
        "--calibration_data=c.npz",
        "--keep_io_types",
        "--providers",
        "cuda:0",
        "cpu",
        "--log_level=WARNING",
    ]


@pytest.mark.parametrize(
    ("kind", "methods", "asked", "method"),
    [
        ("fp16", ("minmax",), ["modelopt.onnx.autocast"], "modelopt autocast, kept inputs and outputs"),
        ("bf16", ("minmax",), ["modelopt.onnx.autocast"], "modelopt autocast, kept inputs and outputs"),
        ("fp8", ("entropy",), ["modelopt.onnx.quantization"], "modelopt fp8, max"),
        ("int8 static", ("minmax", "entropy"), ["modelopt.onnx.quantization"] * 2, "modelopt int8, max"),
        ("int8 static", ("percentile",), ["modelopt.onnx.quantization"], "modelopt int8, max"),
    ],
)
def test_rungs_of_a_gpu_are_built_by_it_where_it_is_configured(
    tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, methods: Any, asked: Any, method: str
) -> None:
    """No GPU can run its graphs here, so the session runs on the CPU."""
    real = onnx_models.session
    monkeypatch.setattr(onnx_models, "session", lambda file, **_: real(file))
    rung = rungs.build(job(tmp_path, kind, python, methods=methods))
    assert (rung.failed, rung.method) == ("", method)
    assert Path(rung.file).is_file()
    assert [line.split()[0] for line in Path(f"{python}.asked").read_text().splitlines()] == asked
    assert load_npz(tmp_path / "work" / "samples.npz")["input"].shape == (8, 4)


def test_it_is_for_gpus_alone_and_only_where_it_is_configured(tmp_path: Path, python: Path) -> None:
    assert not job(tmp_path, "fp16", python, Target()).by_modelopt
    unset = job(tmp_path, "fp8", python).model_copy(update={"modelopt": ""})
    assert "which is in the image for GPUs" in rungs.build(unset).failed


def test_what_it_complains_about_is_the_rung_s_reason(tmp_path: Path, python: Path) -> None:
    python.write_text("#!/bin/sh\necho one >&2; echo 'no kernel image is available' >&2; exit 1\n")
    assert "failed with exit code 1: no kernel image is available" in rungs.build(job(tmp_path, "fp8", python)).failed
    with pytest.raises(QuantizeFailed, match="exit code 0: it wrote nothing"):
        modelopt.run(["true", "-m", "modelopt.onnx.quantization"], tmp_path / "nothing.onnx")
    with pytest.raises(MissingTool, match="in the image for GPUs"):
        modelopt.run([str(tmp_path / "nowhere"), "-m", "x"], tmp_path / "nothing.onnx")
