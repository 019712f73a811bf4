"""`make fuzz`: each parser of foreign bytes, a million executions of Atheris' mutations.

Atheris changes what made the parser take another way before. A target that hangs, crashes or runs out of memory goes on
in a new process; the input is kept. Figures of other targets stay in the results.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.fuzzing.targets import TARGETS, Target
from benchmarks.machine import processor

RESULTS = Path(__file__).parent / "results" / "fuzz.json"
_MOST_ENDS = 20  # of a target's process before it is given up


def fuzz(target: Target, executions: int, folder: Path, limit_s: float) -> dict[str, Any]:
    """The figures of a target: executions, seconds, and findings by kind and place."""
    work = folder / str(TARGETS.index(target))
    work.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.fuzzing.one", str(TARGETS.index(target)), str(work), str(executions)]
    began = time.monotonic()
    ends: list[str] = []
    with (work / "log").open("ab") as log:
        while len(ends) < _MOST_ENDS and (left := limit_s - (time.monotonic() - began)) > 0:
            try:
                code = subprocess.run(command, stdout=log, stderr=log, timeout=left, check=False).returncode
            except subprocess.TimeoutExpired:
                break
            if code == 0:
                break
            ends.append(f"the process ended with {code}: see {work.name}/log")
    figures: dict[str, Any] = json.loads((work / "figures.json").read_text())
    kept = sorted(path.name for path in work.iterdir() if path.name.startswith(("crash", "timeout", "oom", "leak")))
    findings = [{"what": key, **each} for key, each in figures["findings"].items()]
    return {
        "target": target.name,
        **figures,
        "per_second": round(figures["executions"] / max(figures["seconds"], 0.1)),
        "findings": findings,
        "ended": [*ends, *kept],
    }


def table(results: list[dict[str, Any]]) -> Table:
    """A row for each target."""
    rows = Table("target", "executions", "a second", "slowest", "findings", box=None, header_style="bold")
    for each in results:
        found = len(each["findings"]) + len(each["ended"])
        rows.add_row(
            each["target"],
            f"{each['executions']:,}",
            f"{each['per_second']:,}",
            f"{each['slowest_ms']:g} ms",
            str(found),
        )
    return rows


def main() -> None:
    """Fuzzes the targets in turn, prints what was found, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=1_000_000)
    parser.add_argument("--only", help="targets whose names contain this")
    parser.add_argument("--limit-s", type=float, default=1e6, help="of a target")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "shiplift-fuzz")
    arguments = parser.parse_args()
    known = json.loads(arguments.out.read_text())["targets"] if arguments.out.is_file() else []
    for target in TARGETS:
        if arguments.only and arguments.only not in target.name:
            continue
        found = fuzz(target, arguments.executions, arguments.work, arguments.limit_s)
        known = [each for each in known if each["target"] != target.name] + [found]
        arguments.out.write_text(json.dumps({"machine": {"processor": processor()}, "targets": known}, indent=1) + "\n")
        Console().print(table([found]))


if __name__ == "__main__":
    main()
