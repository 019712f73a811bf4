"""The rows of a window: those of one version and time, from files of which one may be broken, within limits."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shiplift.runtime.drift import window
from shiplift.runtime.drift.entries import REFERENCE, compare, read_reference
from shiplift.runtime.drift.window import read_window
from shiplift.runtime.model.tensors import dump_npz, load_npz
from shiplift.runtime.records.drift import Drifting
from shiplift.runtime.records.tensor import Signature, TensorSpec

DRIFTING = Drifting(
    every_s=60, window_s=60, threshold=0.2, confidence=0.99, min_requests=20, reference_name="v.npz", label="label"
)
SIGNATURE = Signature(
    inputs=(TensorSpec(name="age", datatype="FP32", shape=(-1, 1)),),
    outputs=(TensorSpec(name="score", datatype="FP32", shape=(-1, 1)),),
)


def written(path: Path, *, at: int = 100, version: int = 2, first: int = 0, **columns: list[Any]) -> Path:
    count = len(next(iter(columns.values())))
    own = {
        "at": pa.array([at * 10**6] * count, pa.timestamp("us", tz="UTC")),
        "version": pa.array([version] * count),
        "failed": pa.array([name == "failed" for name in columns.pop("state", ["ok"] * count)]),
        "request": pa.array(range(first, first + count)),
    }
    pq.write_table(
        pa.table({**own, **{name.replace("__", "/"): pa.array(rows) for name, rows in columns.items()}}), path
    )
    return path


def test_rows_of_another_version_or_time_do_not_count_and_a_broken_file_is_named(tmp_path: Path) -> None:
    files = [
        written(tmp_path / "1", input__age=[1.0, 2.0]),
        written(tmp_path / "2", version=1, input__age=["of another schema"]),
        written(tmp_path / "3", at=50, input__age=[4.0]),
        written(tmp_path / "4", input__other=[5.0], first=7),
        tmp_path / "5",
    ]
    files[-1].write_bytes(files[0].read_bytes()[:-40] + b"\0" * 40)
    found = read_window(files, ["input/age"], version=2, since=80)
    assert found.columns == {"input/age": [1.0, 2.0, None]}
    assert found.requests == [0, 1, 2]
    assert [each.partition(":")[0] for each in found.broken] == ["5"]


def test_no_more_rows_are_read_than_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "1", input__x=[[1.0] * 10] * 1000)
    assert 60 < read_window([file], ["input/x"], version=2, since=0, most=100).rows < 140
    monkeypatch.setattr(window, "_MOST_VALUES", 500)
    assert 25 < read_window([file], ["input/x"], version=2, since=0).rows < 80


def test_a_window_is_compared_with_the_validation_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    Path("v").write_bytes(dump_npz({"age": rng.normal(size=300).astype(np.float32), "label": np.arange(300)}))
    order = DRIFTING.model_dump(mode="json")
    assert read_reference(order, SIGNATURE.model_dump(mode="json"), "v") == {"rows": 300}
    inputs = load_npz(Path(REFERENCE))
    assert {name: array.shape for name, array in inputs.items()} == {"input/age": (300, 1)}
    Path("r").write_bytes(dump_npz({**inputs, "output/score": inputs["input/age"], "output/gone": inputs["input/age"]}))
    rows = (rng.normal(size=400) + 2).astype(np.float32).tolist()
    state = ["failed"] * 385 + ["ok"] * 15
    files = [str(written(tmp_path / "1", input__age=rows, output__score=rows, state=state))]
    names = ["input/age", "output/score", "output/gone"]
    found = compare(
        order, {"input/mail": "it is kept as a hash"}, files=files, names=names, reference="r", version=2, since=0
    )
    by_name = {each["column"]: each for each in found["columns"]}
    assert by_name["input/age"]["p"] < 1e-9
    assert by_name["output/score"]["note"] == "15 of the 20 requests that are needed"
    assert by_name["output/gone"]["note"] == "it was not captured"
    assert by_name["input/mail"]["note"] == "it is kept as a hash"
    assert (found["rows"], found["requests"], found["reference_rows"], found["broken"]) == (400, 400, 300, [])
