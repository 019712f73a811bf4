"""A logged model's contract: MLflow's `MLmodel` file, signature and input example, as our own records.

It reads only YAML and JSON and, for ONNX, the graph's own inputs and outputs. All of these are their author's, so it
runs in the sandbox.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base import strict_yaml
from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.base.files import read_regular
from shiplift.runtime.guest.python.agents import REQUEST, RESPONSE, steady
from shiplift.runtime.guest.python.values import texts
from shiplift.runtime.model import graph_contract
from shiplift.runtime.model.logged_signature import scoring_of
from shiplift.runtime.model.python.requirements import check_python, python_of, requirements_of
from shiplift.runtime.model.tensors import Arrays, as_input, datatype, fits, numpy_type
from shiplift.runtime.model.text.tasks import GENERATION, TEXT_FLAVORS, task_of, texts_of, wraps_openai
from shiplift.runtime.records.model import ADOPTED, PIPELINE, PYTHON, Flavor
from shiplift.runtime.records.scoring import Scoring
from shiplift.runtime.records.tensor import FLOATS, Datatype, Signature, TensorSpec

FLAVORS: tuple[Flavor, ...] = get_args(Flavor)
MODELS = tuple(flavor for flavor in FLAVORS if flavor not in (ADOPTED, PIPELINE))
METADATA = "MLmodel"
MAX_METADATA_BYTES, MAX_EXAMPLE_BYTES = 1 << 20, 256 << 20
_COLUMN_TYPES: Mapping[str, Datatype] = {
    "boolean": "BOOL",
    "integer": "INT32",
    "long": "INT64",
    "float": "FP32",
    "double": "FP64",
}  # whatever else a column holds travels as text (`guest/python/values.py`)
_ADVICE = (
    "Log it with `mlflow.{flavor}.log_model({arguments})`, where `x` are some rows as the model takes them, and "
    "register that."
)
_ARGUMENTS = "model, name='model', signature=infer_signature(x, model.predict(x)), input_example=x"
_OWN_ARGUMENTS: Mapping[str, str] = {  # of `log_model`, where a flavor's are others
    "pytorch": (
        "model, name='model', signature=infer_signature(x.numpy(), model(x).detach().numpy()), input_example=x.numpy()"
    ),
    "pyfunc": (
        "name='model', python_model=model, signature=infer_signature(x, model.predict(None, x)), input_example=x"
    ),
    **dict.fromkeys(("onnx", *TEXT_FLAVORS), "model, name='model', input_example=x"),  # they need no signature
}
_LOG_AGAIN = (
    "Log the model again with the `log_model(...)` of its library, which writes the file, and leave the file as it is."
)
_RENAMED = "Rename the columns before you train and log the model: `x.columns = {}`."
_CARRIED = {  # by NumPy's kind of type
    "c": "Take both parts as real numbers: `x = np.stack([x.real, x.imag], axis=-1)`, then train and log the model "
    "again.",
    "M": "Take times as numbers: `x = x.astype('int64')`, then train and log the model again.",
    "m": "Take durations as numbers: `x = x.astype('int64')`, then train and log the model again.",
    "f": "Use numbers of 64 bits at most, booleans or strings: `x = x.astype('float64')`, then log the model again.",
}

_NOT_INFERRED = (
    ", though it has an input example: MLflow makes one with the model's answer to the example, which failed, as "
    "`log_model` warned"
)
_OPENAI = (
    "The model was logged with OpenAI's API as its interface. Triton serves it like every text generator, and "
    "`shiplift openai` serves that API. Its example was not run."
)
_WHOLE = (
    "The graph takes one sample at a time, since these have no axis of samples: {}. Log an example of one sample, or "
    "give them such an axis in front."
)
_AGENT = (
    "A chat model or an agent answers one request at a time, whole: nothing is streamed. Its answers are compared "
    "without times and ids."
)


@dataclass(frozen=True, kw_only=True)
class LoggedModel:
    """An MLflow model's flavor, signature and input example; None for what it lacks.

    `tabular`: the inputs are columns of a data frame. `states` maps each input that takes a state to the output with
    its next value. `requirements` are the packages that a Python model needs. `task` is that of a Hugging Face model.
    `scoring` is the signature as MLflow's own clients know it. `notes` are for the report.
    """

    flavor: Flavor
    signature: Signature
    example: Arrays | None
    tabular: bool = False
    states: dict[str, str] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    task: str = ""
    scoring: Scoring | None = None
    notes: tuple[str, ...] = ()


def read_model(
    folder: Path,
    examples: Path | None = None,
    states: Mapping[str, str] | None = None,
    *,
    python: bool = False,
    as_python: bool = False,
) -> LoggedModel:
    """The contract of the MLflow model in `folder`. `examples` is where its input example is, if elsewhere.

    `states` are the states that the spec names; None: look for them in ONNX graphs. `python`: Python models are
    admitted. `as_python`: it is one, whatever other flavors it has.

    Raises:
        NotAdmitted: there is no `MLmodel` file, no known flavor, no signature, or an unusable input example; or it is a
            Python model that can't be admitted.
    """
    meta = metadata(folder)
    with _readable("the MLmodel file can't be read", _LOG_AGAIN):
        flavor = PYTHON if as_python else _flavor(meta)
        requirements = _requirements(folder, meta, python=python) if flavor == PYTHON else ()
    advice = _advice(flavor)
    graph = _graph(folder, meta, states) if flavor == "onnx" else None
    advice = _WHOLE.format(", ".join(sorted(graph.whole))) if graph and graph.whole else advice
    if flavor in TEXT_FLAVORS:
        logged = _of_text(meta, flavor)
    else:
        logged = _of_graph(graph) if graph else _of_signature(meta, flavor, advice)
    with _readable("the input example does not match the signature", advice):
        logged = replace(logged, scoring=scoring_of(meta, flavor))
        logged = _of_agent(logged) if _is_agent(logged) else logged
        example = _example(examples or folder, meta, logged, graph, advice)
    return replace(_without_unknown(logged, example), example=example, requirements=requirements)


def _advice(flavor: str) -> str:
    """How to log a model of a flavor with a signature and an example."""
    called = "pyfunc" if flavor == PYTHON else flavor
    return _ADVICE.format(flavor=called, arguments=_OWN_ARGUMENTS.get(called, _ARGUMENTS))


def _without_unknown(logged: LoggedModel, example: Arrays | None) -> LoggedModel:
    """The contract without the optional columns that the example lacks: nobody showed what they hold."""
    if example is None or not (lacking := [spec.name for spec in logged.signature.inputs if spec.name not in example]):
        return logged
    inputs = tuple(spec for spec in logged.signature.inputs if spec.name in example)
    note = f"Optional columns are not served, since the input example has none: {', '.join(lacking)}."
    return replace(logged, signature=logged.signature.model_copy(update={"inputs": inputs}), notes=(note,))


def _requirements(folder: Path, meta: dict[str, Any], *, python: bool) -> tuple[str, ...]:
    """The requirements of a Python model, if it may be admitted."""
    if not python:
        raise NotAdmitted(
            "the version is a Python model, which is its author's code, and the spec says `python: refuse`",
            do="Log the model itself (pt2, skops, ONNX), or accept its code in the sandbox: "
            "`admission: {python: sandbox}` in the spec, if the site's policy allows it.",
        )
    check_python(python_of(folder, meta))
    return requirements_of(folder, meta)


def _graph(folder: Path, meta: dict[str, Any], states: Mapping[str, str] | None) -> graph_contract.GraphContract | None:
    """The graph's contract; None if it can't be read, which the scan will explain better."""
    file = folder / str(meta["flavors"]["onnx"].get("data", "model.onnx"))
    return graph_contract.read(file, states) if file.resolve().is_relative_to(folder.resolve()) else None


def _of_graph(graph: graph_contract.GraphContract) -> LoggedModel:
    return LoggedModel(
        flavor="onnx", signature=graph.signature, example=None, states=dict(graph.states), notes=graph.notes
    )


def _of_text(meta: dict[str, Any], flavor: Flavor) -> LoggedModel:
    """The texts that the task names, or one, whatever the signature calls it; the outputs depend only on the task."""
    with _readable("the MLmodel file can't be read", _LOG_AGAIN):
        task = task_of(meta, flavor)
        if task == GENERATION and wraps_openai(meta, flavor):
            prompt = Signature(inputs=(TensorSpec(name="prompt", datatype="BYTES", shape=(-1, 1)),), outputs=())
            return LoggedModel(flavor=flavor, signature=prompt, example=None, task=task, notes=(_OPENAI,))
        inputs, _ = _specs((meta.get("signature") or {}).get("inputs"), "input")
    names = texts_of(task) or tuple(spec.name for spec in inputs[:1]) or ("input",)
    if len(inputs) > len(names) or any(spec.datatype != "BYTES" for spec in inputs):
        raise NotAdmitted(
            f"the signature has the inputs {', '.join(f'{spec.name} ({spec.datatype})' for spec in inputs)}; a model "
            f"for {task} takes {'two texts' if len(names) > 1 else 'one text'} per sample",
            do="Log it without a signature, `log_model(..., signature=None)`: MLflow writes the right one.",
        )
    texts = tuple(TensorSpec(name=name, datatype="BYTES", shape=(-1, 1)) for name in names)
    signature = Signature(inputs=texts, outputs=())
    return LoggedModel(flavor=flavor, signature=signature, example=None, task=task)


def _of_signature(meta: dict[str, Any], flavor: Flavor, advice: str) -> LoggedModel:
    if not meta.get("signature"):
        failed = _NOT_INFERRED if meta.get("saved_input_example_info") else ""
        raise NotAdmitted(f"the version has no signature{failed}", do=advice)
    with _readable("the version's signature can't be read", advice):
        inputs, tabular = _specs(meta["signature"].get("inputs"), "input")
        outputs, _ = _specs(meta["signature"].get("outputs"), "output")
    if not inputs or not (outputs or flavor == PYTHON):  # a Python model's answers show its outputs
        raise NotAdmitted("the version's signature does not name both inputs and outputs", do=advice)
    for spec in inputs:
        _check_batch(spec, advice, tabular=tabular)
    return LoggedModel(
        flavor=flavor, signature=Signature(inputs=inputs, outputs=outputs), example=None, tabular=tabular
    )


def _is_agent(logged: LoggedModel) -> bool:
    return logged.scoring is not None and logged.scoring.agent


def _of_agent(logged: LoggedModel) -> LoggedModel:
    """A chat model or an agent: a request and a response, whatever the fields that MLflow's signature lists."""
    request, response = (TensorSpec(name=name, datatype="BYTES", shape=(-1, 1)) for name in (REQUEST, RESPONSE))
    return replace(
        logged,
        signature=Signature(inputs=(request,), outputs=(response,)),
        tabular=False,
        notes=(*logged.notes, _AGENT),
    )


