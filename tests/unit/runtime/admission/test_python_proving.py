"""What a Python model's recorded answers decide: its outputs, its batches, its proof, and whether it is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.admission.python_proving import prove
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model.tensors import Arrays, dump_npz, load_npz
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.file import from_file, in_file, sets_in
from tests.unit.examples import tensor

X = np.arange(8, dtype=np.float32).reshape(8, 1)
ORIGINS = ("example",) * 6 + ("range",) * 2
NONE = "Raised: Unservable: predict answered None as 'y'"


def said(outputs: Any, errors: dict[int, str] | None = None) -> Answers:
    """Answers `y` to eight rows, with errors to some."""
    return Answers(outputs={"y": outputs}, errors=tuple((errors or {}).get(row, "") for row in range(len(outputs))))


def proved(folder: Path, right: Answers | None = None, shapes: Any = ((1,),), **others: Answers) -> dict[str, Any]:
    """The result for a model that answers `right` to each row alone, and the same otherwise but for `others`."""
    right = right or said(2 * X)
    answers = {"example": right, "again": right.take([0]), "neighbours": right.take([0, 1])}
    answers |= {"place-0": right.take([0, 1]), "place-1": right.take([1, 0])}
    answers |= {"again/example": right.take([7, 0]), "batch/example": right.take(np.flatnonzero(right.answered))}
    answers |= others
    origins = {name: ORIGINS[: len(each.errors)] for name, each in answers.items()}
    arrays: Arrays = in_file({name: {"x": X} for name in answers}, answers, origins)
    arrays |= {"again/example/rows": np.array([7, 0]), "shapes/y": np.array(shapes)}
    (folder / "answers.npz").write_bytes(dump_npz(arrays))
    return prove(
        answers=str(folder / "answers.npz"),
        sets=["example"],
        outputs=["y"],
        places=2,
        left_out=["3 rows"],
        inputs=[tensor("x", -1, 1).model_dump(mode="json")],
        out=str(folder),
    )


def test_a_model_whose_rows_keep_their_answers_in_batches_takes_any_batch_and_has_a_proof(tmp_path: Path) -> None:
    result = proved(tmp_path)
    assert result["signature"] == {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
    }
    assert result["proof"]["asked"] == [{"origin": "example", "rows": 6}, {"origin": "range", "rows": 2}]
    assert {each["name"]: each["rows"] for each in result["proof"]["settings"]} == {
        "alone": 8,
        "in a second process": 2,
        "at every place of a batch": 4,
        "in batches": 8,
    }
    assert (result["proof"]["batches"], result["proof"]["left_out"], result["notes"]) == (True, ["3 rows"], [])
    assert [(case["max_abs"], case["problem"]) for case in result["parity"]] == [(0, ""), (0, "")]
    reference = load_npz(tmp_path / "reference.npz")
    np.testing.assert_array_equal(reference["output/y"], 2 * X[:6])  # the author's rows alone
    np.testing.assert_array_equal(reference["input/x"], X[:6])


@pytest.mark.parametrize(
    ("other", "seen", "told"),
    [
        ("place-1", said(2 * X[[1, 0]] + 1), "to row 1 of the example rows (in a batch of 2)"),
        ("place-0", said((2 * X[:2])[:, 0].reshape(2, 1, 1, 1).repeat(2, 1)), "answers floats of shape [2, 1, 1]"),
        ("place-0", said(2 * X[:2], dict.fromkeys(range(2), "Raised: one at a time")), "raises Raised: one at a time"),
        (
            "batch/example",
            said(2 * X * (1 + (np.arange(8) == 5))[:, None]),
            "to row 5 of the example rows (in a batch)",
        ),
        ("batch/example", said((2 * X).astype(np.int64)), "answers integers"),
    ],
)
def test_a_model_whose_rows_mix_gets_one_at_a_time_and_is_told(
    tmp_path: Path, other: str, seen: Answers, told: str
) -> None:
    result = proved(tmp_path, **{other: seen})
    assert [spec["shape"] for kind in ("inputs", "outputs") for spec in result["signature"][kind]] == [[1, 1], [1, 1]]
    (note,) = result["notes"]
    assert note.startswith("Warning: the model gets one sample at a time, without batching")
    assert told in note
    assert not result["proof"]["batches"]


@pytest.mark.parametrize(
    ("other", "setting"),
    [("again", "asked again, after other rows"), ("again/example", "asked of a second process")],
)
def test_a_model_that_answers_otherwise_when_it_is_asked_again_is_refused(
    tmp_path: Path, other: str, setting: str
) -> None:
    count = 1 if other == "again" else 2
    for seen in (said(2 * X[:count] + 1), said(X[:count], {0: "Raised: tired"})):
        with pytest.raises(ExportFailed, match=rf"not repeatable: to row . of .* \({setting}\)"):
            proved(tmp_path, **{other: seen})


def test_an_example_without_an_answer_or_with_one_that_no_tensor_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match="does not answer the first row of its example: Raised: no"):
        proved(tmp_path, said(X, {0: "Raised: no"}))
    with pytest.raises(ExportFailed, match="can't be served: the first row of the example: predict answered None"):
        proved(tmp_path, said(X, {0: NONE}))
    for error in (NONE, "'y' is int64 with 2 axes, the first row has float32 with 2 axes"):
        with pytest.raises(ExportFailed, match=r"can't be served: row 3 of the example rows: .*'y'"):
            proved(tmp_path, said(2 * X, {3: error}))


def test_made_rows_without_an_answer_are_no_fault_but_those_that_cannot_be_served_are_told(tmp_path: Path) -> None:
    assert proved(tmp_path, said(2 * X, {6: "Raised: no"}))["notes"] == []
    (note,) = proved(tmp_path, said(2 * X, {6: NONE}))["notes"]
    assert note.endswith("clients get an error: row 6 of the range rows: predict answered None as 'y'.")


def test_nan_is_an_answer_like_others_since_it_says_what_is_missing(tmp_path: Path) -> None:
    result = proved(tmp_path, said(np.where(X > 3, np.nan, X)))
    assert {case["max_abs"] for case in result["parity"]} == {0.0}


def test_sizes_that_differ_from_request_to_request_are_dynamic(tmp_path: Path) -> None:
    assert proved(tmp_path, shapes=((1,), (5,)))["signature"]["outputs"][0]["shape"] == [-1, -1]


def test_the_packaged_server_is_asked_all_rows_but_those_that_end_the_process_or_that_nobody_gave_and_are_refused(
    tmp_path: Path,
) -> None:
    errors = {1: "Raised: ValueError: no", 2: "Died: by signal 11", 5: "TookTooLong: 60 s", 6: "Raised: ValueError: no"}
    proved(tmp_path, said(2 * X, errors))
    kept = load_npz(tmp_path / "asked.npz")
    (name,) = sets_in(kept)
    questions, right = from_file(kept, name)
    assert questions.inputs["x"].ravel().tolist() == [0, 1, 3, 4, 7]
    assert right.errors == ("", "Raised: ValueError: no", "", "", "")
    assert questions.origins == (*["example"] * 4, "range")
