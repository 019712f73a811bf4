"""Which mutants a module has, which of them tests notice, and the figures."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchmarks import mutation
from benchmarks.mutating.cores import CORES, Core
from benchmarks.mutating.mutants import Mutant, sample, swapped
from benchmarks.mutating.processes import isolated, survives

MODULE = '''"""A toy."""

from functools import cache
from typing import Annotated

LIMIT = 3
Number = int | float


class Range:
    """A range."""

    low: Annotated[int, dict(ge=1)] = 0

    @property
    def wide(self) -> bool:
        """Whether it is wide."""
        return self.low + 1 < LIMIT


@cache
def grade(points: int, *, most: int = 10) -> str:
    """A grade."""
    if points > most:
        raise ValueError("more points than there are")
    return "good" if points >= 5 else "bad"
'''
TESTS = """
from shiplift.runtime.toy import LIMIT, grade

def test_grades():
    assert [grade(4), grade(5)] == ["bad", "good"]

def test_a_limit():
    assert LIMIT == 3
"""
TRIAL = """
import json, os, sys
from pathlib import Path
from benchmarks import mutation
from benchmarks.mutating.cores import Core

checkout = Path(sys.argv[1])
sys.path.insert(0, str(checkout))
os.chdir(checkout)
print(json.dumps(mutation.measure(checkout, Core(name="toy", modules=("runtime/toy.py",), tests=("tests",)), 100, 0)))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one room, which the package holds as a link."""
    for folder in ("shiplift", "runtime", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "shiplift" / "runtime").symlink_to("../runtime")
    (tmp_path / "runtime" / "toy.py").write_text(MODULE)
    (tmp_path / "tests" / "test_toy.py").write_text(TESTS)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    for package in ("shiplift", "runtime"):
        (tmp_path / package / "__init__.py").touch()
    return tmp_path


def mutants(checkout: Path, most: int = 100, seed: int = 0) -> tuple[Mutant, ...]:
    return sample(checkout, "runtime/toy.py", most, seed)[1]


def tried(checkout: Path) -> subprocess.CompletedProcess[str]:
    """A trial of all mutants, in a process that has imported no other checkout."""
    command = [sys.executable, "-c", TRIAL, str(checkout)]
    environment = os.environ | {"PYTHONPATH": str(mutation.HERE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


# --- which mutants there are ------------------------------------------------------------------------------------------


def test_constants_fields_defaults_and_functions_are_mutated(checkout: Path) -> None:
    scopes = {mutant.scope for mutant in mutants(checkout)}
    assert scopes == {"", "Range", "Range.wide", "grade"}


def test_types_and_texts_are_left_alone(checkout: Path) -> None:
    before = [mutant.before for mutant in mutants(checkout)]
    assert "int | float" not in before
    assert not [text for text in before if text.startswith(('"""', '"more'))]
    assert "1" in before  # of a call inside an annotation


def test_a_mutant_is_the_module_with_one_change(checkout: Path) -> None:
    for mutant in mutants(checkout):
        old, new = MODULE.splitlines(), mutant.source.splitlines()
        changed = [number for number, lines in enumerate(zip(old, new, strict=True), 1) if lines[0] != lines[1]]
        assert changed == [mutant.line]


def test_the_same_seed_chooses_the_same_mutants_and_fewer_are_some_of_them(checkout: Path) -> None:
    assert mutants(checkout, 5) == mutants(checkout, 5)
    assert set(mutants(checkout, 5)) < set(mutants(checkout, 8))
    assert mutants(checkout, 5, seed=1) != mutants(checkout, 5)


def test_another_layout_and_another_function_s_edit_change_no_choice(checkout: Path) -> None:
    chosen = [(mutant.scope, mutant.operator) for mutant in mutants(checkout, 6)]
    edited = MODULE.replace("(points: int, *, most: int = 10)", "(\n    points: int, *, most: int = 10\n)")
    (checkout / "runtime" / "toy.py").write_text(
        edited.replace("class Range", "def more() -> None: ...\n\n\nclass Range")
    )
    assert [(mutant.scope, mutant.operator) for mutant in mutants(checkout, 6)] == chosen