@contextmanager
def _readable(problem: str, do: str) -> Iterator[None]:
    """Turns any error of a malformed file into `NotAdmitted`: its author wrote the file, so it is not a bug of ours."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise NotAdmitted(f"{problem}: {' '.join(repr(error).split())[:300]}", do=do) from error


def metadata(folder: Path) -> dict[str, Any]:
    """The `MLmodel` file of the model in `folder`.

    Raises:
        NotAdmitted: there is no such file, it is too large, or it is not a plain YAML mapping.
    """
    file = folder / METADATA
    if not file.is_file():
        raise NotAdmitted("the version is not an MLflow model: it has no MLmodel file", do=_advice("pytorch"))
    try:
        meta = strict_yaml.load(read_regular(file, MAX_METADATA_BYTES).decode(), MAX_METADATA_BYTES)
    except strict_yaml.NotStrict as error:
        raise NotAdmitted(f"the MLmodel file can't be read: it {error}", do=_LOG_AGAIN) from error
    except ValueError as error:  # not regular, not UTF-8
        raise NotAdmitted(f"the MLmodel file can't be read: {error}", do=_LOG_AGAIN) from error
    if not isinstance(meta, dict):
        raise NotAdmitted("the MLmodel file is not a mapping", do=_LOG_AGAIN)
    return meta


def has_flavor(folder: Path, flavor: str) -> bool:
    """Whether the model that was logged in a folder has a flavor.

    Raises:
        NotAdmitted: its `MLmodel` file is missing, or can't be read.
    """
    flavors = metadata(folder).get("flavors")
    return isinstance(flavors, dict) and flavor in flavors


def likely_flavor(folder: Path) -> str:
    """Guesses the flavor from the text of `MLmodel`, without parsing it, so it is safe anywhere; empty if unclear.

    Use it only where a mistake does no harm, for example to choose the libraries to import ahead of time.
    """
    try:
        text = read_regular(folder / METADATA, MAX_METADATA_BYTES)
    except (OSError, ValueError):
        return ""
    return next((flavor for flavor in FLAVORS if re.search(rb"^  %b:" % flavor.encode(), text, re.MULTILINE)), "")


def _flavor(meta: dict[str, Any]) -> Flavor:
    logged = set(meta.get("flavors") or {})
    for flavor in FLAVORS:
        if flavor in logged:
            return flavor
    raise NotAdmitted(
        f"the version's flavors are {', '.join(sorted(logged)) or 'none'}; known ones are {', '.join(MODELS)}",
        do="Log the model with one of these flavors. Or let Python code of yours call it: "
        "`mlflow.pyfunc.log_model(name='model', python_model=model, input_example=x)`, with a `PythonModel` as `model` "
        "and `admission: {python: sandbox}` in the spec.",
    )


def _specs(text: str | None, kind: str) -> tuple[tuple[TensorSpec, ...], bool]:
    """Tensor specs from a signature's JSON, and whether they are columns of a data frame."""
    entries = json.loads(text) if text else []
    tabular = any(entry.get("type") != "tensor" for entry in entries)
    specs = tuple(_spec(entry, name, kind) for entry, name in zip(entries, _names(entries, kind), strict=True))
    counted = Counter(spec.name for spec in specs)
    if twice := next((name for name, count in counted.items() if count > 1), ""):
        raise NotAdmitted(
            f"two {kind}s are called {twice!r}", do=_RENAMED.format(_distinct([spec.name for spec in specs]))
        )
    return specs, tabular


