"""`shiplift predict` with a real package: the same numbers as production, and a killed run goes on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

from shiplift.runtime.base.errors import NotAdmitted, NotFound
from shiplift.runtime.records.offline import OfflineOrder, OfflineResult
from tests.integration.conftest import Lab, Released, digits, until

FILES, ROWS = 4, 400


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Digits as a column of lists, with an id."""
    images, _ = digits()
    folder = tmp_path / "rows"
    folder.mkdir()
    for at in range(FILES):
        some = images[at * ROWS : (at + 1) * ROWS]
        table = pa.table({"id": range(at * ROWS, at * ROWS + len(some)), "image": pa.array(list(some))})
        parquet.write_table(table, folder / f"{at}.parquet")
    return folder


def order(model: str, rows: Path, **changes: Any) -> OfflineOrder:
    return OfflineOrder(model=model, input=str(rows), output=str(rows.parent / "out"), **changes)


def answers(rows: Path) -> Any:
    return dataset.dataset(rows.parent / "out", format="parquet").to_table().sort_by("id")


def test_the_answers_are_production_s(lab: Lab, champion: Released, rows: Path) -> None:
    *_, result = lab.engine.score(order(champion.model, rows))
    assert isinstance(result, OfflineResult)
    assert (result.version, result.rows, result.parts) == (champion.version, FILES * ROWS, FILES)
    found = answers(rows)
    assert found["id"].to_pylist() == list(range(FILES * ROWS))
    images, _ = digits()
    asked = lab.engine.discover(champion.model)
    (name,) = [spec.name for spec in asked.signature.inputs]
    expected = asked.infer({name: images[:8]})
    column = next(each for each in found.column_names if each != "id")
    assert any(np.array_equal(np.ravel(each), found[column].to_numpy()[:8]) for each in expected.values())
    assert found.schema.metadata[b"shiplift.version"] == str(champion.version).encode()


def test_a_killed_command_goes_on(lab: Lab, champion: Released, rows: Path) -> None:
    out = rows.parent / "out"
    command = [sys.executable, "-m", "shiplift.pipelines.commands.app", "--home", str(lab.home), "predict"]
    command += [champion.model, "--input", str(rows), "--output", str(out), "--workers", "1", "--batch", "1", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    until(lambda: list(out.glob("_shiplift/parts/*.json")) or process.poll() is not None)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*.parquet")}
    again = until(lambda: _ended(command), seconds=120)  # the lock goes with the killed process
    assert json.loads(again.splitlines()[-1])["rows"] == FILES * ROWS
    noted = {f"part-{path.stem}.parquet" for path in out.glob("_shiplift/parts/*.json")}
    assert all(path.stat().st_mtime_ns == before.get(path.name, path.stat().st_mtime_ns) for path in _parts(out, noted))
    assert answers(rows)["id"].to_pylist() == list(range(FILES * ROWS))


def test_a_version_that_was_not_promoted_is_refused(lab: Lab, champion: Released, rows: Path) -> None:
    with lab.unannounced():
        version = lab.log_classifier(champion.model)
    with pytest.raises(NotAdmitted, match="was never released"):
        list(lab.engine.score(order(champion.model, rows, version=version)))
    with pytest.raises(NotFound, match="has no version 99"):
        list(lab.engine.score(order(champion.model, rows, version=99)))


def _ended(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.stdout if done.returncode == 0 else ""


def _parts(out: Path, names: set[str]) -> list[Path]:
    return [out / name for name in names]
