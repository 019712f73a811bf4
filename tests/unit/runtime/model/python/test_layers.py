"""Environments as files: always the same bytes, complete or absent, and independent of where they are unpacked."""

import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from shiplift.runtime.base.errors import ArtifactCorrupt
from shiplift.runtime.guest.python.host import Host
from shiplift.runtime.model.python import layers
from shiplift.runtime.model.python.interpreter import PYTHON

PROBE = """
import asyncio, bz2, ctypes, decimal, hashlib, json, lzma, ssl, sys, uuid, zlib
import mine
mapped = {line.split()[-1] for line in open('/proc/self/maps') if '.so' in line}
print(json.dumps([sys.prefix, sys.path, sorted(mapped), mine.VALUE]))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("made") / "environment")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that runs nothing: a real interpreter has thousands of files to pack."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "copy_interpreter", no_interpreter)
        return made(tmp_path_factory.mktemp("made") / "small")


def no_interpreter(folder: Path) -> None:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / PYTHON).write_text("no program\n" * 1000)


def made(folder: Path) -> Path:
    folder.mkdir()
    layers.make_portable(folder)
    packages = folder / "lib" / PYTHON / "site-packages"
    (packages / "mine.py").write_text("VALUE = 7\n")
    (packages / "__pycache__").mkdir()
    (packages / "__pycache__" / "mine.pyc").touch()
    (folder / "stamp").write_text("mine==1\n")
    return folder


def test_packing_again_gives_the_same_file(small: Path, tmp_path: Path) -> None:
    first = layers.pack(small, tmp_path / "first").read_bytes()
    (small / "stamp").touch()
    assert layers.pack(small, tmp_path / "second").read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


@pytest.mark.slow
def test_an_unpacked_environment_runs_on_nothing_of_the_machine_but_its_c_library(
    environment: Path, tmp_path: Path
) -> None:
    moved = layers.unpack(layers.pack(environment, tmp_path / "layer"), tmp_path / "elsewhere" / "0123")
    aside = environment.with_name("aside")
    environment.rename(aside)  # so that nothing can come from where it was made
    try:
        host = Host(tmp_path, moved, {"memory_mb": 64})
        result = subprocess.run(
            [moved / "bin" / "python", "-I", "-B", "-c", PROBE],
            env=host._variables,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        aside.rename(environment)
    assert result.returncode == 0, result.stderr
    prefix, path, mapped, value = json.loads(result.stdout)
    assert (prefix, value) == (str(moved), 7)
    assert path
    assert all(Path(entry).is_relative_to(moved) for entry in path)
    others = [Path(library).name for library in mapped if not Path(library).is_relative_to(moved)]
    assert {name.partition(".")[0].partition("-")[0] for name in others} <= {
        "ld",
        "libc",
        "libm",
        "libdl",
        "libpthread",
        "librt",
        "libutil",
        "libresolv",
    }
    assert not list(moved.rglob("__pycache__"))
    assert (moved / "stamp").read_text() == "mine==1\n"


def test_unpacking_again_changes_nothing(small: Path, tmp_path: Path) -> None:
    layer = layers.pack(small, tmp_path / "layer")
    moved = layers.unpack(layer, tmp_path / "to")
    (moved / "stamp").write_text("kept")
    assert layers.unpack(layer, tmp_path / "to") == moved
    assert (moved / "stamp").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layer", "to"]


def test_a_package_s_layers_are_unpacked_under_their_digests(small: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / layers.FOLDER).mkdir(parents=True)
    layers.pack(small, package / layers.name_of("abc"))
    layers.unpack_all(package, tmp_path / "to")
    assert (tmp_path / "to" / "abc" / "stamp").is_file()
    layers.unpack_all(tmp_path / "another", tmp_path / "to")  # most packages have none


def _link(name: str, target: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    return entry


def _device(name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type = tarfile.CHRTYPE
    return entry


def _hard(name: str, target: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.LNKTYPE, target
    return entry


@pytest.mark.parametrize(
    "entry",
    [
        tarfile.TarInfo("../outside"),
        tarfile.TarInfo("/outside"),
        _link("a", "/etc/passwd"),
        _link("a", "../b"),
        _link("a/b/c", "../../../d"),
        _device("null"),
        _hard("a", "/etc/passwd"),
    ],
    ids=["parent", "absolute", "absolute link", "link to a parent", "deep link to a parent", "device", "hard link"],
)
def test_what_would_leave_its_folder_is_refused(entry: tarfile.TarInfo, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    with tarfile.open(layer, "w:gz") as tar:
        tar.addfile(entry, io.BytesIO())
    target = tmp_path / "folder" / "to"
    with pytest.raises(ArtifactCorrupt, match="can't be unpacked"):
        layers.unpack(layer, target)
    assert list((tmp_path / "folder").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "layer"]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """`d/e/f` names a place two levels above by its own path, and one outside by the link's."""
    layer = tmp_path / "layer"
    with tarfile.open(layer, "w:gz") as tar:
        for entry in (_link("d", "."), _link("d/e/f", "../../outside")):
            tar.addfile(entry)
    with pytest.raises(ArtifactCorrupt, match="d/e/f"):
        layers.unpack(layer, tmp_path / "folder" / "to")
    assert list((tmp_path / "folder").iterdir()) == []


def test_what_is_cut_off_or_no_archive_is_refused(small: Path, tmp_path: Path) -> None:
    whole = layers.pack(small, tmp_path / "layer").read_bytes()
    for body in (whole[: len(whole) // 2], b"no archive", b""):
        (tmp_path / "layer").write_bytes(body)
        with pytest.raises(ArtifactCorrupt, match="can't be unpacked"):
            layers.unpack(tmp_path / "layer", tmp_path / "folder" / "to")
        assert list((tmp_path / "folder").iterdir()) == []
    shutil.rmtree(tmp_path / "folder")
