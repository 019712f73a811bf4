"""`make check-gpu` can't be run where there is no GPU: its dry run shows that the script itself works."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def check(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks.check_gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=600)


@pytest.mark.slow
def test_its_dry_run_measures_every_model_and_precision_on_the_cpu(tmp_path: Path) -> None:
    done = check("--on-cpu", "--out", str(tmp_path))
    results = json.loads((tmp_path / "gpu_none.json").read_text())
    assert results["skipped"] == {}
    rows = {(row["model"], row["precision"], row["engine"]): row for row in results["figures"]}
    models = {model for model, _, _ in rows}
    precise = {(model, "fp32", "onnxruntime-cpu") for model in models}
    assert len(models) == 2
    assert set(rows) == precise | {(m, p, "torchscript") for m in models for p in ("fp32", "fp16", "bf16")}
    for (_, precision, _), row in rows.items():
        assert row["finite"] == 1
        assert row["samples_per_s"] > 0
        assert row["relative_error"] < (1e-4 if precision == "fp32" else 0.1)
        assert done.stdout.count(row["model"]) >= 4
    assert "memory_mb" not in str(rows)  # there is no GPU to ask


@pytest.mark.slow
def test_without_a_gpu_it_says_so_and_measures_nothing(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert "skipped everything: torch sees no CUDA device" in check("--out", str(tmp_path)).stdout
