"""A dataset is scored part by part, each exactly once; what is wrong is named before anything runs, or kept."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from pyarrow import dataset as datasets

from shiplift.runtime.base.errors import DataInvalid, NotFound, OutputTaken, PartsFailed, UsageError
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.offline import dataset as dataset_module
from shiplift.runtime.offline.dataset import Dataset, Unreadable
from shiplift.runtime.offline.output import Output, PartNote, StoredPlan
from shiplift.runtime.offline.part import ScoringJob, score_part
from shiplift.runtime.offline.planning import ScoringPlan, begin, work_of
from shiplift.runtime.offline.running import _digest, finished
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.offline import InputPart, OfflineOrder, OfflinePlan
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.scoring.models import Scorable
from shiplift.runtime.serving.scoring.problems import ScoringProblem
from tests.unit.examples import package as example
from tests.unit.runtime.serving.scoring.schemas import of_columns, of_tensors

ROWS = 10


class Doubling:
    """Answers twice the first input's first column; refuses negative numbers, as a guard does."""

    def __init__(self) -> None:
        self.requests = 0

    async def ask(self, served: ServedModel, inputs: Arrays, wanted: tuple[str, ...], params: str = "") -> list[Arrays]:
        await asyncio.sleep(0)
        self.requests += 1
        values = np.asarray(next(iter(inputs.values())), np.float32).reshape(len(next(iter(inputs.values()))), -1)
        if (values[:, 0] < 0).any():
            raise ScoringProblem(400, "below zero")
        return [{"y": values[:, :1] * 2}]


def table(start: int = 0, **columns: Any) -> pa.Table:
    numbers = np.arange(start, start + ROWS)
    return pa.table({"id": numbers, "x": numbers.astype(np.float64), **columns})


def packaged(served: ServedModel) -> Package:
    return example(signature=served.signature, scoring=served.scoring)


