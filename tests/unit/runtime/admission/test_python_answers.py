"""Rows that are asked again: an answer of another type than the first is none, whichever row comes first."""

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from shiplift.runtime.admission import python_answers
from shiplift.runtime.admission.known_rows import known_rows
from shiplift.runtime.admission.python_answers import _Seen, again
from shiplift.runtime.admission.python_proving import prove
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.base.progress import listening
from shiplift.runtime.guest.python.host import Raised
from shiplift.runtime.guest.python.outputs import Outputs, Unservable, is_listed
from shiplift.runtime.model.tensors import Arrays, dump_npz
from shiplift.runtime.proof.oracle import answers_to
from shiplift.runtime.proof.settings import alone
from tests.unit.examples import tensor


def owes(inputs: Arrays) -> Arrays:
    """A text for each row; a number, if the name is missing."""
    (name,) = inputs["name"]
    return {"text": np.array([f"{name} owes"], object) if name else np.array([1.5])}


def test_rows_of_another_type_are_the_same_errors_in_any_order() -> None:
    rows: Arrays = {"name": np.array(["Ada", "", "Bob"], object)}
    right = alone(owes, rows)
    assert right.answered.tolist() == [True, False, True]
    for order in ([1, 0, 2], [2, 1, 0], [1]):
        seen = again(owes, {"name": rows["name"][order]}, right)
        assert seen.answered.tolist() == right.answered[order].tolist()
        assert seen.outputs["text"][seen.answered].tolist() == right.outputs["text"][order][seen.answered].tolist()


def test_where_no_row_had_an_answer_none_has_to_be_like_it() -> None:
    def fails(_: Arrays) -> Arrays:
        raise ValueError("no")

    rows: Arrays = {"name": np.array(["Ada"], object)}
    assert again(owes, rows, alone(fails, rows)).answered.tolist() == [True]


def proved(folder: Path, predict: Callable[[Any], Any]) -> dict[str, Any]:
    """The proof of a model of one column, asked in this process."""
    spec, example = tensor("x", -1, 1), {"x": np.array([[1.0], [2.0], [3.0]], np.float32)}
    host: Any = SimpleNamespace(
        form=None, start=lambda: None, ask=lambda inputs, _: {"y": predict(inputs["x"].ravel())}
    )
    seen = _Seen(60)
    seen.alone(host, known_rows(None, (spec,), example), [spec])
    seen.in_places(host)
    seen.again(host)
    seen.in_batches(host)
    (folder / "answers.npz").write_bytes(dump_npz(seen.file()))
    return prove(
        answers=str(folder / "answers.npz"),
        sets=list(seen.rows),
        outputs=["y"],
        places=seen.places,
        left_out=seen.left_out,
        inputs=[spec.model_dump(mode="json")],
        out=str(folder),
        seconds_each=seen.seconds,
    )


def test_a_release_says_that_the_author_s_python_is_slow_and_what_was_asked_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, told = [0.0], list[str]()

    def slow(x: Any) -> Any:
        now[0] += 0.4 * len(x)
        return x

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(python_answers, "answers_to", partial(answers_to, clock=lambda: now[0]))
    with listening(lambda message, _: told.append(message)):
        (note,) = proved(tmp_path, slow)["notes"]
    assert told == [
        "asking the model, each row alone: the author's own Python takes about 400 ms a row",
        "comparing the model's answers",
    ]
    assert "the author's own Python takes about 400 ms a row. Because of it, " in note
    assert re.search(r"\d+ rows were not asked alone; \d+ rows were not asked in batches\. Each stage", note), note


