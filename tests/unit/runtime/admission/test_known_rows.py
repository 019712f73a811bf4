from typing import Any

import numpy as np

from shiplift.runtime.admission.known_rows import asked_of
from shiplift.runtime.records.facts import ColumnFacts, ModelFacts
from tests.unit.examples import tensor


def origins(datatype: Any, *, narrow: bool) -> tuple[set[str], str]:
    kind = np.float64 if datatype == "FP64" else np.float32
    facts = ModelFacts(
        inputs=(tensor("x", -1, 2, datatype=datatype),), columns=(ColumnFacts(input="x", index=0, thresholds=(0.5,)),)
    )
    asked = asked_of(facts, {"x": np.arange(6, dtype=kind).reshape(3, 2)}, {}, 0.0, narrow=narrow)
    kinds = {origin.partition(":")[0] for part in asked.questions for origin in part.origins}
    return kinds, " ".join(asked.left_out)


def test_values_on_thresholds_are_asked_where_clients_can_say_them() -> None:
    for datatype, narrow, asked in (("FP32", True, True), ("FP64", False, True), ("FP64", True, False)):
        kinds, left_out = origins(datatype, narrow=narrow)
        assert ("threshold" in kinds) is asked, (datatype, narrow)
        assert ("clients send FP32" in left_out) is not asked, (datatype, narrow)


def test_large_rows_are_fewer() -> None:
    image = {"x": np.ones((2, 3, 64, 64), np.float32)}
    facts = ModelFacts(inputs=(tensor("x", -1, 3, 64, 64),))
    counts = [
        sum(len(part.origins) for part in asked_of(facts, image, {}, seconds, narrow=False).questions)
        for seconds in (0.0, 0.5)
    ]
    assert counts[0] <= 400
    assert counts[1] <= 4
