import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shiplift
from shiplift.runtime.base.errors import MissingTool
from shiplift.runtime.serving.triton import environment
from shiplift.runtime.serving.triton.building import native, patches
from shiplift.runtime.serving.triton.environment import ServerEnvironment, default_root, ensure, unsupported
from shiplift.runtime.serving.triton.requirements import REQUIREMENTS, pinned


def test_an_environment_is_ready_once_its_stamp_is_there(tmp_path: Path) -> None:
    server = ServerEnvironment(tmp_path)
    assert not server.ready
    (tmp_path / "stamp").touch()
    assert server.ready
    assert ensure(tmp_path) == server


def test_everything_of_an_environment_lies_below_its_root(tmp_path: Path) -> None:
    server = ServerEnvironment(tmp_path)
    for path in (server.site, server.tritonserver, server.backends, server.caches, server.perf_analyzer):
        assert path.is_relative_to(tmp_path)
    assert all(part.startswith(str(tmp_path)) for part in server.library_path.split(":"))


def test_the_default_environment_belongs_to_this_installation_and_its_requirements(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = default_root()
    assert before.is_relative_to(sys.prefix)
    (tmp_path / "requirements.txt").write_text("other==1\n")
    monkeypatch.setattr(environment, "REQUIREMENTS", tmp_path / "requirements.txt")
    assert default_root() != before
    assert default_root().parent == before.parent


def test_another_way_to_compile_the_backend_is_another_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = default_root()
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-O3"))
    assert default_root() != before


def test_other_patches_are_another_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = default_root()
    (tmp_path / "patches.py").write_text("TRITONSERVER = None\n")
    monkeypatch.setattr(patches, "__file__", str(tmp_path / "patches.py"))
    assert default_root() != before


@pytest.mark.parametrize(
    ("machine", "libc", "reason"),
    [
        ("aarch64", ("glibc", "2.36"), "exists for Linux x86-64, this is Linux aarch64"),
        ("x86_64", ("glibc", "2.31"), "needs glibc 2.35 or newer, this is glibc 2.31"),
        ("x86_64", ("", ""), "this is another libc"),
    ],
)
def test_a_machine_that_can_not_run_the_server_gets_the_reason(
    machine: str, libc: tuple[str, str], reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    assert reason in unsupported()
    with pytest.raises(MissingTool, match=reason):
        ensure(tmp_path / "server")
    assert not (tmp_path / "server").exists()


def test_a_machine_without_the_python_library_gets_the_name_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(environment, "libpython", lambda: None)
    assert f"package libpython3.{sys.version_info.minor}" in unsupported()


def test_the_server_s_requirements_are_pinned() -> None:
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if line and not line.startswith("#")]
    assert all("==" in line for line in lines)
    assert pinned("numpy").startswith("1.")
    assert pinned("onnx") == ""


def test_the_image_of_the_server_copies_all_that_makes_its_environment(tmp_path: Path) -> None:
    """Its stage of the Containerfile has only these files, so that a change of others builds nothing again."""
    root = Path(shiplift.__file__).parents[1]
    text = (root / "Containerfile").read_text().replace("\\\n", "")
    stage = text.partition(" AS triton\n")[2].partition("\nFROM ")[0]
    for line in stage.splitlines():
        if line.startswith("COPY "):
            _copy(root, [*line.split()[1:-1]], tmp_path / line.split()[-1])
    code = f"from {environment.__name__} import default_root; print(default_root().name)"
    here = {**os.environ, "PYTHONPATH": str(tmp_path)}
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=here, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == default_root().name


def _copy(root: Path, names: list[str], to: Path) -> None:
    """As COPY does, except that links stay links."""
    for name in names:
        if (root / name).is_dir():
            shutil.copytree(root / name, to, symlinks=True)
        else:
            to.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, to / Path(name).name)
