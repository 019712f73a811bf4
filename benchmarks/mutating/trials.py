"""Trials of mutants: each is put into a forked process, and the tests that run its line are run there until one fails.

A changed function is swapped in place after all tests were collected, so that a trial takes little more than its tests.
What runs at import (constants, fields of records) needs a process that has imported nothing of the checkout yet.
"""

import contextlib
import gc
import importlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.machinery import SourceFileLoader
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FunctionType
from unittest.mock import patch

import pytest

from benchmarks.mutating.cores import Core
from benchmarks.mutating.mutants import Mutant, swapped
from benchmarks.mutating.processes import isolated, survives
from benchmarks.mutating.survey import Steady, Survey, arguments

_FACTOR = 3  # of the tests' CPU time: a mutant that takes longer is killed
_MARGIN_S = 5.0


def survivors(checkout: Path, core: Core, mutants: Sequence[Mutant], survey: Survey) -> list[Mutant]:
    """The mutants that no test of the core notices."""
    pairs = {mutant: swapped(mutant, (checkout / mutant.module).read_text()) for mutant in mutants}
    in_place = {
        mutant: codes
        for mutant, codes in pairs.items()
        if codes and not survey.run_at_import(mutant.module, *_body(codes[0][0], mutant))
    }
    anew = [mutant for mutant in mutants if mutant not in in_place]
    left = isolated(partial(_swap_each, checkout, core, in_place, survey))
    left += isolated(partial(_import_each, checkout, core, anew, survey))
    return [mutant for mutant in mutants if mutant in left]


def _body(code: CodeType, mutant: Mutant) -> tuple[int, int]:
    """The mutant's lines, without the line of `def`, which runs whenever the module is imported."""
    return max(mutant.lines[0], code.co_firstlineno + 1), mutant.lines[1]


def _limit(survey: Survey, tests: Iterable[str]) -> float:
    return _FACTOR * sum(survey.seconds[test] for test in tests) + _MARGIN_S


# --- a function is swapped --------------------------------------------------------------------------------------------


class _Swaps:
    """A plugin that runs the collected tests once for each mutant, instead of once."""

    def __init__(
        self, checkout: Path, mutants: dict[Mutant, tuple[tuple[CodeType, CodeType], ...]], survey: Survey
    ) -> None:
        self.checkout, self.mutants, self.survey = checkout, mutants, survey
        self.survivors: list[Mutant] = []
        self.any_order = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        known = _functions()
        every = [items[test] for test in self.survey.in_order()]
        self.any_order = survives(
            partial(_passes, session, every, lambda: None), _limit(self.survey, self.survey.seconds)
        )
        for mutant, codes in self.mutants.items() if self.any_order else ():
            tests = self.survey.tests_of(mutant.module, *mutant.lines)
            swap = partial(_swap, known, self.checkout / mutant.module, codes)
            action = partial(_passes, session, [items[test] for test in tests], swap)
            if survives(action, _limit(self.survey, tests)):
                self.survivors.append(mutant)
        return True


def _swap_each(
    checkout: Path, core: Core, mutants: dict[Mutant, tuple[tuple[CodeType, CodeType], ...]], survey: Survey
) -> list[Mutant]:
    swaps = _Swaps(checkout, mutants, survey)
    code = pytest.main(arguments(checkout, core), plugins=[Steady(), swaps])
    if code:
        raise RuntimeError(f"{core.name}: pytest ended with {code!r}")
    if not swaps.any_order:
        raise ValueError(f"{core.name}: tests fail without any mutant if the shortest run first")
    return swaps.survivors


def _functions() -> dict[tuple[str, str, int], list[FunctionType]]:
    """All functions of this process, by file, qualified name and line."""
    found = defaultdict(list)
    gc.unfreeze()  # the unit tests freeze what was collected, and what is frozen is not listed
    for each in gc.get_objects():
        if isinstance(each, FunctionType):
            found[_key(each.__code__, each.__code__.co_filename)].append(each)
    return found


def _key(code: CodeType, file: str) -> tuple[str, str, int]:
    return str(Path(file).resolve()), code.co_qualname, code.co_firstlineno


def _swap(
    known: dict[tuple[str, str, int], list[FunctionType]], file: Path, codes: Iterable[tuple[CodeType, CodeType]]
) -> None:
    for old, new in codes:
        for function in known[_key(old, str(file))]:
            function.__code__ = new


def _passes(session: pytest.Session, items: list[pytest.Item], swap: Callable[[], None]) -> bool:
    """Whether these tests pass after the swap."""
    swap()
    for item, following in zip_longest(items, items[1:]):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return False
    return True


# --- a module is imported anew ----------------------------------------------------------------------------------------


class _Ordered:
    """A plugin that runs the shortest tests first."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.survey.seconds.get(item.nodeid, 0.0))


def _import_each(checkout: Path, core: Core, mutants: Iterable[Mutant], survey: Survey) -> list[Mutant]:
    for name in survey.libraries:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    limit = _limit(survey, survey.seconds) + _MARGIN_S
    return [mutant for mutant in mutants if survives(partial(_imports, checkout, core, mutant, survey), limit)]


def _imports(checkout: Path, core: Core, mutant: Mutant, survey: Survey) -> bool:
    """Whether all tests pass with the mutant."""
    name = "shiplift." + mutant.module.removesuffix(".py").replace("/", ".")
    real = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
        if fullname != name:
            return real(loader, fullname)
        return compile(mutant.source, loader.path, "exec", dont_inherit=True)

    with patch.object(SourceFileLoader, "get_code", get_code):
        return not pytest.main([*arguments(checkout, core), "-x"], plugins=[Steady(), _Ordered(survey)])
