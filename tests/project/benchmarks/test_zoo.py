"""The zoo's table, how its answers are compared and judged, and what it sends."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.zoo.__main__ import chosen, missing
from benchmarks.zoo.answers import difference, named
from benchmarks.zoo.case import Case, Logged
from benchmarks.zoo.cases.data import columns, flats
from benchmarks.zoo.results import RESULTS, Result, Results, read, write
from benchmarks.zoo.running import count, for_inputs, judged, merged, requests, row
from benchmarks.zoo.table import CASES, outcomes
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.tensor import Signature, TensorSpec

FIGURES = Path(__file__).parents[3] / "docs/benchmarks.md"


def case(**fields: Any) -> Case:
    plain: dict[str, Any] = {
        "name": "x",
        "flavor": "onnx",
        "about": "",
        "build": lambda _: Logged(log=print, inputs={}),
    }
    return Case(**plain | fields)


def report(exit_code: int, reason: str) -> ReleaseReport:
    fields: dict[str, Any] = {"exit_code": exit_code, "reason": reason, "seconds": 3.0}
    return ReleaseReport.model_construct(**fields)


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_table_has_cases_enough_and_a_reason_for_each_refusal() -> None:
    assert len(CASES) >= 30
    assert len({entry.name for entry in CASES}) == len(CASES)
    for entry in CASES:
        assert entry.about
        assert bool(entry.reason) == bool(entry.why) == (entry.right == "refused"), entry.name
        assert bool(entry.needs) == bool(entry.install), entry.name


def test_readme_has_the_table_of_the_cases_that_were_run() -> None:
    results = read(RESULTS)
    assert results is not None
    assert outcomes(results) in FIGURES.read_text()


def test_the_table_of_outcomes_has_only_cases_that_were_run() -> None:
    assert len(outcomes(Results(machine={})).splitlines()) == 2
    refused = Result(name="torch-nan", flavor="pytorch", outcome="refused", reason="NaN", exit_code=31)
    assert outcomes(Results(machine={}).including(refused)).splitlines()[2:] == [
        "| `mlflow.pytorch` | a weight that is not a number | refused | 31 | - |"
    ]


def test_the_results_are_of_cases_in_the_table() -> None:
    results = read(RESULTS)
    assert results is not None
    table = {entry.name: entry for entry in CASES}
    for result in results.cases:
        assert result.flavor == table[result.name].flavor
        assert result.outcome in (table[result.name].right, "failed")
        assert bool(result.reason) == (result.outcome != "promoted")


# --- comparing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prediction", "arrays"),
    [
        (np.ones((2, 3)), {"": np.ones((2, 3))}),
        ([1, 2], {"": np.array([1, 2])}),
        ({"a": [1.5]}, {"a": np.array([1.5])}),
    ],
)
def test_predictions_become_arrays_by_name(prediction: Any, arrays: dict[str, Any]) -> None:
    actual = named(prediction)
    assert actual.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(actual[name], array)


def test_columns_become_arrays_by_name() -> None:
    import pandas as pd

    np.testing.assert_array_equal(named(pd.Series([1, 2]))[""], np.array([1, 2]))
    frame = named(pd.DataFrame({"a": [1], "b": ["x"]}))
    assert {name: array.tolist() for name, array in frame.items()} == {"a": [1], "b": ["x"]}


@pytest.mark.parametrize(
    ("expected", "actual", "apart"),
    [
        ({"": np.array([1.0, -4.0])}, {"y": np.array([[1.0], [-3.0]], np.float32)}, (1.0, 0.25)),
        ({"a": np.array([0.5])}, {"a": np.array([0.25]), "b": np.array([9.0])}, (0.25, 0.25)),
        ({"a": np.array(["x", "y"])}, {"a": np.array([[b"x"], [b"y"]], object)}, (0.0, 0.0)),
        ({"a": np.array([True, False])}, {"a": np.array([1, 0])}, (0.0, 0.0)),
        ({"a": np.array(["x"])}, {"a": np.array([b"z"], object)}, (math.inf, math.inf)),
        ({"a": np.array([1.0])}, {"a": np.array([np.nan])}, (math.inf, math.inf)),
        ({"a": np.array([1.0])}, {"a": np.array([1.0, 1.0])}, (math.inf, math.inf)),
        ({"a": np.array([1.0])}, {"b": np.array([1.0])}, (math.inf, math.inf)),
        ({"": np.array([1.0])}, {"b": np.array([1.0]), "c": np.array([1.0])}, (math.inf, math.inf)),
        ({}, {"b": np.array([1.0])}, (math.inf, math.inf)),
    ],
)
def test_the_difference_is_the_largest_and_infinite_where_answers_dont_match(
    expected: dict[str, Any], actual: dict[str, Any], apart: tuple[float, float]
) -> None:
    assert difference(expected, actual) == apart


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.floats(0, 1e3))
def test_a_shift_of_all_numbers_is_the_difference(values: list[float], shift: float) -> None:
    array = np.array(values)
    absolute, relative = difference({"": array}, {"y": array + shift})
    assert absolute == pytest.approx(shift, abs=1e-9)
    assert relative <= absolute + 1e-12


@pytest.mark.parametrize(
    ("fields", "ended", "outcome"),
    [
        ({}, report(0, ""), "promoted"),
        ({}, report(31, "no"), "failed"),
        ({"right": "refused", "reason": "NaN"}, report(31, "gives NaN in 'y'"), "refused"),
        ({"right": "refused", "reason": "NaN"}, report(31, "out of memory"), "failed"),
        ({"right": "refused", "reason": "NaN"}, report(0, ""), "failed"),
    ],
)
def test_only_the_end_that_the_table_calls_right_is_no_failure(
    fields: dict[str, Any], ended: ReleaseReport, outcome: str
) -> None:
    result = judged(case(**fields), ended)
    assert result.outcome == outcome
    assert bool(result.reason) == (outcome != "promoted")
    assert result.exit_code == ended.exit_code


# --- asking ----------------------------------------------------------------------------------------------------------


def test_each_sample_is_a_request_of_its_own_with_all_inputs() -> None:
    signature = Signature(
        inputs=(
            TensorSpec(name="a", datatype="FP32", shape=(-1, 2)),
            TensorSpec(name="t", datatype="BYTES", shape=(-1, 1)),
        ),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1, 1)),),
    )
    inputs = for_inputs({"a": np.arange(6).reshape(3, 2), "t": np.array(["x", "y", "zz"])}, signature)
    bodies = requests(8000, "m", signature, inputs)
    assert len(bodies) == 3
    head, _, body = bodies[2].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v2/models/m/infer HTTP/1.1\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert body.endswith(np.array([4, 5], np.float32).tobytes() + b"\x02\x00\x00\x00zz")


def test_a_single_array_is_for_the_single_input_whatever_it_is_called() -> None:
    signature = Signature(inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 2)),), outputs=())
    assert for_inputs({"input": np.ones((1, 2))}, signature)["x"].dtype == np.float32


def test_questions_of_every_form_are_taken_apart() -> None:
    import pandas as pd

    for question in (np.arange(6).reshape(3, 2), ["a", "b", "c"], {"a": np.arange(3)}, pd.DataFrame({"a": [1, 2, 3]})):
        assert count(question) == 3, question
        assert count(row(question, 1)) == 1, question


def test_categories_are_asked_as_text_and_numbers_as_numbers() -> None:
    asked = columns(flats()[0].head(3))
    assert {name: array.shape for name, array in asked.items()} == dict.fromkeys(["age", "city", "rooms"], (3, 1))
    assert asked["city"].dtype.kind == "U"
    assert asked["age"].dtype.kind == "f"


def test_a_cases_spec_is_added_section_by_section() -> None:
    assert merged("load: {a: 1}", "load: {b: 2}\nserving: {c: 3}") == "load:\n  a: 1\n  b: 2\nserving:\n  c: 3\n"
    assert merged("load: {a: 1}", "") == "load:\n  a: 1\n"


# --- resuming --------------------------------------------------------------------------------------------------------


def test_results_are_read_back_and_say_what_is_left_to_run(tmp_path: Path) -> None:
    first = Result(name=CASES[0].name, flavor=CASES[0].flavor, outcome="failed", reason="slow", max_difference=math.inf)
    results = Results(machine={}).including(first)
    write(tmp_path / "zoo.json", results)
    earlier = read(tmp_path / "zoo.json")
    assert earlier == results
    assert [entry.name for entry in chosen([], earlier)] == [entry.name for entry in CASES[1:]]
    assert chosen([CASES[0].name], earlier) == []
    assert chosen([CASES[0].name], None) == [CASES[0]]
    again = results.including(first.model_copy(update={"outcome": "promoted", "reason": ""}))
    assert [result.outcome for result in again.cases] == ["promoted"]


def test_cases_are_chosen_by_pattern_in_the_tables_order() -> None:
    names = [entry.name for entry in chosen(["onnx-*", "sklearn-ridge", "onnx-voice"], None)]
    assert names == ["sklearn-ridge", *(entry.name for entry in CASES if entry.flavor == "onnx")]


def test_a_pattern_that_fits_no_case_is_an_error() -> None:
    with pytest.raises(SystemExit, match="no case is called 'sklern-\\*': see --list"):
        chosen(["onnx-*", "sklern-*"], None)


def test_no_results_leave_all_to_run(tmp_path: Path) -> None:
    assert chosen([], read(tmp_path / "zoo.json")) == list(CASES)


def test_a_case_whose_packages_are_missing_says_how_to_install_them() -> None:
    assert missing(case(needs=("no_such_module",), install="pip install x")) == (
        "no_such_module is not installed: pip install x"
    )
    assert not missing(case(needs=("json",), install="pip install x"))
