"""What holds for every module: where it comes from, and that a reader finds it by its name."""

import ast
import importlib
import inspect
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import shiplift

ROOT = Path(__file__).parents[2]
ROOMS = ("pipelines", "runtime", "steps", "templates")
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
STEPS = sorted(path.stem for path in (ROOT / "steps").glob("*.py") if path.stem != "__init__")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


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
        for node in ast.walk(tree(path)) if suspect.search(text) else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            bare = [name for name in names if name.split(".")[0] in ROOMS]
            assert not bare, f"{path} imports {bare}"


def _imports() -> dict[str, set[str]]:
    """What each module imports from the rooms, also within functions and for types alone."""
    named = {
        ".".join(("shiplift", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in MODULES
    }
    imports: dict[str, set[str]] = {}
    for module, path in named.items():
        imports[module] = set()
        for node in ast.walk(tree(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in named else node.module for name in inside]
            imports[module] |= {name for name in names if name in named} - {module}
    return imports


def test_no_module_imports_itself_through_others() -> None:
    try:
        tuple(TopologicalSorter(_imports()).static_order())
    except CycleError as error:
        pytest.fail(f"modules import each other: {' <- '.join(error.args[1])}")


def test_unit_tests_mirror_the_rooms() -> None:
    folders = {
        path.parent.relative_to(ROOT / "tests" / "unit") for path in (ROOT / "tests" / "unit").rglob("test_*.py")
    }
    lost = {folder.as_posix() for folder in folders if not (ROOT / folder).is_dir()}
    assert not lost


def test_what_a_string_names_is_there() -> None:
    """Sandbox entries and modules to run are named in strings, which no import checks: `shiplift.a.b:function`."""
    named = re.compile(rf"(shiplift\.(?:{'|'.join(ROOMS)})(?:\.\w+)*)(?::(\w+))?")
    for path in MODULES:
        for node in ast.walk(tree(path)):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if match := named.fullmatch(text):
                assert _is_there(match[1], match[2] or ""), f"{path}: {text}"


def _is_there(name: str, member: str) -> bool:
    """Whether it is a module with this member, or a member of a module."""
    room, *parts = name.split(".")[1:]
    at = ROOT.joinpath(room, *parts)
    file = next((each for each in (at.with_suffix(".py"), at / "__init__.py") if each.is_file()), None)
    if file is None:
        return not member and bool(parts) and _is_there(name.rpartition(".")[0], parts[-1])
    return not member or any(getattr(node, "name", "") == member for node in tree(file).body)


def test_a_module_begins_with_what_it_is_for() -> None:
    without = {
        path.relative_to(ROOT).as_posix()
        for path in MODULES
        if not re.match(r'"""[^\s"]', path.read_text()) and not ast.get_docstring(tree(path))
    }
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


def test_a_step_is_a_page_and_takes_no_more_than_eight_records() -> None:
    for name in STEPS:
        path = ROOT / "steps" / f"{name}.py"
        step = next(node for node in tree(path).body if isinstance(node, ast.FunctionDef) and node.name == name)
        lines, records = len(path.read_text().splitlines()), len(step.args.args + step.args.kwonlyargs)
        assert (lines < 150, records <= 8) == (True, True), f"{name}: {lines} lines, {records} records"


def test_every_step_is_in_a_pipeline_or_undoes_a_release() -> None:
    from shiplift.pipelines.offline import PREDICT
    from shiplift.pipelines.release import RELEASE

    in_pipelines = {stage.name for stage in (*RELEASE.flat(), *PREDICT.flat())} | {"conclude"}
    assert set(STEPS) == in_pipelines | {"rollback", "retire"}
