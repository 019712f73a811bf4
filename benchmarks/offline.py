"""How fast `shiplift predict` scores a dataset, beside the throughput that tuning found for the same version.

    python -m benchmarks.offline --home HOME --model MODEL --input DATA

The model has to be released on the running stack of that home. The dataset is scored several times into a new folder
each; the median counts. Tuning measures requests of one row, as clients send them, and `predict` sends full batches.
"""

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from shiplift.pipelines.engines.local.engine import LocalEngine
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.offline import OfflineOrder, OfflineResult

RESULTS = Path(__file__).parent / "results" / "offline.json"
GOAL = 0.8


def scored(engine: LocalEngine, model: str, source: Path) -> float:
    """The rows per second of one run."""
    with tempfile.TemporaryDirectory() as folder:
        order = OfflineOrder(model=model, input=str(source.absolute()), output=f"{folder}/out")
        *_, result = engine.score(order)
        assert isinstance(result, OfflineResult)
        return result.rows_per_s


def main() -> None:
    """Measures, and writes the figures."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    engine = LocalEngine(asked.home)
    version = (engine.champions() or {})[asked.model]
    tuned = engine.history(engine.report(asked.model, version)).last(Tuned)
    assert tuned is not None
    best = tuned.best.throughput_per_s
    rates = [scored(engine, asked.model, asked.input) for _ in range(asked.rounds)]
    figures = {
        "tuned_per_s": round(best),
        "rows_per_s": [round(rate) for rate in rates],
        "ratio": round(statistics.median(rates) / best, 2),
        "goal": GOAL,
        "cores": os.cpu_count(),
        "load": [round(value, 1) for value in os.getloadavg()],
    }
    RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
