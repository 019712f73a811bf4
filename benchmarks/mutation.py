"""`make mutants`: how many small changes of the pure cores the unit tests notice.

mutmut's operators change one place at a time, at sites chosen by a fixed seed, and the unit tests of the core run
against each change until one fails. mutmut itself can't run them: it mutates copies of files under their own names, and
only functions, while the rooms are imported through links and the spec is mostly fields. `--checkout` mutates another
checkout with its own tests: a suite before a change is compared with the one after it. The figures of other cores stay
in the results.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import processor
from benchmarks.mutating.cores import CORES, Core
from benchmarks.mutating.mutants import Mutant, sample
from benchmarks.mutating.processes import isolated
from benchmarks.mutating.survey import survey
from benchmarks.mutating.trials import survivors

HERE = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "mutation.json"
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # threads don't survive a fork


def measure(checkout: Path, core: Core, most: int, seed: int) -> dict[str, dict[str, Any]]:
    """Tries up to `most` mutants of each module of a core; a row for each module.

    Raises:
        RuntimeError: the tests fail without any mutant.
    """
    samples = {module: sample(checkout, module, most, seed) for module in core.files(checkout)}
    seen = isolated(partial(survey, checkout, core))
    left = survivors(checkout, core, [mutant for _, mutants in samples.values() for mutant in mutants], seen)
    return {
        module: row(core, sites, mutants, [mutant for mutant in mutants if mutant in left])
        for module, (sites, mutants) in samples.items()
    }


def row(core: Core, sites: int, mutants: Iterable[Mutant], left: list[Mutant]) -> dict[str, Any]:
    """The figures of a module, and where its survivors are."""
    tried = len(tuple(mutants))
    killed = tried - len(left)
    return {
        "core": core.name,
        "sites": sites,
        "mutants": tried,
        "killed": killed,
        "survived": len(left),
        "share": _share(killed, tried),
        "survivors": [
            {
                "line": each.line,
                "scope": each.scope,
                "operator": each.operator,
                "before": each.before,
                "after": each.after,
            }
            for each in left
        ],
    }


def totals(modules: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The figures of each core, and of `all` of them."""
    found: dict[str, dict[str, Any]] = {}
    for module in modules:
        for name in (module["core"], "all"):
            total = found.setdefault(name, {"mutants": 0, "killed": 0})
            total["mutants"] += module["mutants"]
            total["killed"] += module["killed"]
    every = found.pop("all", None)
    found |= {"all": every} if every else {}
    return {name: {**total, "share": _share(total["killed"], total["mutants"])} for name, total in found.items()}


def _share(killed: int, mutants: int) -> float | None:
    return round(killed / mutants, 3) if mutants else None


def table(cores: dict[str, dict[str, Any]]) -> Table:
    """A row for each core."""
    rows = Table("core", "mutants", "killed", "share", box=None, header_style="bold")
    for name, total in cores.items():
        rows.add_row(name, str(total["mutants"]), str(total["killed"]), f"{100 * total['share']:.1f} %")
    return rows


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, default=HERE, help="mutate and test another checkout")
    parser.add_argument("--only", choices=[core.name for core in CORES], help="one core")
    parser.add_argument("--mutants", type=int, help="mutants per module, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> None:
    """Tries the mutants, prints the shares, and writes the results."""
    arguments = _arguments()
    checkout, out, console = arguments.checkout.resolve(), arguments.out.resolve(), Console()
    results: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {}
    modules: dict[str, Any] = results.get("modules", {})
    seconds: dict[str, float] = results.get("seconds", {})
    sys.path.insert(0, str(checkout))
    os.chdir(checkout)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= dict.fromkeys(_ONE_THREAD, "1") | {"HYPOTHESIS_STORAGE_DIRECTORY": folder, "TMPDIR": folder}
        for core in CORES:
            if arguments.only not in (None, core.name):
                continue
            started = time.monotonic()
            modules = {path: figures for path, figures in modules.items() if figures["core"] != core.name}
            modules |= measure(checkout, core, arguments.mutants or core.most, arguments.seed)
            seconds[core.name] = round(time.monotonic() - started, 1)
            results = {
                "machine": {"processor": processor()},
                "seed": arguments.seed,
                "seconds": seconds,
                "cores": totals(modules.values()),
                "modules": modules,
            }
            out.write_text(json.dumps(results, indent=1) + "\n")
            console.print(table({core.name: results["cores"][core.name]}))
    console.print(table(results["cores"]))


if __name__ == "__main__":
    main()
