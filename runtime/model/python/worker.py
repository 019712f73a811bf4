"""The process in which a Python model's code runs: confines itself, loads the model, and answers its host.

    ENVIRONMENT/bin/python -I -B python_host/worker.py SETTINGS-JSON

It runs in the model's environment, so it imports nothing of Shiplift but what `guard` brings along: the confinement.
The settings are `model` (MLflow's folder), `outputs` (the signature's names), `read` (what the process may read),
`memory_mb`, and `allow_without` (mechanisms whose absence the site accepts). What the model prints goes to standard
error; the host has the pipes.
"""

import json
import os
import resource
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_HERE = Path(sys.argv[0]).parent
_HEADROOM_MB, _ADDRESSES_MB = 1024, 8192  # of libraries: private pages, and addresses that are only reserved
_NOT_CONFINED = 50


def main(settings: dict[str, Any]) -> None:
    """Answers requests until the host closes its pipe."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _confine(settings)
    sys.path.insert(0, str(_HERE))
    wire = import_module("wire")  # it needs NumPy, which comes from the model's environment
    sys.path.remove(str(_HERE))
    model = None
    while True:
        try:
            if model is None:
                model = _Model(settings)
                message = wire.pack()
            else:
                reader = wire.Reader()
                if not _read(reader, requests):
                    return
                message = wire.pack(model.answer(reader.message()[1]))
        except Exception as error:  # whatever the model raises
            message = wire.pack(error=f"{type(error).__name__}: {' '.join(str(error).split())[:1500]}")
        answers.write(message)
        answers.flush()
        if model is None:
            return


def _read(reader: Any, requests: Any) -> bool:
    while reader.missing:
        data = requests.read(min(reader.missing, 1 << 20))
        if not data:
            return False
        reader.take(data)
    return True


def _confine(settings: dict[str, Any]) -> None:
    """Gives up what the model needs not, for good; ends the process if the kernel refuses, unless that is accepted."""
    sys.path.insert(0, str(_HERE / "guard"))
    from shiplift.runtime.confinement import kernel, landlock, seccomp  # noqa: PLC0415 - only this process needs it
    from shiplift.runtime.confinement.policy import PYTHON_MODEL  # noqa: PLC0415

    kernel.die_with_parent()
    memory = settings["memory_mb"] + _HEADROOM_MB
    for limit, value in (
        (resource.RLIMIT_DATA, memory << 20),
        (resource.RLIMIT_AS, (memory + _ADDRESSES_MB) << 20),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, PYTHON_MODEL.open_files),
    ):
        hard = resource.getrlimit(limit)[1]
        lower = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (lower, lower))
    policy = PYTHON_MODEL.opening(read=tuple(settings["read"]))
    for name, restrict in (
        ("landlock", lambda: landlock.restrict(policy, own_proc=False)),
        ("seccomp", lambda: seccomp.restrict(policy, own_pids=False)),
    ):
        try:
            restrict()
        except OSError as error:
            if name not in settings["allow_without"]:
                print(f"the model's process can't be confined: {name}: {error}", file=sys.stderr, flush=True)
                os._exit(_NOT_CONFINED)
    sys.path.remove(str(_HERE / "guard"))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("shiplift", "landlockpy", "seccompy")]:
        del sys.modules[name]


class _Model:
    """The loaded model: `mlflow.pyfunc` itself, so that its answers are those by definition."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import mlflow.pyfunc  # noqa: PLC0415 - in the model's environment

        self._model = mlflow.pyfunc.load_model(settings["model"])
        self._outputs: list[str] = settings["outputs"]
        schema = self._model.metadata.get_input_schema()
        self._tensors = schema.is_tensor_spec()
        self._named = schema.has_input_names()

    def answer(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """What `predict` answers, as arrays by name, each with one row per sample."""
        named = self._by_name(self._model.predict(self._asked(inputs)))
        return {name: _plain(name, value) for name, value in named.items()}

    def _asked(self, inputs: dict[str, Any]) -> Any:
        if self._tensors:
            return inputs if self._named else next(iter(inputs.values()))
        import pandas as pd  # noqa: PLC0415 - only for data frames

        return pd.DataFrame({name: array.reshape(-1) for name, array in inputs.items()})

    def _by_name(self, answer: Any) -> dict[str, Any]:
        if hasattr(answer, "columns") and hasattr(answer, "to_numpy"):
            answer = {str(name): answer[name].to_numpy() for name in answer.columns}
        if isinstance(answer, dict):
            if self._outputs and set(self._outputs) != set(answer):
                raise ValueError(
                    f"predict answered {', '.join(map(str, answer))}, the signature says {', '.join(self._outputs)}"
                )
            return {str(name): answer[name] for name in self._outputs or answer}
        if len(self._outputs) > 1:
            raise ValueError(f"predict answered one array, the signature says {', '.join(self._outputs)}")
        return {self._outputs[0] if self._outputs else "output": answer}


def _plain(name: str, value: Any) -> Any:
    """An array of numbers, or of texts."""
    import numpy as np  # noqa: PLC0415 - the environment's

    array = np.asarray(value)
    if array.dtype.kind == "O":
        array = np.asarray(array.tolist())
    if array.ndim == 0:
        raise ValueError(f"predict answered a single value as {name!r}, not one row per sample")
    if array.dtype.kind in "US":
        return array.astype(str).astype(object)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise ValueError(f"predict answered {name!r} of type {array.dtype}, which Triton can't carry")
    return array.astype(array.dtype.newbyteorder("="))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
