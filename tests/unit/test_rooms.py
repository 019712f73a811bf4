"""What holds for every module: where it comes from, and that a reader finds it by its name."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import pipelines
import runtime
import steps
import templates

ROOT = Path(__file__).parents[2]
ROOMS = {"pipelines": pipelines, "runtime": runtime, "steps": steps, "templates": templates}
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
STEPS = sorted(path.stem for path in (ROOT / "steps").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_this_repository_s_and_not_a_folder_that_shadows_it(room: str) -> None:
    assert ROOMS[room].__file__ == str(ROOT / room / "__init__.py")
    assert list(ROOMS[room].__path__) == [str(ROOT / room)]


def test_no_folder_of_tests_is_named_like_a_room() -> None:
    named = {path.name for path in (ROOT / "tests").rglob("*") if path.is_dir()}
    assert named & set(ROOMS) == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_begins_with_what_it_is_for(path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text()))
    assert said


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_one_public_function_named_like_its_file(name: str) -> None:
    module = importlib.import_module(f"steps.{name}")
    public = [
        found.__name__
        for found in vars(module).values()
        if inspect.isfunction(found) and found.__module__ == module.__name__ and not found.__name__.startswith("_")
    ]
    assert public == [name]


def test_every_step_is_in_the_release_or_is_the_way_back() -> None:
    from pipelines.release import RELEASE

    in_release = {stage.name for stage in RELEASE.flat()} | {"conclude"}
    assert set(STEPS) == in_release | {"rollback"}
