"""The pure cores that are mutated, and the unit tests of each."""

from dataclasses import dataclass
from pathlib import Path

_OPERATOR = (
    *("conditions", "deciding", "evidence", "measurements", "observed", "repair", "resources", "rollout", "shares"),
    *("stages", "step", "wanted", "groups/*", "monitoring/*", "scaling/*", "sharing/*", "upkeep/*"),
)
_OF_OPERATOR = ("test_*.py", "groups", "monitoring", "scaling", "sharing", "upkeep")
_GATES = ("checks", "comparison", "policy", "quality", "statistics")
_CONTRACTS = ("contracts", "graph_contract", "lengths", "padding", "tensors")


@dataclass(frozen=True, kw_only=True)
class Core:
    """Modules without side effects and the tests that should notice their mutants, both as patterns.

    `most`: how many mutants of each module are tried; fewer where the tests take long.
    """

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    most: int = 20

    def files(self, checkout: Path) -> tuple[str, ...]:
        """The modules, as paths in the checkout.

        Raises:
            ValueError: a pattern matches nothing.
        """
        return tuple(path for path in self._found(checkout, self.modules) if not path.endswith("__init__.py"))

    def tested_by(self, checkout: Path) -> tuple[str, ...]:
        """The files and folders of its tests, as paths in the checkout.

        Raises:
            ValueError: a pattern matches nothing.
        """
        return self._found(checkout, self.tests)

    def _found(self, checkout: Path, patterns: tuple[str, ...]) -> tuple[str, ...]:
        found = {pattern: sorted(checkout.glob(pattern)) for pattern in patterns}
        if missing := [pattern for pattern, paths in found.items() if not paths]:
            raise ValueError(f"{self.name}: the checkout has no {', '.join(missing)}: edit {Path(__file__).name}")
        return tuple(path.relative_to(checkout).as_posix() for paths in found.values() for path in paths)


CORES = (
    Core(
        name="gates",
        modules=tuple(f"runtime/gates/{name}.py" for name in _GATES),
        tests=("tests/unit/runtime/gates",),
    ),
    Core(name="spec", modules=("runtime/spec/*.py",), tests=("tests/unit/runtime/spec",), most=12),
    Core(
        name="contracts",
        modules=tuple(f"runtime/model/{name}.py" for name in _CONTRACTS),
        tests=tuple(f"tests/unit/runtime/model/test_{name}.py" for name in _CONTRACTS),
    ),
    Core(
        name="cache keys",
        modules=("pipelines/engines/cache_key.py",),
        tests=("tests/unit/pipelines/engines/test_cache_key.py",),
    ),
    Core(
        name="operator",
        modules=tuple(f"runtime/serving/operator/{name}.py" for name in _OPERATOR),
        tests=tuple(f"tests/unit/runtime/serving/operator/{name}" for name in _OF_OPERATOR),
        most=8,
    ),
    Core(
        name="scaling to zero",
        modules=("runtime/serving/operator/zero/*.py",),
        tests=("tests/unit/runtime/serving/operator/zero",),
        most=8,
    ),
)
