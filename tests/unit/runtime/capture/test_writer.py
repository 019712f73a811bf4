"""From a ring to files: nothing is lost or doubled, a full disk is told of, and hostile rings are not believed."""

import os
import struct
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from shiplift.runtime.base.errors import StorageFull
from shiplift.runtime.capture import folder as folders
from shiplift.runtime.capture.folder import CaptureFolder
from shiplift.runtime.capture.ring import Ring
from shiplift.runtime.capture.writer import CaptureWriter
from shiplift.runtime.records.capturing import Capturing
from tests.unit.runtime.capture.rings import CAPACITY, NOW, Server

M = Capturing(share=1.0, limit_bytes=10**9, retention_s=86400, hash=("email",), omit=("name",), key="email")


def writer_of(work: Path, **options: float) -> CaptureWriter:
    settings = {"capacity": CAPACITY, "flush_s": 0, "clock": lambda: NOW} | options
    return CaptureWriter(work / "kept", "secret", **settings)  # type: ignore[arg-type]


@pytest.fixture
def server(tmp_path: Path) -> Server:
    found = Server(tmp_path / "rings")
    writer_of(tmp_path).look(tmp_path / "rings", {"m": M})
    return found


def look(work: Path, writer: CaptureWriter) -> None:
    writer.look(work / "rings", {"m": M})


def kept(work: Path) -> CaptureFolder:
    return CaptureFolder(work / "kept" / "m", lambda: NOW)


def rows(work: Path) -> list[dict[str, object]]:
    table = kept(work).read()
    return table.to_pylist() if table is not None else []


def test_fields_are_hashed_or_left_out_and_files_are_private(tmp_path: Path, server: Server) -> None:
    server.puts(b"ada@example.org", 2.5)
    look(tmp_path, writer_of(tmp_path))
    (row,) = rows(tmp_path)
    assert set(row) == {"at", "version", "failed", "request", "input/email", "input/amount", "output/score"}
    assert (row["input/amount"], row["output/score"], row["version"]) == (2.5, 0.5, 3)
    assert len(str(row["input/email"])) == 64
    files = [*(tmp_path / "kept" / "m").iterdir()]
    assert {oct(file.stat().st_mode & 0o777) for file in files} == {"0o600"}
    assert not any(b"ada@example.org" in file.read_bytes() for file in files)


def test_a_writer_that_is_killed_at_any_line_loses_and_doubles_nothing(tmp_path: Path, server: Server) -> None:
    server.puts(b"a", 1)
    with mock.patch.object(Ring, "advance", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        look(tmp_path, writer_of(tmp_path))
    server.puts(b"b", 2)
    writer = writer_of(tmp_path)
    look(tmp_path, writer)
    look(tmp_path, writer)
    assert sorted(str(row["input/amount"]) for row in rows(tmp_path)) == ["1.0", "2.0"]


def test_a_full_disk_stops_capture_and_is_told_of_until_there_is_room(tmp_path: Path, server: Server) -> None:
    steady = iter(range(0, 10_000, 40))
    writer = writer_of(tmp_path, steady=lambda: next(steady))  # type: ignore[arg-type]
    server.puts(b"a", 1)
    full = StorageFull("no space is left", do="Free some.")
    with mock.patch.object(folders, "_write", side_effect=full):
        look(tmp_path, writer)
    assert "capture has stopped: no space is left" in kept(tmp_path).state().problem
    assert set(writer.problems) == {"m"}
    server.puts(b"b", 2)
    look(tmp_path, writer)
    assert (kept(tmp_path).state().problem, writer.problems) == ("", {})
    assert sorted(str(row["input/amount"]) for row in rows(tmp_path)) == ["1.0", "2.0"]


def test_a_hostile_ring_is_emptied_and_told_of(tmp_path: Path, server: Server) -> None:
    writer = writer_of(tmp_path)
    for record in (
        struct.pack("<II", 1, 8),
        struct.pack("<IIQqIIQ", 1, 48, 0, 0, 0, 9, 0) + os.urandom(8),
        b"\xff" * 64,
    ):
        server.raw(record)
        look(tmp_path, writer)
        assert "can't be read" in kept(tmp_path).state().problem
    server.puts(b"\xff\xfe not UTF-8", 1)
    look(tmp_path, writer)
    assert kept(tmp_path).state().problem == ""
    assert len(rows(tmp_path)) == 1


def test_a_persons_rows_are_deleted_from_all_files_and_from_what_is_not_written_yet(
    tmp_path: Path, server: Server
) -> None:
    writer = writer_of(tmp_path)
    for email in (b"ada", b"bob", b"ada"):
        server.puts(email, 1, NOW - 10)
        look(tmp_path, writer)
    server.puts(b"ada", 1, NOW - 1)
    assert kept(tmp_path).delete("email", "ada", "secret") == 2
    server.puts(b"ada", 1, NOW + 1)
    look(tmp_path, writer)
    assert len(rows(tmp_path)) == 2  # Bob's, and Ada's of later
    assert kept(tmp_path).delete("email", "nobody", "secret") == 0


def test_a_deletion_that_is_killed_is_finished(tmp_path: Path, server: Server) -> None:
    writer = writer_of(tmp_path)
    for email in (b"ada", b"bob"):
        server.puts(email, 1)
        look(tmp_path, writer)
    with (
        mock.patch.object(CaptureFolder, "_apply", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        kept(tmp_path).delete("email", "ada", "secret")
    (tmp_path / "kept" / "m" / "1-2-3-ab.parquet.new").write_bytes(b"half of a file")
    assert len(rows(tmp_path)) == 1
    assert not [*(tmp_path / "kept" / "m").glob("*.new")]


def test_retention_limit_and_joining(tmp_path: Path, server: Server) -> None:
    writer = writer_of(tmp_path)
    for age in (2 * 86400, *range(40, 0, -1)):
        server.puts(b"a", age, NOW - age)
        look(tmp_path, writer)
    assert writer.tidy() == {}
    assert (len(kept(tmp_path).files()), len(rows(tmp_path))) == (1, 40)
    kept(tmp_path).keep_settings(M.model_copy(update={"limit_bytes": 1}))
    writer.tidy()
    assert rows(tmp_path) == []


def test_a_clock_that_jumps_deletes_nothing(tmp_path: Path, server: Server) -> None:
    clock = [NOW]
    writer = writer_of(tmp_path, clock=lambda: clock[0])  # type: ignore[arg-type]
    server.puts(b"a", 1)
    look(tmp_path, writer)
    clock[0] += 400 * 86400
    look(tmp_path, writer)
    writer.tidy()
    assert len(rows(tmp_path)) == 1


def test_lists_and_batches_become_rows(tmp_path: Path, server: Server) -> None:
    body = np.arange(6, dtype="<f4").tobytes()
    record = struct.pack("<BBHIQ", 0, 11, 1, 2, 24) + struct.pack("<qq", 2, 3) + b"x".ljust(8, b"\0") + body
    server.raw(struct.pack("<IIQqIIQ", 1, 40 + len(record), int(NOW * 1e6), 1, 0, 1, 0) + record)
    look(tmp_path, writer_of(tmp_path))
    assert [row["input/x"] for row in rows(tmp_path)] == [[0, 1, 2], [3, 4, 5]]
