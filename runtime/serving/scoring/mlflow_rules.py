"""MLflow's own reading of requests: for whatever is not in a common form, and for the words of a refusal.

It is imported with the first such request: 0.1 GB, and a second. It reads data alone, and runs no code of a model.
"""

import contextlib
import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.guest.python.values import as_json, is_missing, texts
from shiplift.runtime.model.tables import read_parquet
from shiplift.runtime.model.tensors import Arrays, DataLimits
from shiplift.runtime.serving.scoring.common_forms import NotCommonError, is_unwrapped, served
from shiplift.runtime.serving.scoring.culprits import named, require_even
from shiplift.runtime.serving.scoring.problems import ScoringProblem
from shiplift.runtime.serving.scoring.schema import Field, InputSchema

_HINTED = {"long": (int, bool), "double": (float, int), "boolean": (bool,)}  # what JSON may have for a type hint
_TABLES = DataLimits(unpacked_bytes=512 << 20, samples=1_000_000)


def read_json(body: Mapping[str, Any], schema: InputSchema) -> tuple[Arrays, str]:
    """The served tensors of a decoded body, and its parameters as JSON; empty: those that were logged.

    Raises:
        ScoringProblem: MLflow would refuse it, or production can't serve it.
    """
    from mlflow.pyfunc import scoring_server  # noqa: PLC0415 - see above

    with _Refusals(body, schema):
        if is_unwrapped(body):
            return _unwrapped(body, schema)
        if not schema.hinted:
            require_even(body)
        data, params = scoring_server._split_data_and_params(dict(body))
        given = _params(params, schema)
        if schema.hinted:
            return _hinted(data, schema), given
        return _enforced(scoring_server.infer_and_parse_data(data, _schema(schema)), schema), given


def read_csv(body: bytes, schema: InputSchema) -> Arrays:
    """The served tensors of a table in CSV.

    Raises:
        ScoringProblem: as above.
    """
    from mlflow.pyfunc import scoring_server  # noqa: PLC0415

    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ScoringProblem(400, f"Ensure that input is a valid UTF-8 encoded string. Error: '{error!r}'") from error
    with _Refusals():
        return _enforced(scoring_server.parse_csv_input(io.StringIO(text), _schema(schema)), schema)


def read_table(body: bytes, schema: InputSchema) -> Arrays:
    """The served tensors of a table in Parquet.

    Raises:
        ScoringProblem: as above, or it is far larger than its file.
    """
    import pandas as pd  # noqa: PLC0415

    try:
        frame = pd.DataFrame(read_parquet(body, "the table", _TABLES))
    except (DataInvalid, OSError, ValueError) as error:
        raise ScoringProblem(400, f"Failed to parse input as a Pandas DataFrame: {error}") from error
    return read_frame(frame, schema)


def read_frame(frame: Any, schema: InputSchema) -> Arrays:
    """The served tensors of a data frame.

    Raises:
        ScoringProblem: MLflow would refuse it, or production can't serve it.
    """
    with _Refusals():
        return _enforced(frame, schema)


class _Refusals:
    """Turns MLflow's errors, and those of the libraries below it, into ours, which name the value to blame."""

    def __init__(self, body: Mapping[str, Any] | None = None, schema: InputSchema | None = None) -> None:
        self._body, self._schema = body, schema

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or not isinstance(error, Exception) or isinstance(error, ScoringProblem):
            return
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        said = str(error.message) if isinstance(error, MlflowException) else f"{type(error).__name__}: {error}"
        if self._body is not None and self._schema is not None:
            said = named(said, self._body, self._schema)
        if isinstance(error, MlflowException):
            raise ScoringProblem(error.get_http_status_code(), said, code=str(error.error_code)) from error
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else said
        raise ScoringProblem(400, f"Invalid input. {reason}") from error


def _schema(schema: InputSchema) -> Any:
    from mlflow.types import Schema  # noqa: PLC0415

    return Schema.from_json(schema.inputs)


def _params(params: Any, schema: InputSchema) -> str:
    """The parameters to send, as JSON: those that the model takes, if one is not as logged. MLflow checks them.

    Raises:
        MlflowException: one has another type than the logged one.
        ScoringProblem: the model is served as a graph, which was made with the logged parameters.
    """
    from mlflow.models.utils import _enforce_params_schema  # noqa: PLC0415
    from mlflow.types import ParamSchema  # noqa: PLC0415

    if not params:
        return ""
    logged = ParamSchema.from_json(schema.params) if schema.params else None
    given = _enforce_params_schema(params, logged)
    defaults = {param.name: param.default for param in logged.params} if logged else {}
    others = [name for name, value in (given or {}).items() if value != defaults.get(name)]
    if not others or schema.params_use == "ignored":
        return ""
    if schema.params_use == "passed":
        return json.dumps({name: value for name, value in params.items() if name in given})
    raise ScoringProblem(
        400,
        f"parameter {others[0]!r} is {given[others[0]]!r}: production serves the model as a graph, which was made with "
        f"the logged default, {defaults.get(others[0])!r}. Leave it out, or log a version with the default that you "
        "want",
    )


