from typing import Any

import numpy as np

from shiplift.runtime.admission.known_rows import asked_of, precise
from shiplift.runtime.records.facts import ColumnFacts, ModelFacts
from tests.unit.examples import tensor


def near_thresholds(datatype: Any, *, narrow: bool) -> tuple[set[float], set[float]]:
    """The first column of the rows on and beside a threshold: of all forms, and of those in FP64 alone."""
    kind = np.float64 if datatype == "FP64" else np.float32
    facts = ModelFacts(
        inputs=(tensor("x", -1, 2, datatype=datatype),), columns=(ColumnFacts(input="x", index=0, thresholds=(0.3,)),)
    )
    known: Any = (facts, {"x": np.arange(6, dtype=kind).reshape(3, 2)}, {}, 0.0)
    found: list[set[float]] = [set(), set()]
    for at, asked in enumerate((asked_of(*known, narrow=narrow), precise(*known, narrow=narrow))):
        for part in asked.questions:
            rows = zip(part.origins, part.inputs["x"][:, 0].tolist(), strict=True)
            found[at] |= {value for origin, value in rows if origin.startswith("threshold")}
    return found[0], found[1]


def test_values_on_thresholds_are_asked_as_near_as_each_form_tells_them_apart() -> None:
    single = float(np.float32(0.3))
    for datatype, narrow in (("FP32", True), ("FP32", False), ("FP64", False)):
        asked, of_doubles = near_thresholds(datatype, narrow=narrow)
        assert single in asked, (datatype, narrow)
        assert not of_doubles, (datatype, narrow)
        assert (0.3 in asked) is (datatype == "FP64")
    asked, of_doubles = near_thresholds("FP64", narrow=True)
    assert single in asked
    assert all(float(np.float32(value)) == value for value in asked), "what FP32 holds"
    assert {0.3, np.nextafter(0.3, 0), np.nextafter(0.3, 1)} <= of_doubles


def test_large_rows_are_fewer() -> None:
    image = {"x": np.ones((2, 3, 64, 64), np.float32)}
    facts = ModelFacts(inputs=(tensor("x", -1, 3, 64, 64),))
    counts = [
        sum(len(part.origins) for part in asked_of(facts, image, {}, seconds, narrow=False).questions)
        for seconds in (0.0, 0.5)
    ]
    assert counts[0] <= 400
    assert counts[1] <= 4
