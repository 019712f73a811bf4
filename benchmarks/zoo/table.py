"""All cases of the zoo, and the documentation's table of how those that were run ended."""

from benchmarks.zoo.case import Case
from benchmarks.zoo.cases import estimators, modules
from benchmarks.zoo.cases.boosting import BOOSTING
from benchmarks.zoo.cases.graphs import GRAPHS
from benchmarks.zoo.cases.huggingface import HUGGINGFACE
from benchmarks.zoo.cases.networks import TORCH
from benchmarks.zoo.cases.python import PYTHON
from benchmarks.zoo.cases.python_forms import PYTHON_FORMS
from benchmarks.zoo.cases.tables import TABLES
from benchmarks.zoo.results import Results

CASES: tuple[Case, ...] = (*TABLES, *TORCH, *HUGGINGFACE, *GRAPHS, *PYTHON)


def exported() -> tuple[Case, ...]:
    """The cases of `--export-only`: scikit-learn's estimators, boosting, Python models, and operators of PyTorch."""
    return (*estimators.cases(), *BOOSTING, *PYTHON_FORMS, *modules.cases())


def outcomes(results: Results) -> str:
    """The table of outcomes in Markdown: a line for each case that was run, in the order of the zoo's table."""
    lines = ["| Logged with | Model | Outcome | Exit code | Served as |", "|---|---|---|---|---|"]
    ended = {result.name: result for result in results.cases}
    for case in CASES:
        if result := ended.get(case.name):
            code = "-" if result.exit_code is None else result.exit_code
            served = result.served or "-"
            lines.append(f"| `mlflow.{case.flavor}` | {case.about} | {result.outcome} | {code} | {served} |")
    return "\n".join(lines)
