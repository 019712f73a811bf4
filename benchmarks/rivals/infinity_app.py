"""Infinity with a sentence encoder, started by its own command.

Its documentation recommends Optimum on CPUs, which needs an ONNX file beside the model: Optimum's exporter makes it.
The cache of answers is off, since the benchmark asks the same texts again and again.
"""

import json
import os
import sys
from pathlib import Path

MODEL, NAME = os.environ["BENCH_MODEL"], "model"
SETTINGS = json.loads(os.environ["BENCH_SETTINGS"])
QUIET = {"HF_HUB_OFFLINE": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0", "TOKENIZERS_PARALLELISM": "false"}


def export() -> None:
    """Writes the model's ONNX file into its folder; the next start finds it."""
    from optimum.exporters.onnx import main_export

    main_export(MODEL, MODEL, task="feature-extraction", library_name="transformers", device="cpu")


def command() -> list[str]:
    """Infinity's command with the settings that are tried."""
    switches = {"compile": SETTINGS["compile"], "bettertransformer": False, "vector-disk-cache": False}
    return [
        str(Path(sys.executable).with_name("infinity_emb")), "v2", "--model-id", MODEL, "--served-model-name", NAME,
        "--engine", SETTINGS["engine"], "--dtype", SETTINGS["dtype"], "--batch-size", str(SETTINGS["batch"]),
        "--pooling-method", "mean", "--device", "cpu", "--host", "127.0.0.1", "--port", os.environ["BENCH_PORT"],
        "--log-level", "warning", *(f"--{'' if on else 'no-'}{name}" for name, on in switches.items()),
    ]  # fmt: skip


if __name__ == "__main__":
    os.environ.update(QUIET)
    if SETTINGS["engine"] == "optimum" and not any(Path(MODEL).glob("*.onnx")):
        export()
    words = command()
    os.execv(words[0], words)
