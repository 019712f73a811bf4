"""Generated cases: Python models over the forms of their inputs and answers, asked as MLflow's clients ask.

A case is called `pyfunc/FORM/protocol`. Its question is the body of a request to `/invocations`, in JSON.
"""

# ruff: noqa: ARG001, ARG002 - MLflow calls these methods by name

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.case import Case, Logged

INPUT = "protocol"
Predict = Callable[..., Any]

_FRAME = {"columns": ["x", "name"], "data": [[1.5, "Ada"], [2.0, "Bob"], [-3.25, "Eve"]]}


@dataclass(frozen=True, kw_only=True)
class Form:
    """What is logged: `model` makes it in an empty folder; `example` and `more` go to `save_model`; `asked` is sent."""

    model: Callable[[Path], Any]
    asked: Any
    example: Any = None
    more: Callable[[Path], dict[str, Any]] = lambda _: {}


def _frame(**columns: Any) -> Any:
    import pandas as pd

    return pd.DataFrame(columns or {"x": [1.0, 2.0], "name": ["Ada", "Bob"]})


def _answering(how: Callable[[Any], Any]) -> Callable[[Path], Any]:
    """A Python model without type hints."""

    def make(_: Path) -> Any:
        import mlflow

        class Answering(mlflow.pyfunc.PythonModel):  # type: ignore[misc] # mlflow has no types here
            def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def] # as logged
                return how(model_input)

        return Answering()

    return make


def _hinted(make: Callable[[], Predict]) -> Callable[[Path], Any]:
    """A Python model whose `predict` has type hints."""

    def model(_: Path) -> Any:
        import mlflow

        kind = type("Hinted", (mlflow.pyfunc.PythonModel,), {"predict": make()})
        return kind()

    return model


def _texts() -> Predict:
    def predict(self: Any, model_input: list[str]) -> list[str]:
        return [text.upper() for text in model_input]

    return predict


def _mappings() -> Predict:
    def predict(self: Any, model_input: list[dict[str, int]]) -> list[int]:
        return [sum(each.values()) for each in model_input]

    return predict


def _pydantic() -> Predict:
    import pydantic

    class Person(pydantic.BaseModel):
        name: str
        age: int | None = None
        tags: list[str] = []

    def predict(self, model_input):  # type: ignore[no-untyped-def] # the hints are set below
        return [f"{each.name} {each.age} {','.join(each.tags)}" for each in model_input]

    predict.__annotations__ = {"model_input": list[Person], "return": list[str]}
    return predict


def _dates() -> Predict:
    def predict(self: Any, model_input: list[datetime]) -> list[int]:
        return [each.year for each in model_input]

    return predict


def _lists() -> Predict:
    def predict(self: Any, model_input: list[list[float]]) -> list[float]:
        return [sum(each) for each in model_input]

    return predict


_CODE = """\
import mlflow
from helping import doubled


class Model(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        self.factor = float(open(context.artifacts["factor"]).read())

    def predict(self, context, model_input, params=None):
        return doubled(model_input["x"]) * self.factor * (params or {}).get("times", 1)


mlflow.models.set_model(Model())
"""


def _from_code(folder: Path) -> Any:
    (folder / "model.py").write_text(_CODE)
    return str(folder / "model.py")


def _code_and_artifacts(folder: Path) -> dict[str, Any]:
    from mlflow.models import infer_signature

    (folder / "helping.py").write_text("def doubled(values):\n    return values * 2\n")
    (folder / "factor").write_text("1.5")
    return {
        "code_paths": [str(folder / "helping.py")],
        "artifacts": {"factor": str(folder / "factor")},
        "signature": infer_signature(_frame(x=[1.0]), np.array([1.0]), params={"times": 1}),
    }


def _once(_: Path) -> Any:
    """Its resource is opened once, when it is loaded; each answer says how often."""
    import mlflow

    class Once(mlflow.pyfunc.PythonModel):  # type: ignore[misc] # mlflow has no types here
        opened = 0

        def load_context(self, context):  # type: ignore[no-untyped-def] # as logged
            type(self).opened += 1

        def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def] # as logged
            return model_input["x"] * type(self).opened

    return Once()


def _sparse(frame: Any) -> Any:
    import scipy.sparse

    return scipy.sparse.csr_matrix(frame[["x"]].to_numpy().repeat(2, 1))


def _optional(_: Path) -> dict[str, Any]:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema

    columns = [ColSpec("double", "x"), ColSpec("string", "name", required=False)]
    return {"signature": ModelSignature(Schema(columns), Schema([ColSpec("string")]))}


def _out(name: str, how: Callable[[Any], Any]) -> tuple[str, Form]:
    """A form of the answer to the same frame."""
    asked = {"dataframe_split": _FRAME}
    return f"answers-{name}", Form(model=_answering(how), example=_frame(), asked=asked)


