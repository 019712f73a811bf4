"""Quantizes a model with Olive, in Olive's own environment; imports nothing of Shiplift.

FOLDER holds `samples.npz` to calibrate on and `validation.npz` with inputs and `label`, and gets `model.onnx`. Without
`--trials`, Olive's pass runs with its defaults. With it, Olive searches the pass's own space (joint, TPE) for the
lowest latency within an accuracy budget, by its own metrics.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

_BATCH, _MAX_DROP = 8, 0.01  # as in Shiplift's own search for a precision
_ONE_THREAD = {"onnx": {"session_options": {"intra_op_num_threads": 1}}}


def _search(trials: int, classes: int) -> dict[str, object]:
    """The configuration of a search for the fastest model within the accuracy budget."""
    accuracy = {
        "name": "accuracy_score",
        "priority": 2,
        "metric_config": {"task": "multiclass", "num_classes": classes},
        "goal": {"type": "max-degradation", "value": _MAX_DROP},
    }
    latency = {"name": "avg", "priority": 1, "goal": {"type": "percent-min-improvement", "value": 1}}
    metrics = [
        {
            "name": "latency",
            "type": "latency",
            "data_config": "samples",
            "sub_types": [latency],
            "user_config": {"inference_settings": _ONE_THREAD},
        },
        {
            "name": "accuracy",
            "type": "accuracy",
            "data_config": "validation",
            "sub_types": [accuracy],
            "user_config": {"inference_settings": _ONE_THREAD},
        },
    ]
    return {
        "evaluators": {"both": {"type": "OnnxEvaluator", "metrics": metrics}},
        "evaluator": "both",
        "search_strategy": {"execution_order": "joint", "sampler": "tpe", "max_iter": trials, "seed": 0},
    }


def arrays(item: tuple[dict[str, Any], Any]) -> dict[str, Any]:
    """The inputs of a loader's item as NNCF takes them for an ONNX graph."""
    return {name: tensor.numpy() for name, tensor in item[0].items()}


def main(model: str, folder: str, name: str, trials: int) -> None:
    """Runs the pass of that name, calibrated on the samples."""
    import numpy as np
    import onnx
    from olive.data.config import DataComponentConfig, DataConfig
    from olive.data.registry import Registry
    from olive.workflows import run

    validation = dict(np.load(Path(folder) / "validation.npz"))
    labels = validation.pop("label")
    samples = dict(np.load(Path(folder) / "samples.npz"))

    class Samples:
        """A dataset of single samples, as Olive's loader requires."""

        def __init__(self, inputs: dict[str, Any], labels: Any) -> None:
            self.inputs, self.labels = inputs, labels

        def __len__(self) -> int:
            return len(self.labels)

        def __getitem__(self, index: int) -> tuple[dict[str, object], int]:
            return {name: array[index] for name, array in self.inputs.items()}, int(self.labels[index])

    @Registry.register_dataset("benchmark_samples")  # type: ignore[untyped-decorator]
    def benchmark_samples(**_: object) -> Samples:
        return Samples(samples, np.zeros(len(next(iter(samples.values()))), np.int64))

    @Registry.register_dataset("benchmark_validation")  # type: ignore[untyped-decorator]
    def benchmark_validation(**_: object) -> Samples:
        return Samples(validation, labels)

    @Registry.register_post_process("benchmark_choice")  # type: ignore[untyped-decorator]
    def benchmark_choice(output: Any, **_: object) -> Any:
        return output.argmax(1)

    data = [
        DataConfig(
            name=name,
            load_dataset_config=DataComponentConfig(type=f"benchmark_{name}"),
            pre_process_data_config=DataComponentConfig(type="skip_pre_process"),
            post_process_data_config=DataComponentConfig(type="benchmark_choice"),
            dataloader_config=DataComponentConfig(type="default_dataloader", params={"batch_size": batch}),
        ).to_json()
        for name, batch in (("samples", _BATCH if trials else 1), ("validation", _BATCH))
    ]
    pass_ = {"type": name, "data_config": "samples", "disable_search": not trials}
    if name.startswith("OpenVINO"):
        pass_ |= {"user_script": __file__, "transform_fn": arrays.__name__}
    classes = onnx.load(model, load_external_data=False).graph.output[0].type.tensor_type.shape.dim[-1].dim_value
    result = run(
        {
            "input_model": {"type": "ONNXModel", "model_path": model},
            "data_configs": data,
            "passes": {"quantize": pass_},
            "output_dir": f"{folder}/out",
            "cache_dir": f"{folder}/cache",
            "log_severity_level": 3,
            **(_search(trials, classes) if trials else {}),
        }
    )
    shutil.copyfile(result.get_best_candidate().model_path, Path(folder) / "model.onnx")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("folder")
    parser.add_argument("--pass", dest="name", default="OnnxQuantization", help="the pass's name in Olive's catalogue")
    parser.add_argument("--trials", type=int, default=0)
    arguments = parser.parse_args()
    main(arguments.model, arguments.folder, arguments.name, arguments.trials)
