"""Fuzzes one target in this process, and keeps its figures in a file: `python -m benchmarks.fuzzing.one NUMBER ...`.

A finding doesn't end the run: it is kept once for each place that raises it. A hang or a crash ends the process, with
libFuzzer's own file of the input; whoever started it goes on from the figures.
"""

import argparse
import base64
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import atheris  # type: ignore[import-untyped,unused-ignore] # `make fuzz` installs it

from benchmarks.fuzzing.targets import TARGETS, Prepared, Target

_KEEP_EVERY_S = 2.0
_HANG_S, _MEMORY_MB = 20, 3000


class Counted:
    """A parser whose executions are counted, and whose unexpected errors are kept."""

    def __init__(self, prepared: Prepared, file: Path, executions: int) -> None:
        self._prepared, self._file, self._most = prepared, file, executions
        self._figures: dict[str, Any] = {"executions": 0, "seconds": 0.0, "slowest_ms": 0.0, "findings": {}}
        if file.exists():
            self._figures = json.loads(file.read_text())
        self._before = self._figures["seconds"]
        self._began = self._kept = time.monotonic()

    def __call__(self, data: bytes) -> None:
        """Parses an input."""
        began = time.monotonic()
        try:
            self._prepared.parse(data)
        except self._prepared.refusals:
            pass
        except BaseException as error:  # of any kind: a panic is one, too
            self._find(error, data)
        now = time.monotonic()
        self._figures["executions"] += 1
        self._figures["slowest_ms"] = max(self._figures["slowest_ms"], round(1000 * (now - began), 1))
        ended = self._figures["executions"] >= self._most
        if ended or now - self._kept > _KEEP_EVERY_S:
            self._keep(now)
        if ended:
            os._exit(0)

    def _find(self, error: BaseException, data: bytes) -> None:
        frames = [each for each in traceback.extract_tb(error.__traceback__) if "shiplift" in each.filename]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        key = f"{type(error).__name__} at {where}"
        if key not in self._figures["findings"]:
            text = str(error)[:300]
            self._figures["findings"][key] = {"error": text, "input": base64.b64encode(data).decode()}
            print(f"finding: {key}: {text}", file=sys.stderr)

    def _keep(self, now: float) -> None:
        self._kept = now
        self._figures["seconds"] = round(self._before + now - self._began, 1)
        partial = self._file.with_suffix(".new")
        partial.write_text(json.dumps(self._figures))
        partial.replace(self._file)


def fuzz(target: Target, work: Path, executions: int) -> None:
    """Fuzzes a target until it has had so many executions, and ends the process."""
    with atheris.instrument_imports(include=["shiplift"]):
        prepared = target.prepare()
    corpus, seeds = work / "corpus", work / "seeds"
    corpus.mkdir(exist_ok=True)
    seeds.mkdir(exist_ok=True)
    for at, body in enumerate(prepared.corpus):
        (seeds / f"seed{at}").write_bytes(body)
    options = [
        f"-max_len={target.longest}",
        f"-timeout={_HANG_S}",
        f"-rss_limit_mb={_MEMORY_MB}",
        f"-artifact_prefix={work}/",
        "-print_final_stats=0",
        "-verbosity=0",
    ]
    atheris.Setup(
        [sys.argv[0], *options, str(corpus), str(seeds)], Counted(prepared, work / "figures.json", executions)
    )
    atheris.Fuzz()


def main() -> None:
    """Reads the arguments, and fuzzes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", type=int, help="the target's place in the table")
    parser.add_argument("work", type=Path)
    parser.add_argument("executions", type=int)
    arguments = parser.parse_args()
    fuzz(TARGETS[arguments.number], arguments.work, arguments.executions)


if __name__ == "__main__":
    main()
