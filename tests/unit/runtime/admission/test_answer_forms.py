"""Whatever `predict` answers, production writes what MLflow's own scoring server would write of it.

A family of answers, each asked as an export asks it, then served in one request of a row and one of three.
"""

import datetime
import enum
import io
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import mlflow
import numpy as np
import pandas as pd
import pydantic
import pytest
from mlflow.models import ModelSignature
from mlflow.pyfunc.scoring_server import predictions_to_json
from mlflow.types import ColSpec, Schema

from shiplift.runtime.admission import python_answers
from shiplift.runtime.admission.known_rows import known_rows
from shiplift.runtime.admission.python_answers import learned
from shiplift.runtime.guest.python import pyfunc
from shiplift.runtime.guest.python.host import Host, Raised
from shiplift.runtime.guest.python.values import as_served
from shiplift.runtime.guest.python.wire import Reader, pack
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.scoring import AnswerForm
from shiplift.runtime.serving.scoring.answers import body_of
from tests.unit.examples import tensor

Predict = Callable[[Any], Any]
X = {"x": np.array([[1.0], [2.0], [3.0]])}


class Colour(str, enum.Enum):  # noqa: UP042 - NumPy and `str` write its name
    RED = "red"


class Item(pydantic.BaseModel):
    name: str
    at: datetime.datetime | None = None
    more: list["Item"] = []


WHEN = datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)
VALUES: dict[str, Any] = {
    "a whole number": 1,
    "a number": 1.5,
    "a boolean": True,
    "a text": "a",
    "a text like JSON": "1",
    "no text": "",
    "bytes": b"ab",
    "None": None,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "FP32": np.float32(1.1),
    "an array without axes": np.array(2.5),
    "a date": datetime.date(2024, 1, 2),
    "a time": WHEN,
    "a timestamp": pd.Timestamp("2024-01-02"),
    "NumPy's day": np.datetime64("2024-01-02"),
    "NumPy's nanosecond": np.datetime64("2024-01-02", "ns"),
    "no time": pd.NaT,
    "a member of an enumeration": Colour.RED,
    "an object": Item(name="a", at=WHEN, more=[Item(name="b")]),
    "a large number": 10**25,
}


def rows(frame: Any) -> list[float]:
    return [float(value) for value in frame["x"]]


def of_value(value: Any) -> dict[str, Predict]:
    """A value in each place of an answer."""
    return {
        "alone": lambda frame: value,
        "in each row": lambda frame: [value] * len(frame),
        "in a mapping": lambda frame: {"k": value},
        "in a mapping of rows": lambda frame: {"k": [value] * len(frame)},
        "in a mapping for each row": lambda frame: [{"k": value}] * len(frame),
        "deep": lambda frame: [{"k": [{"d": value}, [value]]}] * len(frame),
    }


def framed(**columns: Any) -> Predict:
    return lambda frame: pd.DataFrame({name: make(frame) for name, make in columns.items()})


OTHERS: dict[str, Predict] = {
    "a mapping without keys": lambda frame: {},
    "a mapping of tuples": lambda frame: {"k": tuple((value, value) for value in rows(frame))},
    "a mapping of a list of another length": lambda frame: {"k": [1, 2, 3, 4, 5]},
    "a mapping of no rows": lambda frame: {"k": []},
    "labels and what holds for all of them": lambda frame: {"label": ["a"] * len(frame), "model": "v1", "of": None},
    "nested mappings": lambda frame: {"k": {"a": 1, "b": [1, {"c": None}]}},
    "keys that are no texts": lambda frame: {2: rows(frame), True: rows(frame), None: rows(frame), 1.5: rows(frame)},
    "keys that differ": lambda frame: [{"a": value} if value > 1 else {"b": value, "c": None} for value in rows(frame)],
    "keys that may be missing": lambda frame: [{"a": 1, "b": 2} if value > 1 else {"a": 1} for value in rows(frame)],
    "numbers as keys": lambda frame: [{1: value} for value in rows(frame)],
    "a text or a mapping": lambda frame: ['{"a":2}' if value > 1 else {"a": 1} for value in rows(frame)],
    "no list": lambda frame: [],
    "an empty list for each row": lambda frame: [[] for _ in rows(frame)],
    "a longer list": lambda frame: [1, 2, 3, 4, 5],
    "long bytes within": lambda frame: [{"a": [bytes(100)]} for _ in rows(frame)],
    "as many tags as it likes": lambda frame: {"tags": ["a"] * int(frame["x"].max())},
    "squeezed": lambda frame: frame["x"].to_numpy().squeeze(),
    "squeezed, with a version": lambda frame: {"y": frame["x"].to_numpy().squeeze(), "version": "v1"},
    "one text for any number of rows": lambda frame: ["only"],
    "a frame of one row for any number": lambda frame: pd.DataFrame({"a": ["only"]}),
    "a structured array": lambda frame: np.array([(v, int(v)) for v in rows(frame)], dtype=[("a", "f8"), ("b", "i4")]),
    "a masked array": lambda frame: np.ma.array(rows(frame), mask=[True] * len(frame)),
    "an array of days": lambda frame: np.array(["2024-01-01"] * len(frame), "M8[D]"),
    "an array of nanoseconds": lambda frame: np.array(["2024-01-01"] * len(frame), "M8[ns]"),
    "an array of spans": lambda frame: np.array([1] * len(frame), "m8[ns]"),
    "objects": lambda frame: [Item(name="a", at=WHEN, more=[Item(name="b")]) for _ in rows(frame)],
    "a frame without columns": lambda frame: pd.DataFrame(index=frame.index),
    "a frame without rows": lambda frame: pd.DataFrame({"a": []}),
    "a frame of more rows": lambda frame: pd.DataFrame({"a": [1.0, 2.0], "b": ["u", "v"]}),
    "a frame of equal names": lambda frame: pd.DataFrame([[v, v + 1] for v in rows(frame)], columns=["a", "a"]),
    "a frame of odd names": lambda frame: pd.DataFrame({"a b": rows(frame), "": rows(frame), None: rows(frame)}),
    "a frame of times": lambda frame: pd.DataFrame({"a": pd.to_datetime(["2024-01-01", None, None][: len(frame)])}),
    "a frame of nullable numbers": framed(a=lambda frame: pd.array([1, None, 3][: len(frame)], dtype="Int64")),
    "a series": lambda frame: frame["x"],
    "a series of objects": lambda frame: pd.Series([{"a": value} for value in rows(frame)]),
}
PLACES = list(of_value(None))
GROUPS = {place: {name: of_value(value)[place] for name, value in VALUES.items()} for place in PLACES} | {
    "others": OTHERS
}


