"""A request to production from a file: NPZ or JSON, with arrays by input name."""

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shiplift.pipelines.engines.answers import Prediction
from shiplift.runtime.base.errors import DataInvalid, NotFound, UsageError
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.model.tensors import Arrays, load_npz
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.triton.client import InferenceClient, infer_one_by_one


class InferenceServer(InferenceClient, Protocol):
    """An inference server that describes its models."""

    def signature(self, model: str) -> Signature:
        """A model's tensors."""

    def versions(self, model: str) -> list[int]:
        """The versions of a model that take requests."""


def ask(
    server: InferenceServer, model: str, file: Path, *, version: int | None = None, sequence: bool = False
) -> Prediction:
    """Sends a file's content to a server and returns the answer; with `sequence`, its samples one by one as a sequence.

    Without a `version`, the highest served version answers.

    Raises:
        UsageError: there is no such file.
        NotFound: that version is not served.
        DataInvalid: the file's arrays don't match the model's inputs.
        ServerFailed: Triton refuses the request.
    """
    name = serving_name(model)
    served = sorted(server.versions(name))
    if not served:
        raise NotFound(f"production does not serve {model!r}", do="See `shiplift status`.")
    if version is not None and version not in served:
        raise NotFound(
            f"production does not serve version {version} of {model!r}; it serves {', '.join(map(str, served))}",
            do="Earlier versions are served if `serving.version_policy` asks for them in the promoted version's spec.",
        )
    signature = server.signature(name)
    inputs = matched(request_arrays(file), signature, file)
    if sequence:
        outputs = infer_one_by_one(server, name, signature, inputs, version=version, sequence=True)
    else:
        outputs = server.infer(name, signature, inputs, version=version)
    return Prediction(
        model=model,
        version=version or served[-1],
        outputs={key: np.vectorize(_plain, otypes=[object])(value).tolist() for key, value in outputs.items()},
    )


def request_arrays(file: Path) -> Arrays:
    """The arrays of a file by input name; JSON without names gives a single array under an empty name."""
    if not file.is_file():
        raise UsageError(f"there is no file {file}", do="Name an NPZ or JSON file.")
    if file.suffix == ".npz":
        return dict(load_npz(file))
    try:
        content = json.loads(file.read_text())
        named = content if isinstance(content, dict) else {"": content}
        return {name: np.array(value) for name, value in named.items()}
    except (ValueError, RecursionError) as error:
        raise DataInvalid(
            f"{file.name} is neither NPZ nor JSON of arrays: {error}", do="See `shiplift infer --help`."
        ) from error


def matched(arrays: Arrays, signature: Signature, file: Path) -> Arrays:
    """The arrays for a model's inputs. A single array goes to the only required input, whatever its name."""
    names = [spec.name for spec in signature.inputs]
    needed = [spec.name for spec in signature.inputs if not spec.optional]
    if len(needed) == 1 and len(arrays) == 1:
        return {needed[0]: next(iter(arrays.values()))}
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise DataInvalid(
            f"{file.name} has no {', '.join(missing)}; the model's inputs are {', '.join(names)}",
            do="Name each array after the input it is for.",
        )
    return {name: arrays[name] for name in names if name in arrays}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.item() if isinstance(value, np.generic) else value
