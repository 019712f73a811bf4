"""Turns a folder with a Triton Python model into a version to register, which is released like any Python model.

The folder has `service.py` with a `TritonPythonModel`, `requirements.txt`, `config.pbtxt` with its inputs and outputs,
and the files that `service.py` opens or imports. It may have `example.json`, a batch of inputs by name. MLflow's
`MLmodel` file is written here.
"""

import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.guest import python
from shiplift.runtime.model.tensors import numpy_type
from shiplift.runtime.serving.triton.config import parse
from shiplift.runtime.store.registry.terms import FOLDER

EXAMPLE, _LOGGED_EXAMPLE = "example.json", "input_example.json"  # here, and as MLflow calls it
SERVICE, CONFIG, REQUIREMENTS, SPEC = "service.py", "config.pbtxt", "requirements.txt", "shiplift.yaml"
_MODEL = Path(python.__file__).with_name("service_model.py")
_LOADER = "mlflow.pyfunc.loaders.code_model"
_OURS = ("MLmodel", _MODEL.name, "config.json", _LOGGED_EXAMPLE)
_PLAIN = {"name", "backend", "max_batch_size", "input", "output", "parameters", "instance_group", "dynamic_batching"}


def as_version(name: str, folder: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a version, from those of a service's folder by their paths in it.

    Raises:
        NotAdmitted: a file is missing, or the configuration is not that of a model that answers batches by itself.
    """
    for needed in (SERVICE, CONFIG, REQUIREMENTS):
        if needed not in folder:
            raise NotAdmitted(f"the service {name} has no {needed}", do=f"Add it: {_about(needed)}.")
    for path in _OURS:
        if path in folder:
            raise NotAdmitted(f"the service {name} has a file {path}, which Shiplift writes itself", do="Rename it.")
    config = _config(name, folder[CONFIG])
    text = next((each.name for each in config.input if each.data_type == pb.TYPE_STRING), "")
    if text and EXAMPLE not in folder:
        raise NotAdmitted(
            f"the service {name} takes texts as {text!r}, but gives no examples", do=f"Add some in {EXAMPLE}."
        )
    moved = {SPEC: f"{FOLDER}/{SPEC}", EXAMPLE: _LOGGED_EXAMPLE}
    files = {moved.get(path, path): body for path, body in folder.items() if path != CONFIG}
    return {
        **files,
        "MLmodel": yaml.safe_dump(_mlmodel(config, example=EXAMPLE in folder)).encode(),
        _MODEL.name: _MODEL.read_bytes(),
        "config.json": json.dumps(_as_triton_writes_it(name, config), indent=1).encode(),
    }


def _about(file: str) -> str:
    return {
        SERVICE: "a Triton Python model, a class TritonPythonModel with `execute`",
        CONFIG: "the inputs and outputs, and `max_batch_size`",
        REQUIREMENTS: "the packages with their versions, such as `numpy==2.4.6`",
    }[file]


def _config(name: str, body: bytes) -> pb.ModelConfig:
    try:
        config = parse(body.decode())
    except (UnicodeDecodeError, text_format.ParseError) as error:
        raise NotAdmitted(f"the service {name}: {CONFIG} can't be read: {str(error)[:300]}", do="Fix it.") from error
    problem = _problem(config)
    if problem:
        raise NotAdmitted(f"the service {name}: {CONFIG} {problem}", do="Change it, or make it a step of a pipeline.")
    return config


def _problem(config: pb.ModelConfig) -> str:
    """Why a model can't be released by itself; empty if it can."""
    if odd := {field.name for field, _ in config.ListFields()} - _PLAIN:
        return f"sets {min(odd)}, which services can't have"
    if config.backend not in ("", "python"):
        return f"has the backend {config.backend[:40]!r}, services run in Python"
    if config.max_batch_size < 1:
        return f"has max_batch_size {config.max_batch_size}: a service takes batches, and it must be 1 or more"
    if not (config.input and config.output):
        return "names no inputs or no outputs"
    return next(filter(None, map(_problem_of_tensor, (*config.input, *config.output))), "")


def _problem_of_tensor(tensor: Any) -> str:
    if tensor.HasField("reshape"):
        return f"reshapes {tensor.name!r}, which services can't"
    if _datatype(tensor) is None:
        return f"gives {tensor.name!r} no type that clients can send"
    return f"makes {tensor.name!r} optional, which services can't" if getattr(tensor, "optional", False) else ""


def _datatype(tensor: Any) -> Any:
    """The NumPy type of a tensor; None if NumPy has no such type."""
    name = pb.DataType.Name(tensor.data_type).removeprefix("TYPE_")
    if name == "STRING":
        return np.dtype(object)
    try:
        return np.dtype(numpy_type(name))
    except (KeyError, TypeError):
        return None


def _mlmodel(config: pb.ModelConfig, *, example: bool) -> dict[str, Any]:
    flavor = {
        "loader_module": _LOADER,
        "model_code_path": _MODEL.name,
        "python_version": platform.python_version(),
        "streamable": False,
    }
    logged = {"saved_input_example_info": {"artifact_path": _LOGGED_EXAMPLE, "type": "ndarray", "format": "tf-serving"}}
    return {
        **(logged if example else {}),
        "flavors": {"python_function": flavor},
        "mlflow_version": version("mlflow"),
        "signature": {"inputs": _schema(config.input), "outputs": _schema(config.output)},
    }


def _schema(tensors: Any) -> str:
    return json.dumps(
        [
            {
                "name": each.name,
                "type": "tensor",
                "tensor-spec": {"dtype": _datatype(each).name, "shape": [-1, *map(int, each.dims)]},
            }
            for each in tensors
        ]
    )


def _as_triton_writes_it(name: str, config: pb.ModelConfig) -> dict[str, Any]:
    """The configuration as a Python model reads it: `json.loads(args["model_config"])`."""

    def entries(tensors: Any) -> list[dict[str, Any]]:
        return [
            {"name": each.name, "data_type": pb.DataType.Name(each.data_type), "dims": list(map(int, each.dims))}
            for each in tensors
        ]

    return {
        "name": name,
        "backend": "python",
        "max_batch_size": config.max_batch_size,
        "input": entries(config.input),
        "output": entries(config.output),
        "parameters": {key: {"string_value": value.string_value} for key, value in config.parameters.items()},
    }
