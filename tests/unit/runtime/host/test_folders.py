"""Scratch folders: removed whatever they hold, swept after a kill, and never while in use."""

import os
import subprocess
import sys
import threading
from pathlib import Path

from shiplift.runtime.host.folders import ScratchFolder, remove_tree, scratch_folder, sweep


def test_a_folder_lasts_as_long_as_its_context(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        (folder / "file").write_text("x")
        assert list(tmp_path.iterdir()) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_swept_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    code = f"""
import os, pathlib
from shiplift.runtime.host.folders import ScratchFolder
folder = ScratchFolder(pathlib.Path({str(tmp_path)!r}))
(folder.path / "left").write_text("x")
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    (left,) = tmp_path.iterdir()
    (tmp_path / "releases").mkdir()
    (tmp_path / "shiplift-file").write_text("not ours")
    (tmp_path / "shiplift-link").symlink_to(tmp_path / "releases")
    with scratch_folder(tmp_path) as used:
        assert sweep(tmp_path) == 1
        assert not left.exists()
        assert used.is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {"releases", "shiplift-file", "shiplift-link"}


def test_a_sweep_never_takes_a_folder_that_is_being_made(tmp_path: Path) -> None:
    stop = threading.Event()
    sweeper = threading.Thread(target=lambda: [sweep(tmp_path) for _ in iter(stop.is_set, True)])
    sweeper.start()
    try:
        for _ in range(200):
            folder = ScratchFolder(tmp_path)
            assert folder.path.is_dir()
            folder.close()
    finally:
        stop.set()
        sweeper.join()


def test_hostile_folders_are_removed_too(tmp_path: Path) -> None:
    """Deeper than recursion or a path goes, without permissions, with pipes and links to elsewhere."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (outside / "kept").write_text("x")
    root.mkdir()
    here = Path.cwd()
    os.chdir(root)
    try:
        for _ in range(1500):
            Path("deep").mkdir()
            os.chdir("deep")
        Path("bottom").write_text("x")
    finally:
        os.chdir(here)
    (root / "link").symlink_to(outside)
    os.mkfifo(root / "pipe")
    (root / "closed").mkdir()
    (root / "closed" / "file").write_text("x")
    (root / "closed").chmod(0)
    remove_tree(root)
    assert not root.exists()
    assert (outside / "kept").exists()
