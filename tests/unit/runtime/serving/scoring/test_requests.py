"""Requests in every content type, and what a refusal says."""

import io
import json
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shiplift.runtime.guest.python.values import values
from shiplift.runtime.serving.scoring.problems import ScoringProblem
from shiplift.runtime.serving.scoring.requests import CSV, JSON, PARQUET, media_type, read_at_once, read_other
from shiplift.runtime.serving.scoring.schema import schema_of
from tests.unit.runtime.serving.scoring.schemas import of_columns, of_tensors

TABLE = of_columns({"age": "double", "count": "long", "city": "string"})
FRAME = pd.DataFrame({"city": ["Ulm", "Köln"], "age": [1.5, None], "count": [1, 2]})


def read(body: Any, kind: str = JSON, served: Any = TABLE) -> Any:
    content = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return read_other(kind, content, schema_of(served)).inputs


def test_a_table_is_the_same_in_json_csv_and_parquet() -> None:
    parquet = io.BytesIO()
    FRAME.to_parquet(parquet)
    for body, kind in (
        ({"dataframe_split": FRAME.to_dict(orient="split")}, JSON),
        (FRAME.to_csv(index=False), CSV),
        (parquet.getvalue(), PARQUET),
    ):
        arrays = read(body, kind)
        assert arrays["city"].tolist() == [["Ulm"], ["Köln"]]
        np.testing.assert_array_equal(arrays["age"], [[1.5], [np.nan]])
        assert (arrays["count"].dtype, arrays["count"].tolist()) == (np.int64, [[1], [2]])


def test_dates_bytes_and_missing_texts_travel_as_the_model_s_own_process_reads_them() -> None:
    served = of_columns({"when": "datetime", "file": "binary", "city": "string"})
    rows = [
        {"when": "2024-05-01T12:00:00", "file": "YWI=", "city": "Ulm"},
        {"when": "2024-05-02T00:00:00", "file": "YWI=\n", "city": None},  # as MLflow writes it itself
    ]
    arrays = read({"dataframe_records": rows}, served=served)
    assert values(arrays["city"], "string") == ["Ulm", None]
    assert values(arrays["file"], "binary") == [b"ab", b"ab"]
    assert [str(date) for date in values(arrays["when"], "datetime")] == ["2024-05-01 12:00:00", "2024-05-02 00:00:00"]


def test_an_optional_column_that_is_not_served_may_be_sent() -> None:
    assert TABLE.scoring
    fields = json.loads(TABLE.scoring.inputs)
    scoring = TABLE.scoring.model_copy(
        update={"inputs": json.dumps([*fields, {"type": "string", "name": "note", "required": False}])}
    )
    served = TABLE.model_copy(update={"scoring": scoring})
    arrays = read({"dataframe_records": [{**ROW, "note": "x"}]}, served=served)
    assert set(arrays) == set(ROW)


def test_only_small_bodies_of_json_are_read_at_once() -> None:
    body = json.dumps({"dataframe_records": [{"age": 1, "count": 2, "city": "Ulm"}]}).encode()
    assert read_at_once(JSON, body, schema_of(TABLE)) is not None
    assert read_at_once(CSV, body, schema_of(TABLE)) is None


@pytest.mark.parametrize(
    ("content_type", "said"),
    [
        ("application/xml", "only supports the following content types"),
        ("", "only supports the following content types"),
        ("application/json; charset=latin-1", "only supports UTF-8"),
        ("application/json; format=split", "Unrecognized content type parameters: format"),
    ],
)
def test_other_content_types_are_refused_as_mlflow_does(content_type: str, said: str) -> None:
    with pytest.raises(ScoringProblem, match=said) as refused:
        media_type(content_type)
    assert (refused.value.status, refused.value.media_type) == (415, "text/plain; charset=utf-8")


def test_the_charset_of_json_may_be_given() -> None:
    assert media_type("application/json ; charset=UTF-8") == JSON


