import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.admission.known_rows import asked_of, known_rows
from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.model.tensors import dump_npz
from shiplift.runtime.proof.questions.question import KnownRows
from shiplift.runtime.records.facts import ColumnFacts, ModelFacts
from tests.unit.examples import tensor


def asked_values(datatype: Any, *, coarse: bool) -> tuple[set[float], set[float]]:
    """The first column of the rows that are asked: all of its values, and those on and beside a threshold."""
    kind = np.float64 if datatype == "FP64" else np.float32
    facts = ModelFacts(
        inputs=(tensor("x", -1, 2, datatype=datatype),), columns=(ColumnFacts(input="x", index=0, thresholds=(0.3,)),)
    )
    known: Any = (facts, KnownRows(example={"x": (np.arange(6) / 7).astype(kind).reshape(3, 2)}), 0.0)
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
        sum(len(part.origins) for part in asked_of(facts, KnownRows(example=image), seconds).questions)
        for seconds in (0.0, 0.5)
    ]
    assert counts[0] <= 400
    assert counts[1] <= 4


def test_what_clients_sent_is_asked_unless_it_does_not_fit_the_model(tmp_path: Path) -> None:
    specs, example = (tensor("x", -1, 2),), {"x": np.zeros((1, 2), np.float32)}
    limits = {"file": None, "unpacked_mb": 64, "samples": 1000}
    body = {"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
    for name, content, rows in (
        ("requests.json", json.dumps([body, body]).encode(), 4),
        ("requests.npz", dump_npz({"x": np.ones((3, 2), np.float32)}), 3),
        ("requests.npz", dump_npz({"other": np.ones((3, 2), np.float32)}), 0),
        ("requests.npz", dump_npz({"x": np.ones((1001, 2), np.float32)}), 0),
        ("requests.json", b"{", 0),
    ):
        (tmp_path / "recorded").write_bytes(content)
        known = limits | {"recorded": str(tmp_path / "recorded"), "recorded_name": name}
        given = known_rows(known, specs, example)
        assert len(given.recorded.get("x", ())) == rows, name
        origins = [each for part in asked_of(ModelFacts(inputs=specs), given, 0.0).questions for each in part.origins]
        assert origins.count("recorded") == rows


def test_validation_data_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "validation").write_bytes(dump_npz({"x": np.ones((1001, 2), np.float32), "label": np.ones(1001)}))
    known: dict[str, Any] = {"file": str(tmp_path / "validation"), "name": "v.npz", "label": "label", "columns": []}
    known |= {"unpacked_mb": 64, "samples": 1000, "recorded": None, "recorded_name": ""}
    with pytest.raises(DataInvalid, match="1001 samples, the limit is 1000"):
        known_rows(known, (tensor("x", -1, 2),), {})
