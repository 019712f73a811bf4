import os
from pathlib import Path

import pytest

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.host.outputs import require_regular


def test_folders_and_files_are_fine(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("x")
    require_regular(tmp_path, "a/b/file")


def test_what_would_block_or_lead_astray_is_refused_unopened(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(ExportFailed, match=r"pipe is not a regular file") as error:
        require_regular(tmp_path)
    assert "link is a link" in error.value.what


def test_a_file_that_is_needed_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match=r"model/model\.onnx is missing"):
        require_regular(tmp_path, "model/model.onnx")


def test_folders_without_end_are_refused_rather_than_walked(tmp_path: Path) -> None:
    here = tmp_path
    for _ in range(80):
        here = here / "d"
        here.mkdir()
    with pytest.raises(ExportFailed, match="d is nested deeper than 64 folders"):
        require_regular(tmp_path)