def _distinct(names: list[str]) -> list[str]:
    """The names, with a number after each that another one has, too, and after each empty one."""
    counted, distinct = Counter[str](), list[str]()
    for name in names:
        counted[name] += 1
        distinct.append(f"{name or 'column'}_{counted[name]}" if names.count(name) > 1 or not name else name)
    return distinct


def _names(entries: list[dict[str, Any]], kind: str) -> list[str]:
    """The names of a signature's entries, as the author logged them; those without one are numbered."""
    if any(entry.get("name") == "" for entry in entries):
        names = ["" if entry.get("name") is None else str(entry["name"]) for entry in entries]
        raise NotAdmitted(f"an {kind} has an empty name", do=_RENAMED.format(_distinct(names)))
    unnamed = kind if len(entries) == 1 else f"{kind}_{{}}"
    given = ("" if entry.get("name") is None else str(entry["name"]) for entry in entries)
    return [name or unnamed.format(at) for at, name in enumerate(given)]


def _spec(entry: dict[str, Any], name: str, kind: str) -> TensorSpec:
    if entry.get("type") != "tensor":
        optional = kind == "input" and not entry.get("required", True)
        return TensorSpec(name=name, datatype=_column_type(entry, optional), shape=(-1, 1), optional=optional)
    tensor_type = datatype(np.dtype(entry["tensor-spec"]["dtype"]))
    if tensor_type is None:
        raise NotAdmitted(
            f"{kind} {name!r} has type 'tensor' {entry['tensor-spec']['dtype']}, which Triton can't carry",
            do=_CARRIED.get(np.dtype(entry["tensor-spec"]["dtype"]).kind, _CARRIED["f"]),
        )
    return TensorSpec(name=name, datatype=tensor_type, shape=tuple(entry["tensor-spec"]["shape"]))


