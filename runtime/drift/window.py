"""The captured rows of a window, read from Parquet files: as many as are needed, of one version.

The files are Shiplift's own, but their values are clients', and a file may be broken: only a sandbox reads them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MOST_ROWS = 20_000
_MOST_VALUES = 4_000_000  # of all columns together
_BATCH = 8192
_SEED = 20240229
_MICRO = 1_000_000
OWN_COLUMNS = ("at", "version", "failed", "request")


@dataclass(kw_only=True)
class DriftWindow:
    """The rows: each column's values, which of them failed, from how many requests; and files that are broken.

    If there were more rows than are read, they are drawn at random, each as likely as any other.
    """

    columns: dict[str, list[Any]] = field(default_factory=dict)
    failed: list[bool] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows were read."""
        return len(self.failed)


def read_window(
    files: Sequence[Path],
    columns: Sequence[str],
    *,
    version: int | None = None,
    since: float = 0.0,
    until: float = float("inf"),
    most: int = MOST_ROWS,
) -> DriftWindow:
    """Reads `columns` (`input/age`) of the rows of a version (None: of any), captured from `since` to before `until`.

    Times are in seconds since the epoch. A column that a file lacks is None in its rows.
    """
    rng, window, request = np.random.default_rng(_SEED), DriftWindow(), 0
    window.columns = {name: [] for name in columns}
    inside = partial(_within, version=version, since=since, until=until)
    counts = {file: _counted(file, columns, inside, window) for file in files}
    total, values = (sum(each[at] for each in counts.values()) for at in (0, 1))
    kept = min(most, max(1, _MOST_VALUES * total // max(1, values)))
    for file in (file for file, (rows, _) in counts.items() if rows):
        for batch in _batches(file, columns):
            part = inside(batch)
            picked = part if total <= kept else part.filter(pa.array(rng.random(part.num_rows) < kept / total))
            request = _take(window, picked, request)
    return window


def _counted(
    file: Path, columns: Sequence[str], inside: Callable[[pa.Table], pa.Table], window: DriftWindow
) -> tuple[int, int]:
    """How many rows of a file count, and how many values these have about; none if it is broken, which is noted."""
    try:
        rows = sum(inside(batch).num_rows for batch in _batches(file, ()))
        with pq.ParquetFile(file) as source:
            metadata = source.metadata
        groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
        leaves = [group.column(at) for group in groups for at in range(group.num_columns)]
        wanted = [leaf for leaf in leaves if leaf.path_in_schema.split(".list.")[0] in columns]
        values = sum(leaf.num_values for leaf in wanted)
        for _ in _batches(file, columns):  # the pages too are read before they are believed
            pass
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        window.broken.append(f"{file.name}: {' '.join(str(error).split())[:200]}")
        return 0, 0
    return rows, values * rows // max(1, metadata.num_rows)


def _batches(file: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    with pq.ParquetFile(file) as source:
        there = set(source.schema_arrow.names)
        wanted = [*OWN_COLUMNS, *(name for name in columns if name in there)]
        for batch in source.iter_batches(batch_size=_BATCH, columns=wanted):
            yield pa.Table.from_batches([batch])


def _within(part: pa.Table, version: int | None, since: float, until: float) -> pa.Table:
    at = part.column("at").cast(pa.int64())
    inside = pc.greater_equal(at, int(since * _MICRO))
    if version is not None:
        inside = pc.and_(inside, pc.equal(part.column("version"), version))
    if until != float("inf"):
        inside = pc.and_(inside, pc.less(at, int(until * _MICRO)))
    return part.filter(inside)


def _take(window: DriftWindow, part: pa.Table, request: int) -> int:
    """Adds rows. Those of a request follow each other, so that a new number begins a new request."""
    if not part.num_rows:
        return request
    numbers = part.column("request").to_numpy()
    changes = np.cumsum(np.diff(numbers, prepend=numbers[0]) != 0) + request
    window.requests += changes.tolist()
    window.failed += part.column("failed").to_pylist()
    for name, values in window.columns.items():
        values.extend(part.column(name).to_pylist() if name in part.column_names else [None] * part.num_rows)
    return int(changes[-1]) + 1
