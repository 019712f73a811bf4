"""One run of a core's tests without any mutant: how long each takes, and which lines of the core it runs."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from coverage import Coverage

from benchmarks.mutating.cores import Core

_OURS = ("shiplift", "tests", "benchmarks", "conftest", "__main__")


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What was seen of the tests.

    `seconds`: the CPU time of each test. `lines`: the tests that run a line of a module. `imported`: the lines that run
    before any test. `libraries`: what was imported of others.
    """

    seconds: dict[str, float]
    lines: dict[str, dict[int, frozenset[str]]]
    imported: dict[str, frozenset[int]]
    libraries: tuple[str, ...]

    def tests_of(self, module: str, first: int, last: int) -> tuple[str, ...]:
        """The tests that run any of these lines, the shortest first."""
        tests = self.lines.get(module, {})
        return self.in_order(frozenset().union(*(tests.get(line, frozenset()) for line in range(first, last + 1))))

    def in_order(self, tests: frozenset[str] | None = None) -> tuple[str, ...]:
        """These tests, or all, the shortest first."""
        return tuple(sorted(self.seconds if tests is None else tests, key=lambda test: (self.seconds[test], test)))

    def run_at_import(self, module: str, first: int, last: int) -> bool:
        """Whether any of these lines runs before the tests."""
        return not self.imported.get(module, frozenset()).isdisjoint(range(first, last + 1))


class Steady:
    """A plugin for pytest that makes property tests the same in every run, and quick to fail."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Changes the profile that the tests' own configuration has loaded, before any test is imported."""
        from hypothesis import HealthCheck, Phase, settings

        phases = (Phase.explicit, Phase.generate)
        checks = tuple(HealthCheck)
        settings.register_profile(
            "mutants", settings(), phases=phases, database=None, derandomize=True, suppress_health_check=checks
        )
        settings.load_profile("mutants")


class _Watch:
    """A plugin that notes what each test takes, and which fail."""

    def __init__(self, coverage: Coverage) -> None:
        self.coverage = coverage
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        started = time.process_time()
        result = yield
        self.seconds[item.nodeid] = time.process_time() - started
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def arguments(checkout: Path, core: Core) -> list[str]:
    """pytest's arguments for the tests of a core."""
    settings = ["--rootdir", str(checkout), "-c", str(checkout / "pyproject.toml"), "-p", "no:cacheprovider"]
    return [*settings, "--capture=sys", *core.tested_by(checkout)]


def survey(checkout: Path, core: Core) -> Survey:
    """Runs the tests of a core in this process, which nothing of the checkout may have been imported into.

    Raises:
        ValueError: tests fail without any mutant.
    """
    files = {str((checkout / module).resolve()): module for module in core.files(checkout)}
    coverage = Coverage(data_file=None, config_file=False, include=list(files), messages=False)
    watch = _Watch(coverage)
    coverage.start()
    code = pytest.main(arguments(checkout, core), plugins=[Steady(), watch])
    coverage.stop()
    if code or watch.failed:
        raise ValueError(f"{core.name}: tests fail without any mutant: {', '.join(watch.failed) or f'pytest: {code}'}")
    data = coverage.get_data()
    seen = {files[file]: data.contexts_by_lineno(file) for file in data.measured_files()}
    return Survey(
        seconds=watch.seconds,
        lines={
            module: {line: frozenset(tests) & watch.seconds.keys() for line, tests in lines.items()}
            for module, lines in seen.items()
        },
        imported={
            module: frozenset(line for line, tests in lines.items() if "" in tests) for module, lines in seen.items()
        },
        libraries=tuple(name for name in sys.modules if name.partition(".")[0] not in _OURS),
    )