def _unwrapped(body: Mapping[str, Any], schema: InputSchema) -> tuple[Arrays, str]:
    """The same of a body that is itself what `predict` gets, with its parameters beside."""
    from mlflow.pyfunc import scoring_server  # noqa: PLC0415
    from mlflow.types import ParamSchema  # noqa: PLC0415

    if schema.hinted:
        raise ScoringProblem(
            400, f"Expected a list as 'inputs', as the type hint says. Found keys in payload: {list(body)}"
        )
    logged = ParamSchema.from_json(schema.params) if schema.params else None
    data, params = scoring_server._split_data_and_params_for_llm_input(dict(body), logged)
    return _enforced(data, schema), _params(params, schema)


def _hinted(data: Mapping[str, Any], schema: InputSchema) -> Arrays:
    """The tensor of a model whose `predict` has type hints: MLflow hands it the list in `inputs` as it is.

    Raises:
        ScoringProblem: there is no such list, or an item is of another type.
    """
    field = schema.fields[0]
    items = data.get("inputs")
    if items == []:
        raise ScoringProblem(400, "Invalid input. The list in 'inputs' is empty: send at least one item")
    if not isinstance(items, list):
        raise ScoringProblem(
            400,
            "Request payload must be a dictionary with a list as 'inputs' when the model contains a valid type hint. "
            f"Found keys in payload: {list(data)}.",
        )
    if field.spec.datatype == "BYTES":
        return {field.spec.name: _fitted(_texts(items, field), field)}
    for row, item in enumerate(items):  # NumPy would cut 1.5 to 1, and take any text for true
        if type(item) not in _HINTED[field.kind]:
            raise ScoringProblem(
                400, f"input {field.label} has the value {item!r} in row {row}, which is no {field.kind}"
            )
    return {field.spec.name: _fitted(np.asarray(items), field)}


def _enforced(data: Any, schema: InputSchema) -> Arrays:
    """The tensors, after MLflow's check of the data against the logged signature."""
    from mlflow.exceptions import MlflowException  # noqa: PLC0415
    from mlflow.models.utils import _enforce_schema  # noqa: PLC0415

    try:
        data = _enforce_schema(data, _schema(schema))
    except Exception as error:
        message = f"Failed to enforce schema of data with schema '{_schema(schema)}'. Error: {error}"
        raise MlflowException.invalid_parameter_value(message) from error
    if hasattr(data, "columns"):
        return _frame(data, schema)
    named = data if isinstance(data, dict) else {schema.fields[0].name: data}
    arrays = {field.spec.name: _fitted(np.asarray(named[field.name]), field) for field in schema.fields}
    if len(set(map(len, arrays.values()))) > 1:
        rows = ", ".join(f"{name!r} has {len(array)}" for name, array in arrays.items())
        raise ScoringProblem(400, f"the inputs have different numbers of rows: {rows}")
    return arrays


def _frame(frame: Any, schema: InputSchema) -> Arrays:
    if not len(frame):
        raise ScoringProblem(400, "the data frame has no rows")
    arrays: Arrays = {}
    for at, field in enumerate(schema.fields):
        if schema.named and field.name not in frame:
            if not field.spec.optional:
                raise ScoringProblem(400, f"column {field.label} is missing, and production needs it")
            continue
        column = frame[field.name] if schema.named else frame.iloc[:, at]
        arrays[field.spec.name] = _fitted(_values(column, field), field)
    return arrays


def _values(column: Any, field: Field) -> NDArray[Any]:
    """A column's values, (rows,) or with the axes of arrays, as numbers, booleans or texts.

    Raises:
        ScoringProblem: one is missing where no tensor can say so.
    """
    values = column.to_numpy()
    if values.dtype.kind == "M" and field.spec.datatype == "INT64":
        return np.asarray(values.astype("datetime64[ns]").astype(np.int64))
    if field.spec.datatype.startswith("FP"):
        return np.asarray(values, np.float64) if values.dtype.kind == "O" and _scalars(values) else _stacked(values)
    if field.spec.datatype == "BYTES":
        return _texts(column, field)
    if (missing := column.isna().to_numpy()).any():
        row = int(missing.argmax())
        raise ScoringProblem(400, f"column {field.label} has the missing value {column.iloc[row]!r} in row {row}")
    return _stacked(values)


def _texts(column: Any, field: Field) -> NDArray[Any]:
    """A column's values as the texts that hold them, (rows,): dates, bytes and lists, too, and what is missing."""
    items = [
        item.decode(errors="replace") if isinstance(item, bytes) and field.kind == "string" else item for item in column
    ]
    for row, item in enumerate(items):
        if field.kind == "string" and not isinstance(item, str) and not is_missing(item):
            raise ScoringProblem(
                400, f"column {field.label} has the value {item!r} in row {row}, which is not a string"
            )
    return np.asarray(texts(items, field.kind, _within_json), object)


def _within_json(value: Any) -> Any:
    """What JSON has in place of a value that it lacks; the model's MLflow makes bytes within lists of such a text."""
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    return as_json(value)


def _scalars(values: NDArray[Any]) -> bool:
    return not any(isinstance(item, list | np.ndarray) for item in values.tolist())


def _stacked(values: NDArray[Any]) -> NDArray[Any]:
    return np.array(values.tolist()) if values.dtype.kind == "O" else values


def _fitted(array: NDArray[Any], field: Field) -> NDArray[Any]:
    try:
        return served(array, field)
    except (NotCommonError, TypeError, ValueError) as error:
        wrong = f"has the shape {array.shape}, the model takes {field.spec.shape}"
        raise ScoringProblem(400, f"input {field.label} {str(error) or wrong}") from error
