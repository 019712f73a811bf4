"""Tables that are small as files and huge in memory are refused before they are read."""

import io
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.model import tables
from shiplift.runtime.model.tensors import DataLimits

pa: Any = pytest.importorskip("pyarrow")
SMALL = DataLimits(unpacked_bytes=64 << 20, samples=50_000_000)


def parquet(**columns: Any) -> bytes:
    from pyarrow import parquet as pq

    body = io.BytesIO()
    pq.write_table(pa.table(columns), body)
    return body.getvalue()


def test_a_table_comes_back_as_it_was_written() -> None:
    columns = {"x": np.arange(40_000.0), "city": np.array(["Ulm", "Bonn"] * 20_000), "n": np.arange(40_000)}
    read = tables.read_parquet(parquet(**columns), "a.parquet", SMALL)
    for name, array in columns.items():
        assert read[name].tolist() == array.tolist()
    assert read["x"].dtype == np.float64


def test_a_value_that_is_repeated_a_million_times_is_counted_before_it_is_read() -> None:
    body = parquet(x=np.zeros(20_000_000))
    assert len(body) < 1 << 20
    with pytest.raises(DataInvalid, match="unpacks to 160000000 bytes, the limit is 67108864"):
        tables.read_parquet(body, "a.parquet", SMALL)


def test_long_text_that_is_repeated_is_counted_before_it_is_written_out() -> None:
    body = parquet(x=pa.DictionaryArray.from_arrays(np.zeros(100_000, np.int32), ["x" * 100_000]))
    assert len(body) < 4 << 20
    with pytest.raises(DataInvalid, match="the limit is 67108864"):
        tables.read_parquet(body, "a.parquet", SMALL)


def test_too_many_rows_or_columns_are_refused() -> None:
    with pytest.raises(DataInvalid, match="has 1000 samples, the limit is 10"):
        tables.read_parquet(parquet(x=np.zeros(1000)), "a.parquet", DataLimits(samples=10))
    with pytest.raises(DataInvalid, match="has 1000 samples, the limit is 10"):
        tables.read_csv(b"x\n" + b"1\n" * 1000, "a.csv", DataLimits(samples=10))
    with pytest.raises(DataInvalid, match="has 30000 columns, the limit is 20000"):
        tables.read_csv(b",".join(b"c%d" % n for n in range(30_000)) + b"\n", "a.csv", SMALL)


def test_a_csv_is_read_in_pieces_and_stops_at_its_limit() -> None:
    body = b"x,y\n" + b"1,ab\n" * 40_000
    assert len(tables.read_csv(body, "a.csv", SMALL)["x"]) == 40_000
    with pytest.raises(DataInvalid, match=r"a\.csv unpacks to"):
        tables.read_csv(body, "a.csv", DataLimits(unpacked_bytes=1 << 20))
