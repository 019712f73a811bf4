import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import shiplift
from shiplift.runtime.host import installed
from shiplift.runtime.host.installed import digest_of, package_digest

PACKAGE = Path(shiplift.__file__).parent


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A small package of two rooms."""
    for name, text in {
        "__init__.py": "",
        "rooms/a.py": "x = 1",
        "rooms/sub/b.c": "int x;",
        "pages/p.j2": "{{x}}",
    }.items():
        file = tmp_path / "package" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "package"


@pytest.mark.parametrize(
    "change",
    [
        lambda package: (package / "rooms" / "a.py").write_text("x = 2"),
        lambda package: (package / "rooms" / "sub" / "b.c").write_text("int y;"),
        lambda package: (package / "pages" / "p.j2").unlink(),
        lambda package: (package / "pages" / "p.j2").rename(package / "pages" / "q.j2"),
        lambda package: (package / "rooms" / "sub").rename(package / "rooms" / "other"),
        lambda package: (package / "rooms" / "new.txt").touch(),
        lambda package: (package / "rooms" / "a.pyc").touch(),
    ],
    ids=[
        "a module",
        "C",
        "a file less",
        "a file's name",
        "a folder's name",
        "an empty file",
        "code without its source",
    ],
)
def test_a_change_of_any_file_is_another_package(package: Path, change: Callable[[Path], object]) -> None:
    before = digest_of(package)
    change(package)
    assert digest_of(package) != before


@pytest.mark.parametrize("name", ["rooms/__pycache__/a.cpython-311.pyc", "rooms/.a.py.swp"])
def test_bytecode_and_hidden_files_are_no_part_of_it(package: Path, name: str) -> None:
    before = digest_of(package)
    (package / name).parent.mkdir(exist_ok=True)
    (package / name).write_text("changes")
    (package / "rooms" / ".#a.py").symlink_to("an editor's lock")
    assert digest_of(package) == before


def test_another_python_is_another_package(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest_of(package)
    monkeypatch.setattr(installed, "_PYTHON", "3.99")
    assert digest_of(package) != before


def test_it_is_the_same_wherever_it_is_installed_and_whenever(tmp_path: Path) -> None:
    """The rooms are links in a checkout, and folders where a wheel was installed."""
    elsewhere = tmp_path / "site-packages" / "shiplift"
    shutil.copytree(PACKAGE, elsewhere, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copyfile)
    assert digest_of(elsewhere) == digest_of(PACKAGE) == package_digest()


def test_every_process_has_the_same() -> None:
    code = "from shiplift.runtime.host.installed import package_digest as digest; print(digest())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == package_digest()


def test_a_process_keeps_that_of_the_files_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    before = package_digest()
    monkeypatch.setattr(installed, "digest_of", lambda _: pytest.fail("it was digested later"))
    assert package_digest() == before
