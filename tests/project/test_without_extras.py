"""What the base installation runs must not import what only an extra installs."""

import subprocess
import sys

import pytest

EXTRAS = (
    "tokenizers",
    "transformers",
    "sentence_transformers",
    "openvino_genai",
    "openvino_tokenizers",
    "catboost",
    "keras",
    "tensorflow",
    "lightgbm",
    "xgboost",
)


MODULES = (
    "shiplift.pipelines.release",
    "shiplift.pipelines.daemons.dispatcher",
    "shiplift.pipelines.daemons.prober",
    "shiplift.pipelines.triggers.receiver",
    "shiplift.pipelines.commands.app",
)


_LOCAL = (
    "cryptography",
    "fastapi",
    "matplotlib",
    "modelaudit",
    "nncf",
    "openvino",
    "optuna",
    "pandas",
    "pyarrow",
    "scipy",
    "uvicorn",
)
_FRAMEWORKS = ("onnxscript", "skl2onnx", "sklearn", "torch", "treelite")
_CLUSTER = (
    "shiplift.pipelines.commands.cluster.install",
    "shiplift.pipelines.engines.argo.engine",
    "shiplift.pipelines.installation.values",
)


@pytest.mark.parametrize(
    ("absent", "modules"), [(EXTRAS, MODULES), ((*EXTRAS, *_LOCAL, *_FRAMEWORKS), _CLUSTER)], ids=["local", "cluster"]
)
def test_everything_starts_without_the_libraries_of_extras(absent: tuple[str, ...], modules: tuple[str, ...]) -> None:
    program = f"import sys; sys.modules |= dict.fromkeys({absent!r}); import {', '.join(modules)}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
