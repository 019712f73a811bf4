import hashlib
import os
from pathlib import Path

import pytest

from shiplift.runtime.base.errors import MissingTool
from shiplift.runtime.serving.triton.building.patches import LIBRARY, TRITONSERVER, Patch, Patched, apply

OLD = b"0123456789"
NEW = b"01ab4567cd"
PATCHES = (Patch(offset=2, old=b"23", new=b"ab"), Patch(offset=8, old=b"89", new=b"cd"))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


PATCHED = Patched(before=digest(OLD), after=digest(NEW), patches=PATCHES)


def program(folder: Path, content: bytes) -> Path:
    file = folder / "program"
    file.write_bytes(content)
    file.chmod(0o755)
    return file


def test_an_executable_is_patched_once_and_stays_one(tmp_path: Path) -> None:
    file = program(tmp_path, OLD)
    for _ in range(2):
        apply(PATCHED, file)
        assert file.read_bytes() == NEW
        assert file.stat().st_mode & 0o777 == 0o755
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_is_linked_from_elsewhere_changes_only_here(tmp_path: Path) -> None:
    file = program(tmp_path, OLD)
    os.link(file, tmp_path / "elsewhere")
    apply(PATCHED, file)
    assert (tmp_path / "elsewhere").read_bytes() == OLD


def test_another_executable_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = program(tmp_path, b"another")
    with pytest.raises(MissingTool, match=f"the SHA-256 {digest(b'another')[:12]}, but .*{digest(OLD)[:12]}"):
        apply(PATCHED, file)
    assert file.read_bytes() == b"another"


def test_patches_that_give_something_else_are_refused_and_change_nothing(tmp_path: Path) -> None:
    file = program(tmp_path, OLD)
    with pytest.raises(MissingTool, match="does not have the expected SHA-256"):
        apply(Patched(before=digest(OLD), after=digest(NEW), patches=PATCHES[:1]), file)
    assert file.read_bytes() == OLD


def test_the_server_s_patches_keep_every_length_and_do_not_overlap() -> None:
    for patched in (TRITONSERVER, LIBRARY):
        end = 0
        for patch in sorted(patched.patches, key=lambda patch: patch.offset):
            assert len(patch.old) == len(patch.new) > 0
            assert patch.old != patch.new
            assert patch.offset >= end
            end = patch.offset + len(patch.old)
