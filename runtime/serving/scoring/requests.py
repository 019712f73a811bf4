"""A request's body as tensors and parameters, by its content type."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.serving.scoring import mlflow_rules
from shiplift.runtime.serving.scoring.common_forms import FORMS, is_unwrapped, read_common
from shiplift.runtime.serving.scoring.problems import ScoringProblem
from shiplift.runtime.serving.scoring.schema import InputSchema

JSON, CSV, PARQUET = "application/json", "text/csv", "application/vnd.apache.parquet"
DEEPEST = 64  # NumPy has no more axes
_FIELDS = "The input must be a JSON dictionary with exactly one of the input fields " + str(set(FORMS))


@dataclass(frozen=True, kw_only=True)
class ScoringRequest:
    """What a request asks: the served tensors, and parameters as JSON (empty: those that were logged).

    `wrapped`: it came in one of the forms whose answers have the key `predictions`.
    """

    inputs: Arrays
    params: str = ""
    wrapped: bool = True


def media_type(content_type: str) -> str:
    """The type of a body.

    Raises:
        ScoringProblem: it is none that MLflow reads, or is not in UTF-8.
    """
    kind, *parameters = [part.strip() for part in content_type.split(";")]
    values = {name: value for name, _, value in (each.partition("=") for each in parameters)}
    if values.get("charset", "utf-8").lower() != "utf-8":
        raise ScoringProblem(415, "The scoring server only supports UTF-8", plain=True)
    if others := sorted(values.keys() - {"charset"}):
        raise ScoringProblem(415, f"Unrecognized content type parameters: {', '.join(others)}.", plain=True)
    if kind not in (JSON, CSV, PARQUET):
        known = [CSV, JSON, PARQUET]
        message = f"This predictor only supports the following content types: Types: {known}. Got '{content_type}'."
        raise ScoringProblem(415, message, plain=True)
    return kind


def decoded(body: bytes) -> dict[str, Any]:
    """A JSON body.

    Raises:
        ScoringProblem: it is not a JSON dictionary, or is nested too deeply.
    """
    try:
        value = json.loads(body)
    except RecursionError as error:
        raise ScoringProblem(400, f"Invalid input. It is nested more than {DEEPEST} levels deep") from error
    except ValueError as error:
        message = f"Invalid input. Ensure that input is a valid JSON formatted string. Error: '{error!r}'"
        raise ScoringProblem(400, message) from error
    if isinstance(value, dict):
        return value
    what = "Received a list" if isinstance(value, list) else f"Received unexpected input type '{type(value)}"
    raise ScoringProblem(400, f"Invalid input. {_FIELDS}. {what}.")


def read_other(kind: str, body: bytes, schema: InputSchema) -> ScoringRequest:
    """What a body of that media type asks, whatever its form. It may take seconds.

    Raises:
        ScoringProblem: the request is wrong.
    """
    if kind == CSV:
        return ScoringRequest(inputs=mlflow_rules.read_csv(body, schema))
    if kind == PARQUET:
        return ScoringRequest(inputs=mlflow_rules.read_table(body, schema))
    value = decoded(body)
    common = read_common(value, schema)
    if common is not None:
        return ScoringRequest(inputs=common)
    require_shallow(value)
    inputs, params = mlflow_rules.read_json(value, schema)
    return ScoringRequest(inputs=inputs, params=params, wrapped=not is_unwrapped(value))


def read_at_once(kind: str, body: bytes, schema: InputSchema) -> ScoringRequest | None:
    """What a small body in a common form asks; None: `read_other` reads it.

    Raises:
        ScoringProblem: it is not a JSON dictionary.
    """
    inputs = read_common(decoded(body), schema) if kind == JSON else None
    return ScoringRequest(inputs=inputs) if inputs else None


def require_shallow(value: Mapping[str, Any]) -> None:
    """Checks how deep a value is nested, level by level.

    Raises:
        ScoringProblem: deeper than any tensor.
    """
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return
    raise ScoringProblem(400, f"Invalid input. It is nested more than {DEEPEST} levels deep")
