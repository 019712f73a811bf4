import errno
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from shiplift.runtime.base.errors import StorageFull
from shiplift.runtime.base.storage import room_for, write_atomically


def test_a_file_is_written_with_its_folders_and_its_mode(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b", "ä")
    write_atomically(tmp_path / "a" / "secret", b"\x00", mode=0o600)
    assert (tmp_path / "a" / "b").read_text() == "ä"
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "a" / "secret").stat().st_mode) == 0o600
    assert len(list((tmp_path / "a").iterdir())) == 2


def test_a_file_is_replaced(tmp_path: Path) -> None:
    for body in ("one", "two"):
        write_atomically(tmp_path / "a", body)
        assert (tmp_path / "a").read_text() == body


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "a", "\ud800")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "folder", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "folder"]
    assert (tmp_path / "a").read_text() == "old"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_what_was_written_where_and_what_to_do(code: int, tmp_path: Path) -> None:
    message = f"no space is left in {tmp_path} while writing a report"
    with pytest.raises(StorageFull, match=message), room_for("a report", tmp_path):
        raise OSError(code, "full")


def test_any_other_error_passes_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), room_for("a report", tmp_path):
        raise PermissionError(errno.EACCES, "no")


FULL = """
import sys
from pathlib import Path
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.base.errors import StorageFull
from shiplift.runtime.store.journal import Journal
from shiplift.runtime.records.release import Event
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.process import Process
from shiplift.runtime.base.storage import write_atomically
from shiplift.pipelines.engines.local.releases import Releases

disk, other = Path(sys.argv[1]), Path(sys.argv[2])
write_atomically(disk / "kept", "old")
releases = Releases(disk)
name = releases.accept(Request(model="digits", version=1), Trigger()).name
store, journal = ArtifactStore((disk / "store").as_uri()), Journal(disk / "journal", Process)
store.put_bytes(b"first")
journal.add("first", Process(pid=1, started_at=0))
releases.tell(name, Event(stage="a", kind="started"))
(other / "large").write_bytes(b"x" * 200_000)
(other / "tree").mkdir()
(other / "tree" / "large").write_bytes(b"y" * 200_000)
outside = ArtifactStore((other / "store").as_uri())
large = outside.put_file(other / "large")
def files():
    return sorted(path for path in disk.rglob("*") if path.is_file())

before = files()

def try_all(what):
    for call in what:
        try:
            call()
        except StorageFull as error:
            assert "no space is left in" in error.what, error
            assert files() == before, set(files()) - set(before)
            print("full")
        else:
            print("nothing raised")

try_all([
    lambda: write_atomically(disk / "kept", "x" * 200_000),
    lambda: store.put_bytes(b"z" * 200_000),
    lambda: store.put_file(other / "large"),
    lambda: store.put_tree(other / "tree"),
    lambda: journal.add("second", Process(pid=10**200_000, started_at=0)),
    lambda: releases.tell(name, Event(stage="a", kind="started", message="x" * 200_000)),
    lambda: releases.accept(Request(model="digits", version=2, spec="#" * 200_000), Trigger()),
])
try:
    outside.fetch(large, disk / "fetched")
except StorageFull:
    print("full")
(disk / "fetched").unlink(missing_ok=True)
print((disk / "kept").read_text(), store.read(store.put_bytes(b"first")).decode())
"""


def test_a_disk_that_is_really_full_is_told_as_such_and_loses_nothing(tmp_path: Path) -> None:
    """On a filesystem of 128 KiB, mounted in a namespace of its own."""
    if subprocess.run(["unshare", "-Urm", "true"], check=False).returncode:
        pytest.skip("this machine allows no mount namespaces")
    (tmp_path / "script.py").write_text(FULL)
    for folder in ("disk", "other"):
        (tmp_path / folder).mkdir()
    done = subprocess.run(
        [
            "unshare",
            "-Urm",
            "sh",
            "-ec",
            'mount -t tmpfs -o size=128k tmpfs "$1"; shift; exec "$@"',
            "-",
            tmp_path / "disk",
            sys.executable,
            "-X",
            "int_max_str_digits=0",
            tmp_path / "script.py",
            tmp_path / "disk",
            tmp_path / "other",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["full"] * 8 + ["old first"]
