"""`make bench-proof`: runs the models, sabotages the right ones, and says which goals of issue 42 are missed."""

import argparse
import fnmatch
import importlib.util
import os
import sys
from pathlib import Path

from benchmarks.proof.case import Case
from benchmarks.proof.goals import missed
from benchmarks.proof.results import RESULTS, Depth, Results, read, write
from benchmarks.proof.summary import show
from benchmarks.proof.table import CASES, SABOTAGED

_EXAMPLES = """\
examples:
  make bench-proof                                              every model released, and what was exported sabotaged
  python -m benchmarks.proof --export-only                      without releases: minutes
  python -m benchmarks.proof --export-only --part b --only 'torch-*'
  python -m benchmarks.proof --export-only --resume             what the results don't have yet
"""
_PARTS = ("a", "b", "c", "d")


def tell(message: str) -> None:
    """Prints progress to stderr."""
    print(message, file=sys.stderr, flush=True)


def chosen(only: list[str], parts: str, done: Results | None, depth: Depth) -> list[Case]:
    """The models to run: of these parts, with names that fit a pattern, and not in `done`.

    Part b sabotages some right models of either part; part d is the time that the others took.

    Raises:
        SystemExit: a pattern fits no model.
    """
    for pattern in only:
        if not any(fnmatch.fnmatchcase(case.name, pattern) for case in CASES):
            raise SystemExit(f"no model is called '{pattern}': see --list")
    finished = {result.name for result in done.cases if result.depth == depth} if done else set()
    patterns = only or ["*"]
    return [
        case
        for case in CASES
        if case.name not in finished
        and any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns)
        and (case.part in parts or "d" in parts or ("b" in parts and case.name in SABOTAGED))
        and all(importlib.util.find_spec(module) for module in case.needs)
    ]


def run_exports(cases: list[Case], file: Path, results: Results, *, sabotage: bool) -> Results:
    """Exports the models one after the other; the results are written after each."""
    from benchmarks.proof.running import exported

    for number, case in enumerate(cases, 1):
        tell(f"{number}/{len(cases)} {case.name}: {case.about}")
        news = list(exported(case, sabotage=sabotage and case.name in SABOTAGED))
        for each in news:
            tell(f"  {each.model_dump_json(exclude_defaults=True)}")
        results = results.including(*news)
        write(file, results)
    return results


def run_releases(cases: list[Case], file: Path, results: Results) -> Results:
    """Releases the models on one stack; the results are written after each."""
    from benchmarks.proof.releasing import releases

    for number, result in enumerate(releases(cases, tell), 1):
        tell(f"{number}/{len(cases)} {result.model_dump_json(exclude_defaults=True)}")
        results = results.including(result)
        write(file, results)
    return results


def main() -> None:
    """Runs what the command line names; exits with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="PATTERN", action="append", default=[], help="only such models (repeatable)")
    parser.add_argument("--part", action="append", choices=_PARTS, help="only this part (repeatable)")
    parser.add_argument("--export-only", action="store_true", help="no releases: the exports, and their files asked")
    parser.add_argument("--resume", action="store_true", help="run only models that the results don't have yet")
    parser.add_argument("--json", action="store_true", help="also print the results as JSON")
    parser.add_argument("--list", action="store_true", help="list the models without running them")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{case.part}  {case.name:<32}{case.flavor:<24}{case.about}" for case in CASES))
        return
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in a sandbox: threads that spin slow a busy machine down
    from benchmarks.server_comparison import machine

    parts = "".join(arguments.part or _PARTS)
    earlier = read(arguments.out)
    results = earlier or Results(machine=machine())
    done = earlier if arguments.resume else None
    if arguments.export_only or "b" in parts:
        cases = chosen(arguments.only, parts, done, "exported")
        results = run_exports(cases, arguments.out, results, sabotage="b" in parts)
    if not arguments.export_only and parts != "b":
        results = run_releases(chosen(arguments.only, parts, done, "released"), arguments.out, results)
    results = results.finished([case.name for case in CASES])
    write(arguments.out, results)
    show(results, arguments.only)
    if arguments.json:
        print(results.model_dump_json())
    if wrong := missed(results, parts, arguments.only):
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
