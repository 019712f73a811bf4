"""The table of every run of a load test."""

import csv
import io

from shiplift.runtime.measure.findings import table_of


def test_every_run_is_a_row_with_the_load_generator_s_own_columns() -> None:
    run = {"side": "challenger", "windows": (), "row": {"Concurrency": "4", "p50 latency": "700"}}
    closed = {"phase": "sweep", "demand": {"concurrency": 4, "rate_per_s": 0.0}, **run}
    paced = {
        "phase": "open loop",
        "demand": {"concurrency": 0, "rate_per_s": 9.5},
        **run,
        "row": {"Request Rate": "9.5"},
    }
    rows = list(csv.DictReader(io.StringIO(table_of([closed, paced]).decode())))
    assert [(row["phase"], row["side"], row["concurrency"], row["rate_per_s"]) for row in rows] == [
        ("sweep", "challenger", "4", "0.0"),
        ("open loop", "challenger", "0", "9.5"),
    ]
    assert [(row["Concurrency"], row["p50 latency"], row["Request Rate"]) for row in rows] == [
        ("4", "700", ""),
        ("", "", "9.5"),
    ]
