"""The wheel as users install it: one complete package, which works where no source tree is near.

Its environment borrows this one's dependencies through a .pth file. Python does not process .pth files found that way,
so the link by which this environment finds the repository has no effect there.
"""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from shiplift.runtime.serving.triton.environment import default_root, ensure

ROOT = Path(__file__).parents[2]
ROOMS = ("pipelines", "runtime", "steps", "templates")
NOT_SHIPPED = {"__pycache__"}


def build(*words: str, into: Path) -> None:
    """Builds with the packages that `make setup` installed; nothing is downloaded."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(into), *words, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that a release publishes, built from the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    build(into=folder)
    (file,) = folder.glob("*.whl")
    return file


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and an empty folder to work in."""

    environment: Path
    folder: Path

    def run(self, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Runs a program of the environment, which gets only the most common variables of this process."""
        variables = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        variables |= {
            "SHIPLIFT_SERVER_ENVIRONMENT": str(ensure(default_root()).root),
            "SHIPLIFT_FREE_PORTS": "1",
            "COLUMNS": "200",
        }
        done = subprocess.run(
            [self.environment / "bin" / words[0], *words[1:]],
            cwd=self.folder,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert not check or done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    environment, folder = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=60)
    python = environment / "bin" / "python"
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    borrowed = [path for path in sys.path if Path(path).name == "site-packages"]
    site = environment / "lib" / f"python{minor}" / "site-packages"
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True, timeout=120)
    return Installed(environment, folder)


def shipped() -> set[str]:
    """The files of the rooms, as paths in the package."""
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file()]
    rooms = {path.relative_to(ROOT).as_posix() for path in files if not NOT_SHIPPED & set(path.parts)}
    return {"shiplift/__init__.py", "shiplift/__init__.pyi", "shiplift/py.typed"} | {
        f"shiplift/{name}" for name in rooms
    }


def test_the_wheel_is_one_package_with_every_file_of_the_rooms(wheel: Path, tmp_path: Path) -> None:
    build("--wheel", into=tmp_path)
    (from_checkout,) = tmp_path.glob("*.whl")
    for file in (wheel, from_checkout):
        names = {name for name in zipfile.ZipFile(file).namelist() if ".dist-info/" not in name}
        assert names == shipped()
    for suffix in (".c", ".h", ".j2", ".yaml", ".json", ".txt", ".typed"):
        assert any(name.endswith(suffix) for name in shipped())


def test_only_the_wheel_is_importable(installed: Installed) -> None:
    origin = installed.run("python", "-c", "import shiplift; print(shiplift.__file__)").stdout.strip()
    assert Path(origin).is_relative_to(installed.environment)
    for room in (*ROOMS, "tests", "benchmarks"):
        done = installed.run("python", "-c", f"import {room}", check=False)
        assert f"No module named '{room}'" in done.stderr


@pytest.mark.slow
def test_its_data_files_are_found(installed: Installed) -> None:
    installed.run("shiplift", "init", "starter")
    assert "shiplift.yaml" in {path.name for path in (installed.folder / "starter").iterdir()}
    installed.run("shiplift", "render", "objects")
    assert list((installed.folder / "objects").rglob("*.yaml"))
    assert "namespace: shiplift" in installed.run("shiplift", "values").stdout


def play(installed: Installed, home: str) -> "subprocess.CompletedProcess[str]":
    """Runs the demo in its own home and stops its stack whatever happens."""
    try:
        return installed.run("shiplift", "--home", home, "demo", "--keep", check=False)
    finally:
        installed.run("shiplift", "--home", home, "down")


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(2000)
def test_doctor_demo_and_down_work_away_from_the_source(installed: Installed) -> None:
    assert "this machine can run releases" in installed.run("shiplift", "doctor").stdout
    home, done = "first", play(installed, "first")
    if "ended with exit code 21" in done.stderr:  # undecided, as it should be if something else loads the machine
        home, done = "second", play(installed, "second")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert [release["verdict"] for release in summary["releases"]] == ["pass", "fail", "pass"]
    assert (summary["rollback"]["version"], summary["failed_requests"]) == (1, 0)
    assert all(Path(release["report"]).is_file() for release in summary["releases"])
    assert "nothing was running" in installed.run("shiplift", "--home", home, "down").stderr