def _column_type(entry: dict[str, Any], optional: bool) -> Datatype:
    """The type of a column's tensor; a boolean that may be missing is 1, 0 or NaN."""
    known = _COLUMN_TYPES.get(str(entry.get("type")), "BYTES")
    return "FP32" if known == "BOOL" and optional else known


def _example(
    folder: Path, meta: dict[str, Any], logged: LoggedModel, graph: graph_contract.GraphContract | None, advice: str
) -> Arrays | None:
    """The saved input example, by input name; None if there is none."""
    info = meta.get("saved_input_example_info") or {}
    file = folder / str(info.get("artifact_path", ""))
    if not info or (logged.task == GENERATION and wraps_openai(meta, logged.flavor)):
        return None
    if not file.is_file() or file.parent != folder:
        raise NotAdmitted("the version has no input example where its MLmodel file says", do=advice)
    body, inputs = json.loads(read_regular(file, MAX_EXAMPLE_BYTES)), logged.signature.inputs
    body = body["inputs"] if info.get("example_params_path") else body
    if _is_agent(logged):
        example = {REQUEST: np.array([[steady(body)]], dtype=object)}
    elif logged.tabular:
        example = columns_of(body, str(info.get("type")), inputs, json.loads(meta["signature"]["inputs"]))
    else:
        arrays = _arrays(body, str(info.get("type")), inputs)
        arrays = graph.batched(arrays) if graph else arrays
        arrays = _columns_of_text(arrays, inputs) if logged.flavor in TEXT_FLAVORS else arrays
        example = {spec.name: as_input(arrays[spec.name], spec) for spec in inputs}
    check_example(example, tuple(spec for spec in inputs if spec.name in example), advice, tabular=logged.tabular)
    return example