class Answering(mlflow.pyfunc.PythonModel):  # type: ignore[misc] # mlflow has no types here
    def __init__(self, how: Predict | None = None) -> None:
        self.how = how

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def] # MLflow checks by types
        return self.how(model_input) if self.how else None


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model as pyfunc, which a test tells what to answer."""
    folder = tmp_path_factory.mktemp("answers") / "model"
    signature = ModelSignature(inputs=Schema([ColSpec("double", "x")]))
    mlflow.pyfunc.save_model(folder, python_model=Answering(), signature=signature, pip_requirements=[])
    return mlflow.pyfunc.load_model(str(folder))


class Process:
    """The model's process, which runs in this one, but for what travels between the two."""

    def __init__(self, answers_as: dict[str, Any], outputs: Sequence[str] = ()) -> None:
        self.model = pyfunc.Model({"model": "", "outputs": list(outputs), **answers_as})
        self.form: Any = None

    def start(self) -> None:
        """Runs already."""

    def ask(self, inputs: Arrays, _limit_s: float) -> Arrays:
        try:
            message = pack(self.model.answer(inputs), form=self.model.form)
        except Exception as error:
            raise Raised(f"{type(error).__name__}: {error}") from error
        reader, at = Reader(), 0
        while size := reader.missing:
            reader.take(message[at : at + size])
            at += size
        fields, arrays = reader.message()
        self.form = fields["form"]
        return arrays


@dataclass
class Production:
    """A model as its export found it, asked with as many rows as a request has."""

    seen: Any
    answers_as: dict[str, Any]

    def body(self, count: int) -> Any:
        process, form = Process(self.answers_as), AnswerForm.told(self.seen.form())
        assert form
        arrays = process.ask({"x": X["x"][:count]}, 1)
        outputs = {name: as_served(array, self.seen.types[name]) for name, array in arrays.items()}
        carried = {name: array.reshape(-1, 1) if array.ndim == 1 else array for name, array in outputs.items()}
        return json.loads(body_of(form, [carried]))


def exported(loaded: Any, how: Predict) -> Production:
    """The model after the rows of an export."""
    loaded._model_impl.python_model.how = how
    spec = tensor("x", -1, 1).model_copy(update={"datatype": "FP64"})
    seen, answers_as = learned(
        lambda answers_as: nullcontext(cast("Host", Process(answers_as))),
        known_rows(None, (spec,), X),
        [spec],
        [],
        60,
    )
    assert not any(seen.right["example"].errors), seen.right["example"].errors
    return Production(seen, answers_as)


def mlflow_s(loaded: Any, how: Predict, count: int) -> Any:
    """What MLflow's scoring server writes."""
    loaded._model_impl.python_model.how = how
    body = io.StringIO()
    predictions_to_json(loaded.predict(pd.DataFrame({"x": X["x"][:count, 0]})), body)
    return json.loads(body.getvalue())


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch, loaded: Any) -> None:
    """No more than the example's first rows are asked, of a model that is loaded already."""
    monkeypatch.setattr(python_answers, "_ALONE_S", 0)
    monkeypatch.setattr(pyfunc, "_loaded", lambda _: loaded)


@pytest.mark.parametrize("group", GROUPS)
def test_an_answer_is_what_mlflow_s_server_writes_of_it(group: str, loaded: Any) -> None:
    wrong = {}
    for name, how in GROUPS[group].items():
        production = exported(loaded, how)
        for count in (1, 3):
            ours, theirs = production.body(count), mlflow_s(loaded, how, count)
            if repr(ours) != repr(theirs) and ours != theirs:  # NaN equals nothing
                wrong[f"{name}, {count} rows"] = (ours, theirs, production.answers_as)
    assert not wrong


@pytest.mark.parametrize(
    ("how", "lacking"),
    [
        (lambda frame: [sum(rows(frame)) / len(frame)], "whole"),
        (lambda frame: frame.mean(), "whole"),
        (lambda frame: frame["x"].mean(), "whole"),
        (lambda frame: frame["x"].to_numpy().squeeze(), "squeezed"),
        (lambda frame: frame["x"].drop_duplicates(), ""),
        (lambda frame: frame["x"] - frame["x"].mean(), ""),
    ],
)
def test_several_rows_show_whether_an_answer_is_about_all_of_them(how: Predict, lacking: str, loaded: Any) -> None:
    assert exported(loaded, how).answers_as["axes"] == ({"output": lacking} if lacking else {})


def test_parts_that_differ_are_one_output_only_if_the_author_s_rows_show_it(loaded: Any) -> None:
    for how, document in (
        (lambda frame: [{"a": value} if value < 9 else {"b": value} for value in rows(frame)], False),
        (lambda frame: [{"a": value} if value < 2 else {"b": value} for value in rows(frame)], True),
    ):
        assert exported(loaded, how).answers_as["document"] is document
