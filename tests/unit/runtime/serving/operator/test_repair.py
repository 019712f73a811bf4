from typing import Any

import pytest

from shiplift.runtime.serving.operator.repair import covers, strangers


@pytest.mark.parametrize(
    ("live", "wanted", "right"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 2}, {"a": 1}, False),
        ({}, {"a": 1}, False),
        ({"a": None}, {"a": {}}, True),
        ({}, {"a": []}, True),
        ({"a": [1]}, {"a": []}, False),
        ({"a": {"b": 1}}, {"a": {}}, True),
        ([{"a": 1, "b": 2}], [{"a": 1}], True),
        ([{"a": 1}, {"a": 2}], [{"a": 1}], False),
        ({"weight": 0}, {"weight": 0}, True),
        ({}, {"weight": 0}, False),
        ({}, {"paused": False}, False),
    ],
)
def test_a_live_value_is_right_if_it_has_what_is_wanted(live: Any, wanted: Any, right: bool) -> None:
    assert covers(live, wanted) is right


def test_additions_to_a_selector_are_removed() -> None:
    wanted = {"kind": "Service", "spec": {"selector": {"a": "1"}}}
    assert strangers(wanted, {"spec": {"selector": {"a": "1", "b": "2"}}}) == {"spec": {"selector": {"b": None}}}
    assert strangers(wanted, {"spec": {"selector": {"a": "1"}}}) == {}
