"""What the base installation runs must not import what only an extra installs."""

import subprocess
import sys

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


def test_everything_starts_without_the_libraries_of_extras() -> None:
    program = f"import sys; sys.modules |= dict.fromkeys({EXTRAS!r}); import {', '.join(MODULES)}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
