"""The inputs of `predict` as the body of a request."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from mlflow.utils.proto_json_utils import _CustomJsonEncoder

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.serving.scoring.common_forms import FORMS

_TAKEN = "Give a data frame, an array, a list, or arrays by the names of inputs."


def body_of(inputs: Any, params: Mapping[str, Any] | None = None) -> bytes:
    """A data frame, an array, a sparse matrix, a list, arrays by name, or a request as MLflow's clients write it.

    Raises:
        DataInvalid: the inputs are none of these.
    """
    if inputs is None:
        raise DataInvalid("there are no inputs", do=_TAKEN)
    request = _request(inputs)
    try:
        return json.dumps({**request, "params": dict(params)} if params else request, cls=_CustomJsonEncoder).encode()
    except (TypeError, ValueError) as error:
        raise DataInvalid(f"the inputs can't be sent: {error}", do=_TAKEN) from error


def _request(inputs: Any) -> Any:
    if hasattr(inputs, "toarray"):  # a sparse matrix
        inputs = inputs.toarray()
    if hasattr(inputs, "to_frame"):  # a series
        inputs = inputs.to_frame()
    if hasattr(inputs, "columns"):
        return {"dataframe_split": inputs.to_dict(orient="split")}
    if isinstance(inputs, dict) and inputs.keys() & set(FORMS):
        return inputs
    if isinstance(inputs, dict):
        return {"inputs": {name: np.asarray(value).tolist() for name, value in inputs.items()}}
    return {"inputs": inputs.tolist() if isinstance(inputs, np.ndarray) else inputs}
