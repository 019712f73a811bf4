from typing import Any

import numpy as np

from shiplift.runtime.admission.known_rows import asked_of
from shiplift.runtime.records.facts import ColumnFacts, ModelFacts
from tests.unit.examples import tensor


def asked_values(datatype: Any, *, coarse: bool) -> tuple[set[float], set[float]]:
    """The first column of the rows that are asked: all of its values, and those on and beside a threshold."""
    kind = np.float64 if datatype == "FP64" else np.float32
    facts = ModelFacts(
        inputs=(tensor("x", -1, 2, datatype=datatype),), columns=(ColumnFacts(input="x", index=0, thresholds=(0.3,)),)
    )
    known: Any = (facts, {"x": (np.arange(6) / 7).astype(kind).reshape(3, 2)}, {}, 0.0)
    rows = [
        row
        for part in asked_of(*known, coarse=coarse).questions
        for row in zip(part.origins, part.inputs["x"][:, 0].tolist(), strict=True)
    ]
    return {value for _, value in rows}, {value for origin, value in rows if origin.startswith("threshold")}


def test_values_are_as_near_to_thresholds_as_the_signature_tells_them_apart() -> None:
    single = float(np.float32(0.3))
    for datatype, coarse in (("FP32", True), ("FP32", False), ("FP64", False), ("FP64", True)):
        every, near = asked_values(datatype, coarse=coarse)
        assert single in near, (datatype, coarse)
        exact = {0.3, np.nextafter(0.3, 0), np.nextafter(0.3, 1)}
        assert (exact <= near) is (datatype == "FP64" and not coarse), (datatype, coarse)
        if coarse:
            held = [float(np.float32(value)) for value in every if np.isfinite(value)]
            assert set(held) == {value for value in every if np.isfinite(value)}, "what clients in FP32 send"


def test_large_rows_are_fewer() -> None:
    image = {"x": np.ones((2, 3, 64, 64), np.float32)}
    facts = ModelFacts(inputs=(tensor("x", -1, 3, 64, 64),))
    counts = [
        sum(len(part.origins) for part in asked_of(facts, image, {}, seconds).questions) for seconds in (0.0, 0.5)
    ]
    assert counts[0] <= 400
    assert counts[1] <= 4