def test_what_runs_at_import_cannot_be_swapped(checkout: Path) -> None:
    inside = {mutant.line for mutant in mutants(checkout) if swapped(mutant, MODULE)}
    assert inside == {18, 24, 26}


# --- whether they survive ---------------------------------------------------------------------------------------------


def test_a_process_answers_or_raises_what_was_raised_in_it() -> None:
    assert isolated(os.getpid) != os.getpid()
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        isolated(lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="without an answer"):
        isolated(lambda: os.kill(os.getpid(), 9))


def _for_ever() -> bool:
    while True:
        pass


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (lambda: True, True),
        (lambda: False, False),
        (lambda: bool(1 / 0), False),
        (sys.exit, False),
        pytest.param(_for_ever, False, marks=pytest.mark.slow),
    ],
)
def test_what_is_false_fails_exits_or_never_ends_does_not_survive(action: object, expected: bool) -> None:
    assert callable(action)
    assert survives(action, cpu_s=1) is expected


def test_what_waits_for_ever_ends_too() -> None:
    assert not survives(lambda: threading.Event().wait(600), cpu_s=0.05)


@pytest.mark.slow
def test_the_tests_of_a_checkout_kill_what_they_look_at(checkout: Path) -> None:
    ended = tried(checkout)
    assert not ended.returncode, ended.stderr
    row = json.loads(ended.stdout)["runtime/toy.py"]
    left = {(each["scope"], each["before"]) for each in row["survivors"]}
    assert row["killed"] + row["survived"] == row["mutants"] == len(mutants(checkout))
    assert {("Range", "0"), ("Range.wide", "self.low + 1"), ("grade", "> most")} <= left  # no test looks at them
    assert not {("grade", ">= 5"), ("grade", "5"), ("grade", '"bad"'), ("", "3")} & left


FAILING = "def test_nothing():\n    assert 1 == 2\n"
IN_TURN = """
SEEN = []

def test_first():
    SEEN.extend(range(1_000_000))

def test_second():
    assert SEEN
"""


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        (FAILING, "tests fail without any mutant: tests/test_toy.py::test_nothing"),
        (IN_TURN, "tests fail without any mutant if the shortest run first"),
    ],
)
@pytest.mark.slow
def test_tests_that_fail_without_a_mutant_are_an_error(checkout: Path, tests: str, reason: str) -> None:
    (checkout / "tests" / "test_toy.py").write_text(tests)
    ended = tried(checkout)
    assert ended.returncode
    assert reason in ended.stderr


# --- the table of cores, and the figures ------------------------------------------------------------------------------


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_every_core_has_modules_and_tests(core: Core) -> None:
    assert core.files(mutation.HERE)
    assert core.tested_by(mutation.HERE)


def test_a_core_whose_modules_have_moved_is_an_error(tmp_path: Path) -> None:
    core = Core(name="x", modules=("gone/*.py",), tests=("tests/gone",))
    with pytest.raises(ValueError, match=r"no gone/\*\.py"):
        core.files(tmp_path)
    with pytest.raises(ValueError, match="no tests/gone"):
        core.tested_by(tmp_path)


def test_shares_are_of_all_mutants_of_a_core() -> None:
    modules = [
        {"core": "a", "mutants": 10, "killed": 9},
        {"core": "b", "mutants": 0, "killed": 0},
        {"core": "a", "mutants": 2, "killed": 0},
    ]
    assert mutation.totals(modules) == {
        "a": {"mutants": 12, "killed": 9, "share": 0.75},
        "b": {"mutants": 0, "killed": 0, "share": None},
        "all": {"mutants": 12, "killed": 9, "share": 0.75},
    }


def test_survivors_are_where_a_reader_finds_them(checkout: Path) -> None:
    some = mutants(checkout)
    figures = mutation.row(CORES[0], 20, some, [some[0]])
    assert (figures["killed"], figures["survived"]) == (len(some) - 1, 1)
    assert figures["survivors"] == [
        {"line": 6, "scope": "", "operator": some[0].operator, "before": some[0].before, "after": some[0].after}
    ]
