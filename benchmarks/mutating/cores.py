"""The pure cores that are mutated, and the unit tests of each."""

from dataclasses import dataclass
from pathlib import Path

_OPERATOR = (
    "conditions", "deciding", "evidence", "groups/*", "measurements", "monitoring/*", "observed", "repair", "resources",
    "rollout", "scaling/*", "shares", "sharing/*", "stages", "step", "upkeep/*", "wanted", "zero/*",
)  # fmt: skip
_GATES = ("checks", "comparison", "policy", "quality", "statistics")
_CONTRACTS = ("contracts", "graph_contract", "lengths", "padding", "tensors")


@dataclass(frozen=True, kw_only=True)
class Core:
    """Modules without side effects, as patterns, and the tests that should notice their mutants."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]

    def files(self, checkout: Path) -> tuple[str, ...]:
        """The modules, as paths in the checkout.

        Raises:
            ValueError: a pattern matches no module, or a test is missing.
        """
        found = {pattern: sorted(checkout.glob(pattern)) for pattern in self.modules}
        missing = [pattern for pattern, paths in found.items() if not paths]
        missing += [test for test in self.tests if not (checkout / test).exists()]
        if missing:
            raise ValueError(
                f"{self.name}: the checkout has no {', '.join(missing)}: edit benchmarks/mutating/cores.py"
            )
        paths = [path for some in found.values() for path in some if path.stem != "__init__"]
        return tuple(path.relative_to(checkout).as_posix() for path in paths)


CORES = (
    Core(
        name="gates",
        modules=tuple(
            f"runtime/gates/{name}.py" for name in ("checks", "comparison", "policy", "quality", "statistics")
        ),
        tests=("tests/unit/runtime/gates",),
    ),
    Core(name="spec", modules=("runtime/spec/*.py",), tests=("tests/unit/runtime/spec",)),
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
        tests=("tests/unit/runtime/serving/operator",),
    ),
)