ROW = {"age": 1.0, "count": 2, "city": "Ulm"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"dataframe_records": [{"age": 1.0, "city": "Ulm"}]}, r"missing inputs \['count'\]"),
        ({"dataframe_records": [ROW, {**ROW, "age": "old"}]}, "'age' has 'old' in row 1"),
        ({"dataframe_split": {"columns": list(ROW), "data": [[1, 2**70, "Ulm"]]}}, r"'count' has 1180\d+ in row 0"),
        ({"inputs": {"age": [1.0], "count": [None], "city": ["Ulm"]}}, "'count' has None in row 0"),
        ({"dataframe_records": [{**ROW, "city": 7}]}, "'city' has the value 7 in row 0"),
        ({"dataframe_split": {"columns": list(ROW), "data": [[1, 2, "Ulm"], [1, 2]]}}, "row 1 has 2 values"),
        ({"dataframe_records": []}, "no rows|missing inputs"),
        ({"dataframe_records": [ROW], "inputs": [1]}, "exactly one of the input fields"),
        ({"data": [1]}, "exactly one of the input fields"),
        ({"input": [1.0]}, r"missing inputs \['age', 'count', 'city'\]"),
        ("[1]", "Received a list"),
        ("{", "valid JSON"),
        (b"\xff", "valid JSON"),
        ("7", "unexpected input type"),
        (f'{{"inputs": {"[" * 200}1{"]" * 200}}}', "levels deep"),
        (f'{{"inputs": {"[" * 100_000}{"]" * 100_000}}}', "levels deep"),
    ],
)
def test_a_refusal_names_the_column_and_the_value(body: Any, said: str) -> None:
    with pytest.raises(ScoringProblem, match=said) as refused:
        read(body)
    assert refused.value.status == 400
    assert json.loads(refused.value.body)["error_code"] in ("BAD_REQUEST", "INVALID_PARAMETER_VALUE")


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([[1, 2, "three"]], "'x' has 'three' in row 0"),
        ([[1, 2, 3], [4, 5]], "inhomogeneous"),
        ([[1, 2]], "does not match expected shape"),
    ],
)
def test_a_wrong_tensor_is_named(inputs: Any, said: str) -> None:
    with pytest.raises(ScoringProblem, match=said):
        read({"inputs": inputs}, served=of_tensors("float32", -1, 3))


def test_inputs_of_different_lengths_are_named() -> None:
    served = of_tensors("float32", -1, 2, names=("x", "y"), named=True)
    with pytest.raises(ScoringProblem, match="'x' has 2, 'y' has 1"):
        read({"inputs": {"x": [[1, 2], [3, 4]], "y": [[1, 2]]}}, served=served)


def test_a_csv_that_is_none_says_so() -> None:
    for body, said in ((b"age\nold\n", "Failed to parse"), (b"\xff", "UTF-8")):
        with pytest.raises(ScoringProblem, match=said):
            read(body, CSV)
    with pytest.raises(ScoringProblem, match="Failed to parse"):
        read(b"no parquet", PARQUET)


PARAMS = [
    {"name": "k", "type": "long", "default": 3, "shape": None},
    {"name": "stop", "type": "string", "default": ["."], "shape": [-1]},
]


@pytest.mark.parametrize("use", ["defaults", "ignored", "passed"])
def test_parameters_are_checked_as_mlflow_does_and_passed_to_author_s_code_alone(use: Any) -> None:
    served = of_columns({"age": "double"}, params=PARAMS, params_use=use)

    def asked(params: Any) -> str:
        body = json.dumps({"inputs": {"age": [1.0]}, "params": params}).encode()
        return read_other(JSON, body, schema_of(served)).params

    assert asked({"k": 3, "unknown": 1, "stop": ["."]}) == asked({}) == asked(None) == ""
    for wrong in ({"k": "x"}, {"stop": "."}, [1]):
        with pytest.raises(ScoringProblem, match=r"Invalid parameters|must be a dictionary"):
            asked(wrong)
    for given in ({"k": 4, "unknown": 1}, {"stop": ["!", "?"]}):
        if use == "defaults":
            with pytest.raises(ScoringProblem, match="serves the model as a graph"):
                asked(given)
        else:
            known = {name: value for name, value in given.items() if name != "unknown"}
            assert asked(given) == (json.dumps(known) if use == "passed" else "")


