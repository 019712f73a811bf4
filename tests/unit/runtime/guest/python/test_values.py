import datetime
import decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shiplift.runtime.guest.python.values import MISSING, column, is_missing, kind_of, texts, values


def test_what_no_number_holds_is_the_same_behind_its_text() -> None:
    cases: list[tuple[str, list[Any]]] = [
        ("string", ["", "null", "ü\n", None]),
        ("binary", [b"", b"\x00\xff\x00"]),
        ("json", [[1, 2], {"a": {"b": [None, "x"]}}, "no JSON", True, 1.5]),
    ]
    for kind, held in cases:
        assert values(texts(held).reshape(-1, 1), kind) == held


def test_a_text_is_no_number_in_a_column_that_may_hold_either() -> None:
    held = ["1", "null", "NaN", '"a"', "[1]", "plain", "", 1, None, [1], {"a": "1"}, True]
    assert values(texts(held, "any").reshape(-1, 1), "json") == held


def test_dates_come_as_mlflow_gives_them_whatever_their_text() -> None:
    moment = datetime.datetime(2024, 2, 29, 12, 30)
    held = [moment, "2024-02-29T12:30:00Z", "2024-02-29T13:30:00+01:00", "2024-02-29 12:30", np.datetime64(moment)]
    read = values(texts([*held, None, pd.NaT]), "datetime")
    assert read.dtype == "datetime64[ns]"
    assert read[: len(held)].tolist() == [pd.Timestamp(moment)] * len(held)
    assert read[len(held) :].isna().all()
    with pytest.raises(ValueError, match="yesterday"):
        values(texts(["yesterday"]), "datetime")


def test_numbers_stay_arrays_and_booleans_may_be_missing() -> None:
    numbers = np.arange(3.0).reshape(-1, 1)
    assert values(numbers, "double").tolist() == [0, 1, 2]
    assert values(np.array([[1.0], [0], [np.nan]], np.float32), "boolean") == [True, False, None]
    with pytest.raises(ValueError, match="neither true"):
        values(np.array([[0.5]], np.float32), "boolean")


def test_what_json_lacks_is_written_as_what_it_has() -> None:
    held = {"n": np.float32(0.5), "v": np.arange(2), "d": decimal.Decimal("1.5"), "b": b"\xff"}
    assert texts([held]).tolist() == ['{"n": 0.5, "v": [0, 1], "d": 1.5, "b": "/w=="}']
    with pytest.raises(TypeError, match="object has no form in JSON"):
        texts([[object()]])


def test_every_library_s_missing_value_is_one() -> None:
    missing = [None, float("nan"), np.float32("nan"), np.datetime64("NaT"), pd.NaT, pd.NA]
    assert all(map(is_missing, missing))
    assert texts(missing).tolist() == [MISSING] * len(missing)
    assert not any(map(is_missing, ["", "nan", "NaT", 0, False, [], [None], b"nan", np.array([np.nan])]))


def test_the_kind_of_a_column_is_mlflow_s_name_of_its_type() -> None:
    assert kind_of(SimpleNamespace(type=SimpleNamespace(name="datetime"))) == "datetime"
    assert kind_of(SimpleNamespace(type=["nested"])) == "json"


def test_a_column_of_texts_has_one_type_whatever_is_missing() -> None:
    frames = [pd.DataFrame({"t": column(texts(held), "string")}) for held in (["a", None], [None], ["a"])]
    assert len({frame["t"].dtype for frame in frames}) == 1
    assert frames[0]["t"].isna().tolist() == [False, True]
    assert column(np.array([1.5]), "string").tolist() == [1.5]
