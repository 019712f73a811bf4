"""How the answers of a pipeline are judged, where some outputs have any number of rows for a request."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.model.tensors import dump_npz
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.bundles.scoring import judge
from tests.unit.examples import tensor

SIGNATURE = Signature(
    inputs=(tensor("x", 1, 2),), outputs=(tensor("box", -1, 4), tensor("label", 1, 1, datatype="INT64"))
)
COUNT = 6


def judged(folder: Path, *, labelled: bool = True, **answers: Any) -> dict[str, Any]:
    labels = {"label": np.arange(COUNT)} if labelled else {}
    (folder / "validation.npz").write_bytes(dump_npz({"x": np.zeros((COUNT, 2), np.float32), **labels}))
    (folder / "answers.npz").write_bytes(dump_npz(answers))
    return judge(
        validation=[str(folder / "validation.npz"), "validation.npz"],
        signature=SIGNATURE.model_dump(mode="json"),
        data={"min_samples": COUNT},
        unpacked_mb=1,
        samples=100,
        answers=str(folder / "answers.npz"),
        metric="",
    )


def test_outputs_of_any_number_of_rows_are_no_part_of_the_score(tmp_path: Path) -> None:
    boxes, classes = np.zeros((17, 4), np.float32), np.arange(COUNT).reshape(-1, 1)
    (whole,) = judged(tmp_path, box=boxes, label=classes)["candidates"]
    assert (whole["score"], whole["samples"], whole["dropped"]) == (1.0, COUNT, "")
    classes[0] = 5
    (whole,) = judged(tmp_path, box=boxes, label=classes)["candidates"]
    assert whole["score"] == pytest.approx(5 / 6)


def test_labels_need_an_output_with_one_row_for_each_request(tmp_path: Path) -> None:
    boxes = np.zeros((17, 4), np.float32)
    with pytest.raises(DataInvalid, match=r"one row for each of the 6 requests.*box \[17, 4\]"):
        judged(tmp_path, box=boxes)
    assert judged(tmp_path, labelled=False, box=boxes)["candidates"][0]["score"] is None
