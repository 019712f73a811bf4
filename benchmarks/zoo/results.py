"""The content of `benchmarks/results/zoo.json`, written after each case, so that a run can resume where it stopped."""

from pathlib import Path
from typing import Any, Literal

from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.records.base import Record

RESULTS = Path(__file__).parents[1] / "results" / "zoo.json"
EXPORTS = RESULTS.with_name("zoo_exports.json")
METHOD = {
    "max_difference": "between production's answer and mlflow.pyfunc's (the original's where pyfunc takes no such"
    " input), over all outputs; in the outputs' own unit; texts must be equal",
    "throughput": "answers per second of production's Triton, 16 clients of benchmarks/load.py, one sample per request,"
    " HTTP with binary tensors; null for sequences",
    "pyfunc_throughput": "samples per second of model.predict in a loop, in one process, one sample per call",
    "quick": "true: short searches and windows, so that throughput and seconds are no measurements",
    "seconds": "from registration to the end of the release",
}


class Result(Record):
    """How a case ended: `failed` is whatever the case's table does not call right; then `reason` says what.

    `exit_code` is the release's; None if there was no end of a release. `served` is the engine and the precision in
    production. Exported by themselves, `form` is a graph, trees or Python, `wrong` of the fresh `rows` were answered
    otherwise, and `commit` is the checkout's, with a plus if its files differed. `quick` results come from short
    searches and windows: their throughput is not a measurement.
    """

    name: str
    flavor: str
    outcome: Literal["promoted", "exported", "refused", "failed"]
    reason: str = ""
    exit_code: int | None = None
    served: str = ""
    quick: bool = False
    input: str = ""
    form: str = ""
    rows: int = 0
    wrong: int = 0
    seconds: float = 0.0
    commit: str = ""
    max_difference: float | None = None
    throughput: float | None = None
    pyfunc_throughput: float | None = None


class Results(Record):
    """The machine, how it was measured, and the cases that were run."""

    machine: dict[str, Any]
    method: dict[str, str] = METHOD
    cases: tuple[Result, ...] = ()

    def including(self, result: Result) -> "Results":
        """The results with a case's newest result."""
        others = tuple(case for case in self.cases if case.name != result.name)
        return self.model_copy(update={"cases": (*others, result)})


def read(file: Path) -> Results | None:
    """The results of an earlier run; None without one."""
    return Results.model_validate_json(file.read_text()) if file.is_file() else None


def write(file: Path, results: Results) -> None:
    """Replaces the results."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, results.model_dump_json(indent=1) + "\n")