def columns_of(body: Any, kind: str, inputs: tuple[TensorSpec, ...], schema: list[dict[str, Any]]) -> Arrays:
    """The columns of an example as MLflow keeps it in JSON: a data frame's, or lists by name or in place of a frame.

    `schema` is the signature in MLflow's JSON. Optional columns may be missing.

    Raises:
        KeyError, TypeError, ValueError: it has not the signature's columns, or other values.
    """
    nested = any(entry.get("type") in ("array", "object") for entry in schema)  # then lists by name are a single row
    names, rows = _table(body, kind, nested=nested)
    if all(entry.get("name") is None for entry in schema):
        if len(inputs) == 1 and kind != "dataframe":  # a list of the only column's values
            rows = [[item] for item in (body if isinstance(body, list) else [body])]
        names = [spec.name for spec in inputs]
    at = {name: index for index, name in enumerate(names)}
    kinds = {spec.name: str(entry.get("type")) for spec, entry in zip(inputs, schema, strict=True)}
    wanted = (spec for spec in inputs if spec.name in at or not spec.optional)
    return {spec.name: _column([row[at[spec.name]] for row in rows], spec, kinds[spec.name]) for spec in wanted}


def _table(body: Any, kind: str, *, nested: bool) -> tuple[list[str], list[list[Any]]]:
    """The names and rows of an example in JSON, by the form that MLflow gave it."""
    if kind == "dataframe":
        rows = body["data"]
        return [str(column) for column in body.get("columns") or range(len(rows[0]))], rows  # no names: numbers
    if isinstance(body, dict):
        sizes = {len(value) if isinstance(value, list) else -1 for value in body.values()}
        whole = not nested and len(sizes) == 1 and -1 not in sizes
        rows = [list(row) for row in zip(*body.values(), strict=True)] if whole else [list(body.values())]
        return [str(name) for name in body], rows
    items = body if isinstance(body, list) else [body]
    if all(isinstance(item, dict) for item in items):
        names = list(dict.fromkeys(name for item in items for name in item))
        return names, [[item.get(name) for name in names] for item in items]
    return [], [[item] for item in items]


def _column(values: list[Any], spec: TensorSpec, kind: str) -> NDArray[Any]:
    if spec.datatype == "BYTES":
        return np.asarray(texts(values, kind)).reshape(-1, 1)
    if spec.datatype not in FLOATS and (missing := [row for row, value in enumerate(values) if value is None]):
        raise NotAdmitted(
            f"row {missing[0]} of the input example has no value in the column {spec.name!r}, which is {kind!r} in the "
            "signature, and no such value can be missing",
            do=f"Make the column one of floats, which can be missing: `x = x.astype({{{spec.name!r}: 'float64'}})`, "
            "then `log_model(..., signature=infer_signature(x, model.predict(x)), input_example=x)`.",
        )
    return as_input(np.array(values, dtype=object).reshape(-1, 1), spec)