@pytest.mark.parametrize(
    ("predict", "several", "holds"),
    [
        (lambda x: x.tolist(), [], ""),
        (lambda x: [bool(v > 1) if v > 2 else None for v in x], [], "booleans"),
        (lambda x: [int(v) if v < 2 else str(v) for v in x], ["y"], "json"),
        (lambda x: [int(v) if v < 2 else bool(v) for v in x], ["y"], "json"),
        (lambda x: [v if v < 2 else [v, v] for v in x.tolist()], ["y"], "json"),
        (lambda x: [(1 << 60) + 1 if v > 2 else None for v in x], ["y"], "json"),
        (lambda x: [(1 << 60) + 1 for v in x], [], ""),
        (lambda x: [{"a": v} for v in x.tolist()], ["y"], "json"),
        (lambda x: ["" if v == v else {"made": "row"} for v in x.tolist()], [], ""),  # noqa: PLR0124 - NaN
    ],
)
def test_what_answers_the_author_s_rows_decides_whether_an_output_is_json(
    predict: Callable[[Any], Any], several: list[str], holds: str
) -> None:
    spec, example = tensor("x", -1, 1), {"x": np.arange(1.0, 11.0, dtype=np.float32).reshape(-1, 1)}
    for as_json in ((), several):
        made, host = Outputs(as_json), SimpleNamespace(form=None, start=lambda: None)

        def ask(inputs: Arrays, _: float, made: Outputs = made, host: Any = host) -> Arrays:
            array = made.tensor("y", predict(inputs["x"].ravel()), len(inputs["x"]))
            part = {"name": "", "tensor": "y", "rank": array.ndim, "holds": made.holds("y")}
            host.form = {"kind": "array", "parts": [part]}
            return {"y": array}

        host.ask = ask
        seen = _Seen(60, as_json)
        seen.alone(cast("Any", host), known_rows(None, (spec,), example), [spec])
        assert seen.several_types() == [name for name in several if name not in as_json]
    assert seen.form()["parts"][0].get("holds", "") == holds
    assert all(seen.right["example"].answered)


@pytest.mark.parametrize(
    ("predict", "listed"),
    [
        (lambda x: (x, x * 2), True),
        (lambda x: [x, x, np.ones((len(x), 2))], True),
        (lambda x: [x.tolist()], True),
        (lambda x: [[v, v] for v in x], False),
        (lambda x: [x] * len(x), False),
        (lambda x: x.tolist(), False),
        (lambda x: np.stack([x, x], axis=1), False),
    ],
)
def test_several_rows_show_whether_a_list_has_an_array_for_each_output(
    predict: Callable[[Any], Any], listed: bool
) -> None:
    spec, example = tensor("x", -1, 1), {"x": np.array([[1.0], [2.0], [3.0]], np.float32)}
    host = SimpleNamespace(form=None, start=lambda: None)

    def ask(inputs: Arrays, _: float) -> Arrays:
        answer, rows = predict(inputs["x"].ravel()), len(inputs["x"])
        several = is_listed(answer, rows)
        try:
            arrays = {
                f"y{at}": Outputs().tensor("y", each, rows) for at, each in enumerate(answer if several else [answer])
            }
        except Unservable as error:
            raise Raised(str(error)) from error
        parts = [{"tensor": name, "rank": array.ndim} for name, array in arrays.items()]
        host.form = {"kind": "list" if several else "array", "parts": parts}
        return arrays

    host.ask = ask
    seen = _Seen(60)
    seen.alone(cast("Any", host), known_rows(None, (spec,), example), [spec])
    assert seen.listed(cast("Any", host)) is listed


def test_a_row_has_as_many_values_as_its_model_likes(tmp_path: Path) -> None:
    def ragged(x: Any) -> Any:
        return np.ones((len(x), 1 + int(np.nan_to_num(x[0])) % 3))

    result = proved(tmp_path, lambda x: ragged(x) if len(x) == 1 else np.ones((0, 1)))
    assert result["signature"]["outputs"][0]["shape"] == [1, -1]


def test_a_missing_answer_is_of_the_type_that_others_show(tmp_path: Path) -> None:
    def sign(x: Any) -> Any:
        return np.sign(x).astype(np.int64) if (x > 0).all() else np.where(x > 0, 1.0, np.nan)

    result = proved(tmp_path, sign)
    (output,) = result["signature"]["outputs"]
    assert (output["datatype"], output["shape"]) == ("FP64", [-1])
    assert result["notes"] == []


def test_answers_with_another_number_of_axes_are_errors_of_their_rows(tmp_path: Path) -> None:
    """A tuple of two columns is one array, in which two rows look like the columns."""
    result = proved(tmp_path, lambda x: np.asarray((x, x))[None] if len(x) == 1 else np.asarray((x, x)))
    assert result["proof"]["batches"] is False


def test_a_model_that_drops_equal_rows_gets_one_at_a_time(tmp_path: Path) -> None:
    assert (
        proved(tmp_path, lambda x: np.unique(x, return_index=True)[0] if len(x) > 1 else x)["proof"]["batches"] is False
    )
    assert proved(tmp_path, lambda x: x * [np.sum(x == value) for value in x])["proof"]["batches"] is False


def test_a_model_that_sometimes_answers_otherwise_is_refused_whatever_shows_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ExportFailed, match="not repeatable"):
        proved(tmp_path, lambda x: np.nan_to_num(x) + (rng.random(len(x)) < 0.02))
