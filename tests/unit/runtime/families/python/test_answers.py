"""What a Python model's recorded answers decide: its outputs, its batches, and whether they are reproducible."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.families.python.answers import compare
from shiplift.runtime.model.tensors import dump_npz, load_npz
from tests.unit.examples import tensor

X = np.arange(8, dtype=np.float32).reshape(8, 1)


def compared(folder: Path, **outputs: Any) -> dict[str, Any]:
    """The result for a model whose outputs `y`, by set, are the input doubled, or what `outputs` says."""
    sets = dict.fromkeys(("example", "again", "rows", "batch"), 2 * X) | outputs
    arrays = {f"{name}/output/y": array for name, array in sets.items() if array is not None}
    arrays |= {f"{name}/input/x": X for name in sets}
    (folder / "answers.npz").write_bytes(dump_npz(arrays))
    return compare(
        answers=str(folder / "answers.npz"),
        sets=[name for name, array in sets.items() if array is not None],
        inputs=[tensor("x", -1, 1).model_dump(mode="json")],
        out=str(folder),
    )


def test_a_model_whose_batches_answer_as_their_samples_takes_any_batch(tmp_path: Path) -> None:
    result = compared(tmp_path)
    assert result["signature"] == {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
    }
    assert [(case["max_abs"], case["problem"]) for case in result["parity"]] == [(0, ""), (0, "")]
    assert result["notes"] == []
    np.testing.assert_array_equal(load_npz(tmp_path / "reference.npz")["output/y"], 2 * X)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (2 * X + 1, "answers 0.0 for 'y', the served form answers 1.0"),
        (2 * X * (1 + (np.arange(8) == 1))[:, None], "to row 1 of the first rows (in a batch)"),
        ((2 * X)[:, 0], "'y' has shape [8] instead of [8, 1]"),
        (None, "does not answer several at once"),
        ((2 * X).astype(np.int64), "answers integers"),
    ],
)
def test_a_model_whose_batches_answer_otherwise_gets_one_sample_at_a_time(
    tmp_path: Path, batch: Any, said: str
) -> None:
    result = compared(tmp_path, batch=batch, example=2 * X + 1, again=2 * X + 1)
    assert [spec["shape"] for kind in ("inputs", "outputs") for spec in result["signature"][kind]] == [[1, 1], [1, 1]]
    (note,) = result["notes"]
    assert note.startswith("Warning: the model gets one sample at a time, without batching")
    assert said in note
    np.testing.assert_array_equal(load_npz(tmp_path / "reference.npz")["output/y"], 2 * X)  # to each sample alone


@pytest.mark.parametrize("again", [2 * X + 1, X * np.nan])
def test_a_model_that_answers_otherwise_the_second_time_is_refused(tmp_path: Path, again: Any) -> None:
    with pytest.raises(ExportFailed, match=r"not repeatable: to row 0 of .* \(asked of a second process\)"):
        compared(tmp_path, again=again)


def test_an_example_that_is_answered_with_nan_fails_parity(tmp_path: Path) -> None:
    """It is repeatable, but production is checked with these answers."""
    missing = np.where(X > 3, np.nan, X)
    result = compared(tmp_path, **dict.fromkeys(("example", "again", "rows", "batch"), missing))
    assert {case["problem"] for case in result["parity"]} == {"'y' holds NaN"}


def test_sizes_that_differ_from_request_to_request_are_dynamic(tmp_path: Path) -> None:
    wide = np.ones((8, 5), np.float32)
    result = compared(tmp_path, example=wide, again=wide)
    assert result["signature"]["outputs"][0]["shape"] == [-1, -1]


@pytest.mark.parametrize("rows", [(2 * X).astype(np.int64), (2 * X)[:, 0]])
def test_an_output_whose_type_or_rank_depends_on_the_request_is_refused(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(ExportFailed, match="'y' has another type or rank"):
        compared(tmp_path, rows=rows)