def _columns_of_text(arrays: Arrays, inputs: tuple[TensorSpec, ...]) -> Arrays:
    """The columns of a text model's saved example: a text, list or column; for pairs, a mapping, list or columns."""
    values = np.asarray(next(iter(arrays.values())), dtype=object).reshape(-1)
    if len(inputs) == 1:
        return {inputs[0].name: values.reshape(-1, 1)}
    columns = arrays if len(arrays) > 1 else {spec.name: [row[spec.name] for row in values] for spec in inputs}
    return {spec.name: np.asarray(columns[spec.name], dtype=object).reshape(-1, 1) for spec in inputs}


def check_example(example: Arrays, inputs: tuple[TensorSpec, ...], advice: str, *, tabular: bool = False) -> None:
    """Checks that an input example has samples, all of the signature's shapes and types. `tabular`: it is a data frame.

    Raises:
        NotAdmitted: it does not.
    """
    for spec in inputs:
        _check_array(example[spec.name], spec, advice, tabular=tabular)
    if len({len(array) for array in example.values()}) != 1:
        least = min(len(array) for array in example.values())
        raise NotAdmitted(
            "the input example's arrays have different batch sizes",
            do=f"Log as many rows of each: `log_model(..., input_example={{name: array[:{least}] for name, array in "
            "x.items()})`, where `x` is the example.",
        )
    if not len(example[inputs[0].name]):
        raise NotAdmitted(
            "the input example has no samples",
            do="Log some rows of the data that the model was trained on: `log_model(..., input_example=x[:5])`.",
        )


def _arrays(body: Any, kind: str, inputs: tuple[TensorSpec, ...]) -> Arrays:
    if kind == "dataframe":
        names, rows = _table(body, kind, nested=False)
        return {name: np.array([row[at] for row in rows], dtype=object).reshape(-1, 1) for at, name in enumerate(names)}
    if kind.startswith("sparse_matrix"):
        return {inputs[0].name: _dense(body, kind)}
    if isinstance(body, dict):
        inner = body.get("inputs", body)
        named: dict[str, Any] = inner if isinstance(inner, dict) else {inputs[0].name: inner}
        return {name: np.array(value) for name, value in named.items()}
    return {inputs[0].name: np.array(body, dtype=numpy_type(inputs[0].datatype))}


def _dense(body: dict[str, Any], kind: str) -> NDArray[Any]:
    """A sparse example as clients send it: MLflow keeps the parts of SciPy's matrix, by rows or by columns."""
    import scipy.sparse  # noqa: PLC0415 - only for such examples

    of = scipy.sparse.csc_matrix if kind.endswith("csc") else scipy.sparse.csr_matrix
    if math.prod(body["shape"]) * 8 > MAX_EXAMPLE_BYTES:
        raise ValueError(f"it has the shape {body['shape']}, which is too large for an example")
    dense: NDArray[Any] = of((body["data"], body["indices"], body["indptr"]), shape=body["shape"]).toarray()
    return dense


def _check_batch(spec: TensorSpec, advice: str, *, tabular: bool) -> None:
    if not tabular and (not spec.shape or spec.shape[0] != -1):
        raise NotAdmitted(
            f"input {spec.name!r} has the fixed shape {spec.shape}: requests are batched along the first dimension",
            do="Log a signature whose first dimension is -1, as `infer_signature` writes it. " + advice,
        )


def _check_array(array: NDArray[Any], spec: TensorSpec, advice: str, *, tabular: bool) -> None:
    if not fits(array, spec):
        raise NotAdmitted(
            f"the input example's {spec.name!r} has shape {array.shape}, the signature says {spec.shape}", do=advice
        )
    if spec.datatype in FLOATS and np.isinf(array).any():  # NaN is a missing value
        rows = f"x[{spec.name!r}]" if tabular else "x"
        whole = "" if tabular or array.ndim == 1 else f".any(axis={tuple(range(1, array.ndim))})"
        raise NotAdmitted(
            f"the input example's {spec.name!r} holds infinity",
            do=f"Log an example without such rows: `x = x[~np.isinf({rows}){whole}]`, then "
            "`log_model(..., input_example=x)`.",
        )
