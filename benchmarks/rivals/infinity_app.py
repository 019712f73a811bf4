"""Infinity with a sentence encoder, started by its own command.

Its documentation recommends Optimum on CPUs, which needs an ONNX file beside the model. The cache of answers is off,
since the benchmark asks the same texts again and again.
"""

import json
import os
import sys
from pathlib import Path

MODEL, NAME = os.environ["BENCH_MODEL"], "model"
SETTINGS = json.loads(os.environ["BENCH_SETTINGS"])
QUIET = {"HF_HUB_OFFLINE": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0", "TOKENIZERS_PARALLELISM": "false"}


def export() -> None:
    """Writes the model's ONNX file into its folder, where the next start finds it.

    It is what Optimum's exporter writes, which can't tell this torch to trace.
    """
    import torch
    from transformers import AutoModel

    names = ["input_ids", "attention_mask", "token_type_ids"]
    any_size = {0: "batch", 1: "length"}
    with torch.inference_mode():
        torch.onnx.export(
            AutoModel.from_pretrained(MODEL).eval(),
            tuple(torch.ones(2, 8, dtype=torch.int64) for _ in names),
            f"{MODEL}/model.onnx",
            input_names=names,
            output_names=["last_hidden_state"],
            dynamic_axes=dict.fromkeys([*names, "last_hidden_state"], any_size),
            opset_version=17,
            dynamo=False,
        )


def command() -> list[str]:
    """Infinity's command with the settings that are tried."""
    switches = {"compile": SETTINGS["compile"], "bettertransformer": False, "vector-disk-cache": False}
    return [
        str(Path(sys.executable).with_name("infinity_emb")),
        "v2",
        "--model-id",
        MODEL,
        "--served-model-name",
        NAME,
        "--engine",
        SETTINGS["engine"],
        "--dtype",
        SETTINGS["dtype"],
        "--batch-size",
        str(SETTINGS["batch"]),
        "--pooling-method",
        "mean",
        "--device",
        "cpu",
        "--host",
        "127.0.0.1",
        "--port",
        os.environ["BENCH_PORT"],
        "--log-level",
        "warning",
        *(f"--{'' if on else 'no-'}{name}" for name, on in switches.items()),
    ]


if __name__ == "__main__":
    os.environ.update(QUIET)
    if SETTINGS["engine"] == "optimum" and not any(Path(MODEL).glob("*.onnx")):
        export()
    words = command()
    os.execv(words[0], words)
