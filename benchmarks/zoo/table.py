"""All cases of the zoo, and README's table of flavors, which is made from them."""

from benchmarks.zoo.case import Case
from benchmarks.zoo.cases.graphs import GRAPHS
from benchmarks.zoo.cases.huggingface import HUGGINGFACE
from benchmarks.zoo.cases.networks import TORCH
from benchmarks.zoo.cases.python import PYTHON
from benchmarks.zoo.cases.tables import TABLES

CASES: tuple[Case, ...] = (*TABLES, *TORCH, *HUGGINGFACE, *GRAPHS, *PYTHON)


def flavors() -> str:
    """The table of flavors in Markdown: what of each is promoted, and what is refused and why."""
    lines = ["| Logged with | Promoted | Refused |", "|---|---|---|"]
    for flavor in dict.fromkeys(case.flavor for case in CASES):
        of = [case for case in CASES if case.flavor == flavor]
        taken = "; ".join(case.about for case in of if case.right == "promoted")
        refused = "; ".join(f"{case.about} ({case.why})" for case in of if case.right == "refused")
        lines.append(f"| `mlflow.{flavor}` | {taken} | {refused or '-'} |")
    return "\n".join(lines)
