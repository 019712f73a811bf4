"""A dataset as files of one format: which parts it has, which columns, and its rows in batches, never all at once."""

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import fsspec
import pyarrow as pa
from fsspec.core import url_to_fs
from pyarrow import csv, json, parquet

from shiplift.runtime.base.errors import DataInvalid, NotFound
from shiplift.runtime.base.text import printable
from shiplift.runtime.records.offline import InputFile, InputPart

PARQUET, CSV, NDJSON = "parquet", "csv", "ndjson"
FORMATS = {".parquet": PARQUET, ".pq": PARQUET, ".csv": CSV, ".ndjson": NDJSON, ".jsonl": NDJSON}
PART_ROWS, PART_BYTES = 1 << 20, 256 << 20  # a part ends when it has so many; row groups are not divided
_BLOCK = 4 << 20  # of CSV and NDJSON, read at a time
_ROWS, _AT_ONCE_BYTES = 1 << 16, 16 << 20  # of a part, in memory at a time
_HASHED = 1 << 20
_BROKEN = (pa.ArrowException, OSError, ValueError)


class Unreadable(Exception):
    """A part can't be read."""


@dataclass(frozen=True)
class Dataset:
    """A file, or the files below a folder; a name that begins with `_` or `.` is none of them.

    `types` are those of columns in CSV, which doesn't say.
    """

    uri: str
    types: tuple[tuple[str, pa.DataType], ...] = ()

    def files(self) -> tuple[InputFile, ...]:
        """The files, by their paths.

        Raises:
            NotFound: there is nothing.
            DataInvalid: a file is in no format that can be read, or they are in different ones.
        """
        fs, root = self._place
        if not fs.exists(root):
            raise NotFound(f"there is no {self.uri}", do="Name a file, or a folder of Parquet, CSV or NDJSON files.")
        names = [root] if fs.isfile(root) else sorted(path for path in fs.find(root) if _is_data(path, root))
        found = tuple(InputFile(path=self._relative(name), **_state(fs, name)) for name in names)
        kinds = {each.path: format_of(each.path) for each in found}
        if unknown := next((path for path, kind in kinds.items() if not kind), None):
            raise DataInvalid(
                f"{unknown} in {self.uri} is in no format that can be scored",
                do=f"Give files that end with {', '.join(FORMATS)}; names that begin with `_` or `.` are left out.",
            )
        if len(set(kinds.values())) > 1:
            raise DataInvalid(
                f"{self.uri} has files in several formats: {', '.join(sorted(set(kinds.values())))}",
                do="Score them one folder after another.",
            )
        if not found:
            raise DataInvalid(f"{self.uri} has no files", do="Give a folder of Parquet, CSV or NDJSON files.")
        return found

    def schema(self, file: str) -> pa.Schema:
        """The columns of a file.

        Raises:
            Unreadable: it is damaged, or is not such a file.
        """
        with self._reading(file) as source:
            if format_of(file) == PARQUET:
                return parquet.read_schema(source)
            with self._stream(file, source) as reader:
                return reader.schema

    def parts(self, file: str, of_file: int) -> list[InputPart]:
        """The parts of a file, which is at that place among the files; none if it has no rows.

        Raises:
            Unreadable: as above.
        """
        if format_of(file) != PARQUET:
            return [InputPart(of_file=of_file, at=0, file=file)]
        with self._reading(file) as source:
            metadata = parquet.ParquetFile(source).metadata
            sizes = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
            return _divided(file, of_file, [(group.num_rows, group.total_byte_size) for group in sizes])

    def batches(self, part: InputPart, columns: Sequence[str], rows: int) -> Generator[pa.RecordBatch, None, None]:
        """A part's rows, at most `rows` at a time.

        Raises:
            Unreadable: as above.
        """
        left = part.rows
        with self._reading(part.file) as source:
            for batch in self._all_batches(part, source, columns, rows):
                for start in range(0, batch.num_rows, rows):
                    taken = batch.slice(start, rows if left < 0 else min(rows, left))
                    left = left if left < 0 else left - taken.num_rows
                    if taken.num_rows:
                        yield taken
                    if left == 0:
                        return

    def rows_at_once(self, part: InputPart) -> int:
        """How many of a part's rows are in memory at a time, at most."""
        if format_of(part.file) != PARQUET:
            return _ROWS
        with self._reading(part.file) as source:
            metadata = parquet.ParquetFile(source).metadata
            size = sum(metadata.row_group(group).total_byte_size for group in range(*part.groups))
        return int(max(1, min(_ROWS, _AT_ONCE_BYTES * max(part.rows, 1) // max(size, 1))))

    def count(self, file: str, limit: int) -> int:
        """How many rows a file in a text format has, or `limit` if there are more.

        Raises:
            Unreadable: as above.
        """
        found = 0
        with self._reading(file) as source, self._stream(file, source) as reader:
            for batch in reader:
                found += batch.num_rows
                if found >= limit:
                    return limit
        return found

    def digest(self, part: InputPart, columns: Sequence[str]) -> str:
        """The SHA-256 of what a part is read from: its columns' bytes, or in a text format the whole file.

        Raises:
            Unreadable: as above.
        """
        hasher = hashlib.sha256()
        with self._reading(part.file) as source:
            for start, size in self._ranges(part, source, columns):
                source.seek(start)
                left = size
                while left and (chunk := source.read(min(left, _HASHED))):
                    hasher.update(chunk)
                    left -= len(chunk)
        return hasher.hexdigest()

    # --- files ---

    @property
    def _place(self) -> tuple[Any, str]:
        fs, root = url_to_fs(self.uri)
        return fs, root.rstrip("/")

    def _relative(self, path: str) -> str:
        _, root = self._place
        return path.removeprefix(f"{root}/") if path != root else PurePosixPath(path).name

    def _absolute(self, file: str) -> str:
        fs, root = self._place
        return root if fs.isfile(root) else f"{root}/{file}"

    @contextmanager
    def _reading(self, file: str) -> Iterator[Any]:
        fs, _ = self._place
        try:
            with fs.open(self._absolute(file), "rb") as source:
                yield source
        except _BROKEN as error:
            raise Unreadable(printable(" ".join(str(error).split()), limit=300)) from error

    def _all_batches(self, part: InputPart, source: Any, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        if format_of(part.file) == PARQUET:
            file = parquet.ParquetFile(source, pre_buffer=False, buffer_size=_BLOCK)
            groups = list(range(*part.groups))
            yield from file.iter_batches(batch_size=rows, row_groups=groups, columns=list(columns), use_threads=False)
            return
        with self._stream(part.file, source) as reader:
            for batch in reader:
                yield batch.select(list(columns))

    def _stream(self, file: str, source: Any) -> Any:
        if format_of(file) == CSV:
            return csv.open_csv(
                source,
                read_options=csv.ReadOptions(block_size=_BLOCK, use_threads=False),
                convert_options=csv.ConvertOptions(column_types=dict(self.types), strings_can_be_null=True),
            )
        return json.open_json(source, read_options=json.ReadOptions(block_size=_BLOCK, use_threads=False))

    def _ranges(self, part: InputPart, source: Any, columns: Sequence[str]) -> list[tuple[int, int]]:
        """The places and sizes of the bytes that a part is read from."""
        if format_of(part.file) != PARQUET:
            return [(0, source.seek(0, 2))]
        metadata = parquet.ParquetFile(source).metadata
        return [
            (chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size)
            for group in range(*part.groups)
            for chunk in map(metadata.row_group(group).column, range(metadata.num_columns))
            if chunk.path_in_schema.split(".")[0] in columns or chunk.path_in_schema in columns
        ]


def format_of(path: str) -> str:
    """A file's format, by its name; empty if it is none that can be read."""
    return FORMATS.get(PurePosixPath(path).suffix.lower(), "")


def _is_data(path: str, root: str) -> bool:
    return not any(name.startswith(("_", ".")) for name in path.removeprefix(root).split("/") if name)


def _state(fs: fsspec.AbstractFileSystem, path: str) -> dict[str, Any]:
    info = fs.info(path)
    stamp = next((info[key] for key in ("ETag", "etag", "mtime", "LastModified") if info.get(key)), "")
    return {"size_bytes": int(info.get("size") or 0), "stamp": str(stamp)}


def _divided(file: str, of_file: int, groups: Sequence[tuple[int, int]]) -> list[InputPart]:
    """Consecutive row groups, of so many rows and bytes each, as parts of about the same size."""
    parts: list[InputPart] = []
    first = begin = rows = size = 0
    for at, (more_rows, more_bytes) in enumerate(groups):
        rows, size = rows + more_rows, size + more_bytes
        if rows >= PART_ROWS or size >= PART_BYTES or at == len(groups) - 1:
            if rows:
                place, groups_of_it = len(parts), (begin, at + 1)
                parts.append(
                    InputPart(of_file=of_file, at=place, file=file, groups=groups_of_it, first=first, rows=rows)
                )
            first, begin, rows, size = first + rows, at + 1, 0, 0
    return parts
