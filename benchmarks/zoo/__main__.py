"""`make zoo`: runs the cases on a separate stack, and says which did not end as their table says."""

import argparse
import fnmatch
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.zoo.case import Case
from benchmarks.zoo.results import EXPORTS, RESULTS, Results, read, write
from benchmarks.zoo.table import CASES, exported

_EXAMPLES = """\
examples:
  make zoo                                                 every case, about a minute each
  python -m benchmarks.zoo --quick --only 'sklearn-*' --only onnx-voice
  python -m benchmarks.zoo --resume                        what the results don't have yet
  python -m benchmarks.zoo --resume --only 'hf-*' --json   the same, of these
  python -m benchmarks.zoo --export-only --only 'sklearn/*/frame'
"""


def tell(message: str) -> None:
    """Prints progress to stderr."""
    print(message, file=sys.stderr, flush=True)


def missing(case: Case) -> str:
    """How to install what a case needs and this environment lacks; empty if it has all."""
    lacking = [module for module in case.needs if importlib.util.find_spec(module) is None]
    return f"{', '.join(lacking)} is not installed: {case.install}" if lacking else ""


def chosen(only: list[str], done: Results | None, table: tuple[Case, ...] = CASES) -> list[Case]:
    """The cases to run: those whose names fit a shell pattern, or all if there is none, without those in `done`.

    Raises:
        SystemExit: a pattern fits no case.
    """
    for pattern in only:
        if not any(fnmatch.fnmatchcase(case.name, pattern) for case in table):
            raise SystemExit(f"no case is called '{pattern}': see --list")
    finished = {result.name for result in done.cases} if done else set()
    patterns = only or ["*"]
    return [
        case
        for case in table
        if case.name not in finished and any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns)
    ]


def run(cases: list[Case], file: Path, earlier: Results | None, *, quick: bool) -> Results:
    """Runs cases on one stack; the results are written after each."""
    from benchmarks.server_comparison import machine
    from benchmarks.zoo.running import Runner
    from shiplift.pipelines.engines.local import stack
    from shiplift.pipelines.settings import Settings
    from shiplift.runtime.store.registry.client import prepare_environment

    prepare_environment()
    results = earlier or Results(machine=machine())
    with tempfile.TemporaryDirectory(prefix="shiplift-zoo-") as folder:
        home = Path(folder) / "home"
        running = stack.up(Settings(home=home, free_ports=True), tell)
        os.environ["MLFLOW_TRACKING_URI"] = running.registry_uri
        try:
            runner = Runner(home=home, running=running, quick=quick)
            for number, case in enumerate(cases, 1):
                tell(f"{number}/{len(cases)} {case.name} ({case.flavor}): right is {case.right}")
                result = runner.run(case)
                tell(f"  {result.outcome} after {result.seconds:g} s: {result.model_dump_json()}")
                results = results.including(result)
                write(file, results)
        finally:
            stack.down(home)
    return results


def run_exports(cases: list[Case], file: Path, earlier: Results | None) -> Results:
    """Exports cases one after the other, without a stack; the results are written after each."""
    from benchmarks.server_comparison import machine
    from benchmarks.zoo.export_only import results as ended

    results = earlier or Results(machine=machine())
    for result in ended(cases):
        tell(f"{result.name}: {result.outcome} {result.form} {result.seconds:g} s {result.reason}")
        results = results.including(result)
        write(file, results)
    return results


def main() -> None:
    """Runs the cases that the command line names; exits with 1 if one did not end as its table says."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        action="append",
        default=[],
        help="run only cases whose name matches (may be repeated); others keep their results",
    )
    parser.add_argument("--quick", action="store_true", help="short searches and windows")
    parser.add_argument("--resume", action="store_true", help="keep earlier results, and run only the missing cases")
    parser.add_argument("--json", action="store_true", help="also print the results as JSON")
    parser.add_argument("--list", action="store_true", help="list the cases without running them")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument(
        "--export-only",
        action="store_true",
        help="scan, convert and prove the generated cases in this process, and ask the graphs; no server",
    )
    arguments = parser.parse_args()
    table, file = (exported(), EXPORTS) if arguments.export_only else (CASES, RESULTS)
    file = arguments.out or file
    if arguments.list:
        print("\n".join(f"{case.name:<28}{case.flavor:<24}{case.right:<10}{case.about}" for case in table))
        return
    earlier = read(file) if arguments.resume or arguments.only else None
    wanted = chosen(arguments.only, earlier if arguments.resume else None, table)
    lacking = {case.name: missing(case) for case in wanted}
    for name, what in lacking.items():
        if what:
            tell(f"{name}: skipped, {what}")
    able = [case for case in wanted if not lacking[case.name]]
    if able and arguments.export_only:
        results: Results | None = run_exports(able, file, earlier)
    else:
        results = run(able, file, earlier, quick=arguments.quick) if able else earlier
    if arguments.json and results:
        print(results.model_dump_json())
    ran = {case.name for case in able}
    if wrong := [
        result for result in (results.cases if results else ()) if result.name in ran and result.outcome == "failed"
    ]:
        raise SystemExit("\n".join(f"{result.name}: {result.reason}" for result in wrong))


if __name__ == "__main__":
    main()
