"""Loads a Python model in its process, and answers for it: `mlflow.pyfunc`.

Process: the model's own process, as `python_host/served.py`.
Python: the model's
Packages: mlflow, numpy, pandas
"""

from typing import Any


class Unservable(ValueError):
    """The model answers something that no tensor can hold."""


def load(settings: dict[str, Any]) -> "Model":
    """The model that the settings name."""
    return Model(settings)


class Model:
    """The loaded model. It is `mlflow.pyfunc` itself, whose answers are right by definition.

    Of the settings, `model` is MLflow's folder, and `outputs` are the names in the signature.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        import mlflow.pyfunc  # noqa: PLC0415 - installed in the model's environment

        self._model = mlflow.pyfunc.load_model(settings["model"])
        self._outputs: list[str] = settings["outputs"]
        schema = self._model.metadata.get_input_schema()
        self._tensors = schema.is_tensor_spec()
        self._named = schema.has_input_names()
        self.names: list[str] = list(schema.input_names()) if self._named else []  # as the author logged them
        self.form: dict[str, Any] = {}  # of the last answer, as `records.scoring.AnswerForm`

    def answer(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The answers of `predict`, as arrays by name, each with one row per sample."""
        answer = self._model.predict(self._asked(inputs))
        arrays = {name: _plain(name, value) for name, value in self._by_name(answer).items()}
        self.form = _form(answer, arrays)
        return arrays

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


def _form(answer: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """How the arrays that are served make up the answer as MLflow's scoring server would write it."""
    if hasattr(answer, "columns") or isinstance(answer, dict):
        kind, names = "records" if hasattr(answer, "columns") else "mapping", {str(name): str(name) for name in answer}
    elif hasattr(answer, "to_frame"):  # a series becomes a frame whose only column is 0 unless it has a name
        kind, names = "records", dict.fromkeys(arrays, "0" if answer.name is None else str(answer.name))
    else:
        kind, names = "array", dict.fromkeys(arrays, "")
    parts = [{"name": name, "tensor": tensor, "rank": arrays[tensor].ndim} for tensor, name in names.items()]
    return {"kind": kind, "parts": parts}


def _plain(name: str, value: Any) -> Any:
    """An array of numbers, or of texts.

    Raises:
        Unservable: it is neither.
    """
    import numpy as np  # noqa: PLC0415 - from the environment

    if value is None:
        raise Unservable(f"predict answered None as {name!r}")
    array = np.asarray(value)
    if array.dtype.kind == "O" and any(item is None for item in array.ravel()):
        raise Unservable(f"predict answered {name!r} with None in it")
    if array.dtype.kind == "O":
        array = np.asarray(array.tolist())
    if array.ndim == 0:
        raise Unservable(f"predict answered a single value as {name!r}, not one row per sample")
    if array.dtype.kind in "US":
        return array.astype(str).astype(object)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise Unservable(f"predict answered {name!r} of type {array.dtype}, which Triton can't carry")
    return array.astype(array.dtype.newbyteorder("="))