class Place:
    """A dataset of two files, and an output; scores with a stand-in for the server."""

    def __init__(self, folder: Path) -> None:
        self.data, self.out = folder / "data", folder / "out"
        self.data.mkdir()
        self.served = of_columns({"x": "double"})
        self.asked = Doubling()
        for at in range(2):
            self.write(f"{at}.parquet", table(at * ROWS))

    def write(self, name: str, rows: pa.Table, **options: Any) -> None:
        parquet.write_table(rows, self.data / name, **options)

    def order(self, **changes: Any) -> OfflineOrder:
        return OfflineOrder(model="doubling", input=str(self.data), output=str(self.out), **changes)

    def work(self, **changes: Any) -> ScoringPlan:
        return work_of(self.order(**changes), packaged(self.served))

    def job(self, work: ScoringPlan) -> ScoringJob:
        return ScoringJob(
            dataset=Dataset(work.plan.order.input),
            output=Output(str(self.out)),
            columns=work.columns,
            schema=work.schema,
            model=Scorable(served=self.served),
            on_error=work.plan.order.on_error,
            rows=4,
            scratch=Output(str(self.out)).scratch(self.out),
        )

    def score(self, most: int = 1000, **changes: Any) -> list[PartNote]:
        """Scores the parts that are not there yet, at most so many, as a run that is killed then."""
        work = self.work(**changes)
        plan = begin(Output(str(self.out)), work, overwrite=changes.get("overwrite", False))
        left = [part for part in plan.parts if Output(str(self.out)).note(part) is None]
        return [asyncio.run(score_part(self.job(work), part, self.asked)) for part in left[:most]]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What a reader of the output finds."""
        found = datasets.dataset(self.out, format="parquet").to_table().to_pylist()
        return sorted(found, key=lambda row: row["id"])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_every_row_is_answered_once_beside_the_columns_that_are_no_inputs(place: Place) -> None:
    assert [note.rows for note in place.score()] == [ROWS, ROWS]
    assert place.rows == [{"id": number, "prediction": 2.0 * number} for number in range(2 * ROWS)]


def test_a_killed_run_goes_on_and_scores_no_part_twice(place: Place) -> None:
    (first,) = place.score(most=1)
    before = (place.out / f"part-{first.part}.parquet").stat()
    left = place.out / "_shiplift" / "unfinished" / "00001-0000.killed"
    left.mkdir()
    (left / "part").write_text("by a killed worker")
    (second,) = place.score()
    assert second.part != first.part
    assert (place.out / f"part-{first.part}.parquet").stat() == before
    assert len(place.rows) == 2 * ROWS
    assert not left.exists()
    assert not place.score()


def test_a_part_without_its_note_is_scored_again_over_itself(place: Place) -> None:
    place.score()
    (place.out / "_shiplift" / "parts" / "00000-0000.json").unlink()
    assert [note.part for note in place.score()] == ["00000-0000"]
    assert len(place.rows) == 2 * ROWS


def test_a_part_is_some_row_groups_of_a_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_module, "PART_ROWS", 4)
    place.write("0.parquet", table(), row_group_size=2)
    parts = Dataset(str(place.data)).parts("0.parquet", 0)
    assert [(part.groups, part.first, part.rows) for part in parts] == [((0, 2), 0, 4), ((2, 4), 4, 4), ((4, 5), 8, 2)]
    place.score(on_error="skip")
    assert len(place.rows) == 2 * ROWS


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda place: place.write("0.parquet", table(5)), "has changed since part 00000-0000"),
        (lambda place: place.write("2.parquet", table(5)), "2.parquet in .* is new"),
        (lambda place: (place.data / "1.parquet").unlink(), "1.parquet in .* is gone"),
    ],
)
def test_a_changed_dataset_is_refused(place: Place, change: Any, said: str) -> None:
    place.score(most=1)
    change(place)
    with pytest.raises(OutputTaken, match=said):
        place.score()
    assert len(place.score(overwrite=True)) >= 1


def test_a_file_that_was_written_again_with_the_same_bytes_is_the_same(place: Place) -> None:
    place.score(most=1)
    (place.data / "0.parquet").touch()
    assert len(place.score()) == 1


@pytest.mark.parametrize("change", [{"on_error": "column"}, {"limit": 3}, {"keep": ()}, {"batch": 7}])
def test_an_order_that_says_something_else_is_refused(place: Place, change: dict[str, Any]) -> None:
    place.score(most=1)
    with pytest.raises(OutputTaken, match=f"begun with {next(iter(change))}"):
        place.score(**change)


def test_another_version_is_refused_and_says_which_one_began(place: Place) -> None:
    place.score(most=1)
    work = work_of(place.order(), packaged(place.served).model_copy(update={"version": 9}))
    with pytest.raises(OutputTaken, match=r"was begun with .*/2, and this would go on with .*/9"):
        begin(Output(str(place.out)), work, overwrite=False)


def test_a_folder_with_other_files_is_left_alone(place: Place) -> None:
    place.out.mkdir()
    (place.out / "thesis.txt").write_text("")
    with pytest.raises(OutputTaken, match="files that no scoring left"):
        place.score()


def test_two_commands_don_t_write_to_one_output(place: Place) -> None:
    output = Output(str(place.out))
    with output.locked(), pytest.raises(OutputTaken, match="another command"), output.locked():
        pass


# --- rows that the model refuses ---


def with_refused(place: Place) -> None:
    rows = table()
    x = rows["x"].to_numpy().copy()
    x[[3, 8]] = -1
    place.write("0.parquet", rows.set_column(1, "x", pa.array(x)))


def test_a_refused_row_ends_it_by_its_number(place: Place) -> None:
    with_refused(place)
    with pytest.raises(DataInvalid, match=r"refuses row 3 of 0\.parquet: below zero"):
        place.score()
    assert not list(place.out.glob("part-*"))


def test_refused_rows_are_left_out_and_kept_with_their_reasons(place: Place) -> None:
    with_refused(place)
    assert [note.refused for note in place.score(on_error="skip")] == [2, 0]
    assert [row["id"] for row in place.rows[:ROWS]] == [0, 1, 2, 4, 5, 6, 7, 9, 10, 11]
    lines = (place.out / "_shiplift" / "refused" / "00000-0000.ndjson").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"file": "0.parquet", "row": row, "reason": "below zero"} for row in (3, 8)
    ]


def test_refused_rows_say_why_in_a_column(place: Place) -> None:
    with_refused(place)
    place.score(on_error="column")
    assert place.rows[3] == {"id": 3, "prediction": None, "error": "below zero"}
    assert place.rows[4] == {"id": 4, "prediction": 8.0, "error": None}


def test_a_missing_number_where_none_can_be_is_one_row_s_fault(place: Place) -> None:
    place.served = of_columns({"x": "long"})
    for name in ("0.parquet", "1.parquet"):
        place.write(name, pa.table({"id": range(ROWS), "x": pa.array([*range(9), None], pa.int64())}))
    assert [note.refused for note in place.score(on_error="skip")] == [1, 1]


def test_a_damaged_part_is_named_and_the_others_go_on(place: Place) -> None:
    whole = (place.data / "1.parquet").read_bytes()
    (place.data / "1.parquet").write_bytes(whole[: len(whole) // 2])
    work = place.work()
    assert [(failure.file, bool(failure.reason)) for failure in work.unreadable] == [("1.parquet", True)]
    assert len(place.score()) == 1
    stored = Output(str(place.out)).plan()
    assert isinstance(stored, StoredPlan)
    plan = OfflinePlan(
        package=packaged(place.served),
        digest=_digest(stored),
        rows=ROWS,
        parts=1,
        done=0,
        shares=(),
        unreadable=work.unreadable,
    )
    with pytest.raises(PartsFailed, match=r"1 of 2 parts are in .*1\.parquet"):
        finished(place.order(), plan, ())
    (place.data / "1.parquet").write_bytes(whole)
    assert [note.part for note in place.score()] == ["00001-0000"]


def test_bytes_that_rot_inside_a_part_are_found(place: Place) -> None:
    body = bytearray((place.data / "0.parquet").read_bytes())
    body[4:200] = b"\xff" * 196
    (place.data / "0.parquet").write_bytes(bytes(body))
    with pytest.raises(Unreadable):
        place.score()


# --- what is wrong is found before anything runs ---


@pytest.mark.parametrize(
    ("rows", "kind", "said"),
    [
        (pa.table({"id": [1]}), DataInvalid, r"1.parquet in .* has no column 'x', which the model takes; it has 'id'"),
        (pa.table({"id": [1], "x": ["a"]}), DataInvalid, r"1.parquet in .* has columns of wrong types \(x: string\)"),
        (pa.table({"x": [1.0]}), DataInvalid, "1.parquet in .* has other columns or types than 0.parquet: id is miss"),
    ],
)
def test_a_wrong_column_is_named_with_its_file(place: Place, rows: pa.Table, kind: type[Exception], said: str) -> None:
    place.write("1.parquet", rows)
    with pytest.raises(kind, match=said):
        place.work()


def test_wrong_orders_say_what_to_do(place: Place) -> None:
    with pytest.raises(UsageError, match="has no column 'who' to keep"):
        place.work(keep=("who",))
    with pytest.raises(NotFound):
        work_of(place.order().model_copy(update={"input": f"{place.data}/nothing"}), packaged(place.served))
    for name in ("0.parquet", "1.parquet"):
        place.write(name, table().slice(0, 0))
    with pytest.raises(DataInvalid, match="has no rows"):
        place.work()
    (place.data / "2.xlsx").write_bytes(b"")
    with pytest.raises(DataInvalid, match=r"2\.xlsx in .* is in no format"):
        place.work()


def test_a_kept_column_can_t_have_the_name_of_the_answer(place: Place) -> None:
    for name in ("0.parquet", "1.parquet"):
        place.write(name, table(prediction=pa.array(range(ROWS))))
    with pytest.raises(UsageError, match="'prediction' would have the same name"):
        place.work()
    place.score(keep=("id",))
    assert place.rows[2] == {"id": 1, "prediction": 2.0}


# --- forms of data ---


def test_csv_has_the_types_of_the_model_s_columns(place: Place) -> None:
    for name in ("0.parquet", "1.parquet"):
        (place.data / name).unlink()
    csv.write_csv(pa.table({"id": range(ROWS), "x": range(ROWS)}), place.data / "rows.csv")
    work = place.work()
    typed = Dataset(str(place.data), (("x", pa.float64()),))
    begin(Output(str(place.out)), work, overwrite=False)
    job = place.job(work)
    note = asyncio.run(score_part(replace(job, dataset=typed), work.plan.parts[0], place.asked))
    assert (note.rows, place.rows[3]) == (ROWS, {"id": 3, "prediction": 6.0})


def test_ndjson_with_a_limit(place: Place) -> None:
    for name in ("0.parquet", "1.parquet"):
        (place.data / name).unlink()
    lines = [json.dumps({"id": row, "x": float(row)}) for row in range(ROWS)]
    for name in ("a.ndjson", "b.ndjson"):
        (place.data / name).write_text("\n".join(lines))
    assert [note.rows for note in place.score(limit=13)] == [10, 3]


def test_a_matrix_is_a_column_of_lists_or_a_column_for_each_feature(place: Place) -> None:
    place.served = of_tensors("float32", -1, 3)
    flat = {f"f{at}": pa.array(np.arange(ROWS, dtype=np.float32) + at) for at in range(3)}
    nested = pa.array(
        np.stack([column.to_numpy() for column in flat.values()], axis=1).tolist(), pa.list_(pa.float32())
    )
    expected = [2.0 * row for row in range(ROWS)]
    for columns, keep in (({**flat, "id": pa.array(range(ROWS))}, ("id",)), ({"x": nested, "id": range(ROWS)}, None)):
        for name in ("0.parquet", "1.parquet"):
            place.write(name, pa.table(columns))
        place.score(keep=keep, overwrite=True)
        assert [row["prediction"] for row in place.rows[::2]] == expected
    place.write("0.parquet", pa.table({**flat, "more": pa.array(np.ones(ROWS, np.float32))}))
    with pytest.raises(DataInvalid, match="has 4 columns that could be inputs"):
        place.work()


def test_a_part_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    part = InputPart(of_file=0, at=0, file="wide.parquet", groups=(0, 1), rows=20_000)
    wide = pa.table({f"c{at}": np.random.default_rng(at).random(20_000) for at in range(500)})
    parquet.write_table(wide, tmp_path / "wide.parquet")
    dataset = Dataset(str(tmp_path))
    assert dataset.rows_at_once(part) < 5000
    read = [batch.num_rows for batch in dataset.batches(part, ["c1"], dataset.rows_at_once(part))]
    assert sum(read) == 20_000
    assert max(read) <= dataset.rows_at_once(part)
