"""The figures that tests of faults see: printed, and kept in the file that SHIPLIFT_FIGURES names.

For `benchmarks/results/kubernetes.json`, which has the figures of the benchmarks, too.
"""

import json
import os
from pathlib import Path

from filelock import FileLock


def keep(fault: str, **figures: float) -> None:
    """Adds figures of a fault to what is known of it; a name ends in its unit."""
    print(f"{fault}: " + ", ".join(f"{name} {value:g}" for name, value in figures.items()))
    named = os.environ.get("SHIPLIFT_FIGURES", "")
    if not named:
        return
    file = Path(named)
    with FileLock(f"{file}.lock"):
        results = json.loads(file.read_text()) if file.is_file() else {}
        faults = results.setdefault("faults", {})
        faults[fault] = faults.get(fault, {}) | {name: round(value, 2) for name, value in figures.items()}
        file.write_text(json.dumps(results, indent=1) + "\n")
