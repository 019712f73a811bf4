"""What holds for every module: where it comes from, and that a reader finds it by its name."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import shiplift

ROOT = Path(__file__).parents[2]
ROOMS = ("pipelines", "runtime", "steps", "templates")
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
STEPS = sorted(path.stem for path in (ROOT / "steps").glob("*.py") if path.stem != "__init__")
MOST_MODULES = 13  # in one folder: more than a reader takes in at a glance


def test_a_room_is_this_repository_s() -> None:
    for room in ROOMS:
        module = importlib.import_module(f"shiplift.{room}")
        assert Path(str(module.__file__)).resolve() == ROOT / room / "__init__.py"


def test_the_package_is_the_rooms_and_nothing_else() -> None:
    entries = {path.name for path in Path(shiplift.__file__).parent.iterdir()} - {"__pycache__"}
    assert entries == {"__init__.py", "__init__.pyi", "py.typed", *ROOMS}


def test_no_module_is_imported_by_its_bare_name() -> None:
    """A room imported as `runtime` and as `shiplift.runtime` would be two rooms, each with its own error classes."""
    suspect = re.compile(rf"^\s*(?:import|from)\s[^\n]*?(?<![\w.])(?:{'|'.join(ROOMS)})\b", re.MULTILINE)
    for path in (*MODULES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if suspect.search(text) else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            bare = [name for name in names if name.split(".")[0] in ROOMS]
            assert not bare, f"{path} imports {bare}"


def test_no_folder_has_more_modules_than_a_reader_takes_in() -> None:
    folders = {path.parent for path in MODULES}
    crowded = {
        folder.relative_to(ROOT).as_posix(): count
        for folder in folders
        if (count := len([path for path in folder.glob("*.py") if path.stem != "__init__"])) > MOST_MODULES
    }
    assert not crowded


def test_unit_tests_mirror_the_rooms() -> None:
    folders = {
        path.parent.relative_to(ROOT / "tests" / "unit") for path in (ROOT / "tests" / "unit").rglob("test_*.py")
    }
    lost = {folder.as_posix() for folder in folders if not (ROOT / folder).is_dir()}
    assert not lost


def test_a_module_begins_with_what_it_is_for() -> None:
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in MODULES}
    without = {
        name for name, text in texts.items()
        if not re.match(r'"""[^\s"]', text) and not ast.get_docstring(ast.parse(text))
    }  # fmt: skip
    assert not without


def test_a_step_is_one_public_function_named_like_its_file() -> None:
    modules = {name: importlib.import_module(f"shiplift.steps.{name}") for name in STEPS}
    public = {
        name: [
            member.__name__
            for member in vars(module).values()
            if inspect.isfunction(member)
            and member.__module__ == module.__name__
            and not member.__name__.startswith("_")
        ]
        for name, module in modules.items()
    }
    assert public == {name: [name] for name in STEPS}


def test_every_step_is_in_the_release_or_is_the_way_back() -> None:
    from shiplift.pipelines.release import RELEASE

    in_release = {stage.name for stage in RELEASE.flat()} | {"conclude"}
    assert set(STEPS) == in_release | {"rollback"}