_NESTED = {"pets": [{"kind": "cat", "ages": [1, 2]}], "owner": {"name": "Ada", "rich": True}}
_FORMS: dict[str, Form] = dict(
    (
        ("hint-list-of-texts", Form(model=_hinted(_texts), asked={"inputs": ["a", "ü", ""]}, example=["a"])),
        ("hint-list-of-mappings", Form(model=_hinted(_mappings), asked={"inputs": [{"a": 1, "b": 2}, {"c": 5}]})),
        ("hint-list-of-lists", Form(model=_hinted(_lists), asked={"inputs": [[1.5, 2.0], [3.0], []]}, example=[[1.0]])),
        ("hint-dates", Form(model=_hinted(_dates), asked={"inputs": ["2024-02-29T12:00:00", "1999-12-31T00:00:00"]})),
        (
            "hint-pydantic",
            Form(model=_hinted(_pydantic), asked={"inputs": [{"name": "Ada", "age": 36}, {"name": "B"}]}),
        ),
        _out("array", lambda frame: frame["x"].to_numpy()),
        _out("matrix", lambda frame: frame[["x", "x"]].to_numpy()),
        _out("list", lambda frame: frame["x"].tolist()),
        _out("texts", lambda frame: [name.upper() for name in frame["name"]]),
        _out("series", lambda frame: frame["x"] * 2),
        _out("frame", lambda frame: frame.assign(twice=frame["x"] * 2)),
        _out("mapping", lambda frame: {"x": frame["x"].to_numpy(), "name": frame["name"].tolist()}),
        _out("records", lambda frame: frame.to_dict("records")),
        _out("sparse", _sparse),
        _out("none-among-texts", lambda frame: [None if x < 0 else "ok" for x in frame["x"]]),
        _out("none-among-numbers", lambda frame: [None if x < 0 else x for x in frame["x"]]),
        _out("none-among-booleans", lambda frame: [None if x < 0 else x > 1.5 for x in frame["x"]]),
        _out("values-of-several-types", lambda frame: [None, 1, "1"][: len(frame)]),
        _out(
            "none-in-lists-of-several-lengths", lambda frame: [[x, None][: at % 3] for at, x in enumerate(frame["x"])]
        ),
        _out("frame-of-objects", lambda frame: frame.assign(many=[[x] * int(abs(x)) for x in frame["x"]])),
        _out("booleans", lambda frame: (frame["x"] > 0).to_numpy()),
        _out("dates", lambda frame: [datetime(2024, 1, 1 + int(abs(x))) for x in frame["x"]]),
        _out(
            "nested",
            lambda frame: [{"who": name, "more": [x, {"deep": True}]} for name, x in frame.to_numpy()[:, ::-1]],
        ),
        _out("lists-of-several-lengths", lambda frame: [[x] * (at + 1) for at, x in enumerate(frame["x"])]),
        (
            "columns-of-arrays",
            Form(
                model=_answering(lambda frame: [float(np.sum(each)) for each in frame["values"]]),
                example=_frame(values=[[1.0, 2.0], [3.0]]),
                asked={"dataframe_records": [{"values": [1.0, 2.0, 3.5]}, {"values": [4.0]}]},
            ),
        ),
        (
            "columns-of-objects",
            Form(
                model=_answering(lambda frame: [each["name"] for each in frame["owner"]]),
                example=_frame(**{name: [value, value] for name, value in _NESTED.items()}),
                asked={"dataframe_records": [_NESTED]},
            ),
        ),
        (
            "columns-of-dates",
            Form(
                model=_answering(lambda frame: frame["when"].dt.dayofyear.to_numpy()),
                example=_frame(when=np.array(["2024-01-02", "2024-02-03"], "datetime64[ns]")),
                asked={"dataframe_records": [{"when": "2024-12-31T00:00:00"}, {"when": "2023-12-31T12:30:00"}]},
            ),
        ),
        (
            "optional-column",
            Form(
                model=_answering(lambda frame: [f"{'name' in frame} {x}" for x in frame["x"]]),
                example=_frame(),
                more=_optional,
                asked={"dataframe_split": {"columns": ["x"], "data": [[1.0], [2.0]]}},
            ),
        ),
        (
            "tensor",
            Form(
                model=_answering(lambda array: array.sum(axis=(1, 2))),
                example=np.ones((2, 2, 3), np.float32),
                asked={"inputs": np.arange(18.0).reshape(3, 2, 3).tolist()},
            ),
        ),
        (
            "named-tensors",
            Form(
                model=_answering(lambda arrays: arrays["a"] + arrays["b"]),
                example={"a": np.ones((2, 2)), "b": np.ones((2, 2))},
                asked={"inputs": {"a": [[1.0, 2.0]], "b": [[0.5, 0.25]]}},
            ),
        ),
        (
            "code-artifacts-params",
            Form(
                model=_from_code,
                more=_code_and_artifacts,
                example=_frame(x=[1.0, 2.0]),
                asked={"dataframe_records": [{"x": 2.0}, {"x": -1.0}], "params": {"times": 3}},
            ),
        ),
        (
            "resource-once",
            Form(model=_once, example=_frame(x=[1.0, 2.0]), asked={"dataframe_records": [{"x": 2.0}, {"x": 3.0}]}),
        ),
        (
            "names-that-triton-can-t-take",
            Form(
                model=_answering(lambda frame: frame["x y/z (µm)"] * 2),
                example=_frame(**{"x y/z (µm)": [1.0, 2.0]}),
                asked={"dataframe_records": [{"x y/z (µm)": 2.0}, {"x y/z (µm)": 3.0}]},
            ),
        ),
        (
            "integers-and-missing",
            Form(
                model=_answering(lambda frame: frame["n"].isna().to_numpy()),
                example=_frame(n=[1.0, None]),
                asked={"dataframe_records": [{"n": 2}, {"n": None}]},
            ),
        ),
    )
)


def _built(form: Form, folder: Path) -> Logged:
    import mlflow

    model = form.model(folder)
    given = {"python_model": model, "pip_requirements": [], **form.more(folder)}
    if form.example is not None:
        given["input_example"] = form.example
    return Logged(
        log=partial(mlflow.pyfunc.log_model, **given),
        save=partial(mlflow.pyfunc.save_model, **given),
        inputs={},
        question=form.asked,
    )


PYTHON_FORMS = tuple(
    Case(
        name=f"pyfunc/{name}/{INPUT}",
        flavor="pyfunc",
        about=name.replace("-", " "),
        build=partial(_built, form),
        input=INPUT,
    )
    for name, form in _FORMS.items()
)
