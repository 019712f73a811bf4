"""Loads a Python model in its process, and answers for it: `mlflow.pyfunc`.

Process: the model's own, as `python_host/served.py` beside `agents.py`, `categories.py`, `outputs.py`, `values.py`.
Python: the model's
Packages: mlflow, numpy, pandas
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from .agents import REQUEST, answered, is_agent  # noqa: TID251 - the same import in Shiplift and in a package
from .categories import Categorical, categories_of  # noqa: TID251
from .outputs import Outputs, Unservable, document, is_listed, key_of  # noqa: TID251
from .values import column, dates, kind_of, learned_none, values  # noqa: TID251


def load(settings: dict[str, Any]) -> "Model":
    """The model that the settings name."""
    return Model(settings)


class Model:
    """The loaded model. It is `mlflow.pyfunc` itself, whose answers are right by definition.

    An estimator of scikit-learn that only transforms, which pyfunc can't call, answers what `transform` does. A booster
    of pandas' categories, which pyfunc can't ask, gets these.

    Of the settings, `model` is MLflow's folder, `outputs` are the names in the signature, and `json` (optional) are
    those of the outputs that are served as JSON. `listed` (optional): `predict` answers a list with an array for each
    output, as scikit-learn does where there are several targets; None: if a list shows it by its lengths. `axes`
    (optional) are the outputs that lack the axis of rows, and how; None: that is to be seen. `document` (optional): an
    answer is one output, whatever it is.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        _trace_nothing()
        self._model = _loaded(settings["model"])
        self._outputs: list[str] = settings["outputs"]
        self._made = Outputs(settings.get("json", ()), settings.get("axes", {}))
        self._listed: bool | None = settings.get("listed", False)
        self._document: bool = settings.get("document", False)
        metadata = self._model.metadata
        schema = metadata.get_input_schema()
        self._tensors = schema.is_tensor_spec()
        self._named = schema.has_input_names()
        self._hinted = bool(getattr(metadata, "_is_signature_from_type_hint", bool)())  # MLflow gained it in 2.20
        self._agent = is_agent(metadata.metadata, metadata.flavors, schema.input_names() if self._named else [])
        self._columns = [] if self._tensors else list(schema.inputs)
        self._none = learned_none(getattr(getattr(self._model, "_model_impl", None), "sklearn_model", None))
        self._texts = {spec.name for spec in schema.inputs if self._tensors and spec.type.kind == "U"}
        self.names: list[str] = list(schema.input_names()) if self._named else []  # as the author logged them
        self.form: dict[str, Any] = {}  # of the last answer, as `records.scoring.AnswerForm`

    def answer(self, inputs: dict[str, Any], params: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answers of `predict`, as arrays by name, each with one row per sample."""
        if self._agent:
            self.form = {}  # as `records.scoring.Scoring.agent` says
            return answered(self._model.predict, inputs[REQUEST])
        rows = len(next(iter(inputs.values())))
        answer = self._model.predict(self._asked(inputs), **({"params": params} if params else {}))
        parts = self._parts(answer, rows)
        arrays = {name: self._made.tensor(name, value, rows) for name, value in parts.values.items()}
        self.form = _form(parts, arrays, self._made)
        return arrays

    def _asked(self, inputs: dict[str, Any]) -> Any:
        if self._tensors:
            known = list(inputs) if self._named else [None]
            tensors = {
                name: array.astype(str) if logged in self._texts else array  # which MLflow tells from objects
                for logged, (name, array) in zip(known, inputs.items(), strict=True)
            }
            return tensors if self._named else next(iter(tensors.values()))
        if self._hinted:
            kind = kind_of(self._columns[0])
            if kind == "datetime":
                return dates(next(iter(inputs.values())))
            read = values(next(iter(inputs.values())), kind)
            return read if isinstance(read, list) else read.tolist()  # the hint names a type of Python
        import pandas as pd  # noqa: PLC0415 - only for data frames

        if not self._named:
            pairs = zip(inputs.values(), self._columns, strict=True)
            return pd.DataFrame(
                {at: column(array, kind_of(spec), none=self._none) for at, (array, spec) in enumerate(pairs)}
            )
        tensors = {str(name): array for name, array in inputs.items()}
        found = ((spec, tensors[str(spec.name)]) for spec in self._columns if str(spec.name) in tensors)
        return pd.DataFrame({spec.name: column(array, kind_of(spec), none=self._none) for spec, array in found})

    def _parts(self, answer: Any, rows: int) -> "_Parts":
        """What an answer consists of, by the names of the tensors that serve it."""
        single = self._outputs[0] if len(self._outputs) == 1 else "output"
        if self._document:
            return _Parts("array", {single: document(answer)}, {single: ""})
        if is_listed(answer, rows) if self._listed is None else self._listed:
            values = self._in_order(answer)
            return _Parts("list", values, {name: name for name in values})
        if (known := _columns(answer, self._outputs)) is None:
            if len(self._outputs) > 1:
                raise self._contradicted("one array")
            if hasattr(answer, "to_frame"):  # a series becomes a frame whose only column is 0 unless it has a name
                return _Parts(
                    "records", {single: answer}, {single: "0" if answer.name is None else key_of(answer.name)}
                )
            return _Parts("array", {single: answer}, {single: ""})
        kind, values, told = known
        if not told:
            raise Unservable("predict answered a mapping without a key, or a frame without a column")
        declared = set(self._outputs)
        if len(declared) > 1 and not (declared <= values.keys() or values.keys() <= declared):
            raise self._contradicted(", ".join(values))
        # more than the signature says is answered, too; MLflow has no schema for columns of several types
        order = dict.fromkeys([*(name for name in self._outputs if name in values), *values])
        return _Parts(kind, {name: values[name] for name in order}, {name: name for name in told})

    def _contradicted(self, answered: str) -> Unservable:
        return Unservable(f"predict answered {answered}, the signature says {', '.join(self._outputs)}")

    def _in_order(self, answer: Any) -> dict[str, Any]:
        """The arrays of a list, by the outputs' names if the signature has as many, or else by their numbers."""
        if not isinstance(answer, (list, tuple)):
            raise Unservable(f"predict answered {type(answer).__name__}, not a list of arrays as for the example")
        numbered = [f"output_{number}" for number in range(len(answer))]
        return dict(zip(self._outputs if len(self._outputs) == len(answer) else numbered, answer, strict=True))


class _Parts(NamedTuple):
    """The parts of an answer: its kind, the values by tensor, and the parts' names by tensor."""

    kind: str
    values: dict[str, Any]
    names: dict[str, str]


def _loaded(folder: str) -> Any:
    """The model in MLflow's folder, as pyfunc.

    Raises:
        ValueError: it has neither a flavor by which pyfunc loads it, nor `transform`.
    """
    import mlflow.pyfunc  # noqa: PLC0415 - installed in the model's environment
    from mlflow.models import Model as Metadata  # noqa: PLC0415 - as above

    metadata = Metadata.load(folder)
    known = metadata.flavors.get("python_function")
    if "sklearn" not in metadata.flavors or (known and known.get("predict_fn") != "transform"):
        return _with_categories(mlflow.pyfunc.load_model(folder))
    import mlflow.sklearn  # noqa: PLC0415 - as above

    estimator = mlflow.sklearn.load_model(folder)
    if not hasattr(estimator, "transform"):
        raise ValueError(f"{type(estimator).__name__} has no predict and no transform")
    return mlflow.pyfunc.PyFuncModel(model_meta=metadata, model_impl=_Transformer(estimator))


def _with_categories(model: Any) -> Any:
    """The same, or a booster that gets its columns of categories."""
    import mlflow.pyfunc  # noqa: PLC0415 - as above

    schema = model.metadata.get_input_schema()
    if schema is None or schema.is_tensor_spec() or not schema.has_input_names():
        return model
    wrapped = getattr(model, "_model_impl", None)
    categories = categories_of(wrapped, list(schema.inputs))
    if not categories:
        return model
    return mlflow.pyfunc.PyFuncModel(model_meta=model.metadata, model_impl=Categorical(wrapped, categories))


class _Transformer:
    """An estimator that only transforms, with the method that pyfunc calls."""

    def __init__(self, estimator: Any) -> None:
        self.sklearn_model = estimator  # as MLflow's own wrapper names it

    def predict(self, data: Any) -> Any:
        return self.sklearn_model.transform(data)


def _trace_nothing() -> None:
    """Switches MLflow's traces off: the first would wait minutes for a database that no confined process can open."""
    try:
        from mlflow.tracing import disable  # noqa: PLC0415 - MLflow gained it in 2.14
    except ImportError:
        return
    disable()


def _form(parts: _Parts, arrays: dict[str, Any], made: Outputs) -> dict[str, Any]:
    """How the arrays that are served make up the answer as MLflow's scoring server would write it."""
    told = [
        {
            "name": name,
            "tensor": tensor,
            "rank": arrays[tensor].ndim,
            "holds": made.holds(tensor),
            "axis": made.lacks(tensor),
        }
        for tensor, name in parts.names.items()
    ]
    return {"kind": parts.kind, "parts": told}


def _columns(answer: Any, outputs: list[str]) -> tuple[str, dict[str, Any], list[str]] | None:
    """The kind of an answer that has values by name, these, and the names that it has itself; None: it has none."""
    if hasattr(answer, "columns") and hasattr(answer, "to_numpy"):
        columns = {key_of(name): answer.iloc[:, at] for at, name in enumerate(answer.columns)}
        return "records", columns, list(columns)
    if isinstance(answer, Mapping):
        values = {key_of(name): value for name, value in answer.items()}
        return "mapping", values, list(values)
    if not isinstance(answer, list) or not answer or not all(isinstance(each, Mapping) for each in answer):
        return None
    records = [{key_of(name): value for name, value in each.items()} for each in answer]
    keys = dict.fromkeys(name for each in records for name in each)
    if not keys or not (keys.keys() <= set(outputs) if outputs else all(set(each) == set(keys) for each in records)):
        return None
    return "records", {name: [each.get(name) for each in records] for name in outputs or keys}, list(keys)