def test_a_body_in_no_form_is_what_predict_gets_with_its_parameters_beside() -> None:
    served = of_columns({"prompt": "string"}, params=PARAMS, params_use="passed")

    def asked(body: Any) -> Any:
        return read_other(JSON, json.dumps(body).encode(), schema_of(served))

    plain, other = asked({"prompt": "hé"}), asked({"prompt": "hé", "k": 4, "unknown": 1, "inputs": ["no form"]})
    assert inputs_of(plain.inputs) == inputs_of(other.inputs) == ["hé"]
    assert (plain.wrapped, other.wrapped) == (False, False)
    assert (plain.params, json.loads(other.params)) == ("", {"k": 4})
    assert asked({"inputs": {"prompt": ["hé"]}}).wrapped
    with pytest.raises(ScoringProblem, match="Invalid parameters"):
        asked({"prompt": "hé", "k": "x"})
    with pytest.raises(ScoringProblem, match="Expected a list as 'inputs'"):
        read({"prompt": "hé", "inputs": ["hé"]}, served=hinted({"type": "string", "required": True}))


def test_parameters_of_a_model_without_any_are_ignored_as_by_mlflow() -> None:
    assert read({"dataframe_records": [ROW], "params": {"k": 4}})


def hinted(kind: Any) -> Any:
    served = of_columns({"": "string"})
    assert served.scoring
    scoring = served.scoring.model_copy(update={"inputs": json.dumps([kind]), "hinted": True})
    return served.model_copy(update={"scoring": scoring})


MAPPING = {"type": "map", "values": {"type": "long", "required": True}, "required": True}


def test_the_items_of_a_type_hint_travel_as_they_are() -> None:
    assert inputs_of(read({"inputs": ["a", "ü"]}, served=hinted({"type": "string", "required": True}))) == ["a", "ü"]
    items = [{"a": 1, "b": 2}, {"c": 5}]
    sent = inputs_of(read({"inputs": items}, served=hinted(MAPPING)))
    assert [json.loads(text) for text in sent] == items


@pytest.mark.parametrize("body", [{"dataframe_split": {"columns": ["x"], "data": [["a"]]}}, {"inputs": 3}])
def test_a_model_with_type_hints_takes_a_list_as_its_inputs_alone(body: Any) -> None:
    with pytest.raises(ScoringProblem, match="must be a dictionary with a list as 'inputs'"):
        read(body, served=hinted(MAPPING))


def test_an_item_that_is_no_text_is_named() -> None:
    with pytest.raises(ScoringProblem, match="has the value 5 in row 1, which is not a string"):
        read({"inputs": ["a", 5]}, served=hinted({"type": "string", "required": True}))


def inputs_of(arrays: Any) -> list[Any]:
    (array,) = arrays.values()
    return [each.decode() if isinstance(each, bytes) else each for each in array.reshape(-1).tolist()]


def test_dates_become_what_the_model_is_served_with() -> None:
    served = of_columns({"day": "string"})
    dated = served.model_copy(
        update={
            "scoring": served.scoring
            and served.scoring.model_copy(update={"inputs": '[{"type": "datetime", "name": "day"}]'})
        }
    )
    assert read({"inputs": {"day": ["2024-02-29T12:00:00"]}}, served=dated)["day"].tolist() == [["2024-02-29T12:00:00"]]
    with pytest.raises(ScoringProblem, match="day"):
        read({"inputs": {"day": ["never"]}}, served=dated)


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("long", [[1, 2], [True]], [1.5, 1.0, "1", None]),
        ("double", [[1.5], [1]], ["1.5", None, True]),
        ("boolean", [[True, False]], [1, "yes", None]),
        ("string", [["a", "1"]], [1, True]),
    ],
)
def test_type_hints_take_no_value_that_only_looks_like_theirs(kind: str, right: list[Any], wrong: list[Any]) -> None:
    served = of_columns({"input": kind}, named=False)
    assert served.scoring
    hinted = served.model_copy(update={"scoring": served.scoring.model_copy(update={"hinted": True})})
    for items in right:
        assert read({"inputs": items}, served=hinted)["input"].ravel().tolist() == items
    for item in wrong:
        with pytest.raises(ScoringProblem, match=re.escape(f"has the value {item!r} in row 1")):
            read({"inputs": [right[0][0], item]}, served=hinted)
    with pytest.raises(ScoringProblem, match="is empty"):
        read({"inputs": []}, served=hinted)
    with pytest.raises(ScoringProblem, match="dictionary with a list as 'inputs'"):
        read({"instances": right[0]}, served=hinted)
