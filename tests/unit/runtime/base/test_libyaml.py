from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.base import libyaml

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)


@given(bodies=st.lists(_values, max_size=3))
def test_what_is_written_is_read_by_either(bodies: list[Any]) -> None:
    text = libyaml.dump_all(bodies)
    assert list(libyaml.load_all(text)) == list(yaml.safe_load_all(text)) == bodies


def test_a_text_of_several_lines_is_a_block_and_a_boolean_of_old_is_quoted() -> None:
    assert libyaml.dump_all([{"a": "one\ntwo\n", "b": "y"}]) == "a: |\n  one\n  two\nb: 'y'\n"


def test_no_object_is_made_but_plain_ones() -> None:
    with pytest.raises(yaml.YAMLError):
        list(libyaml.load_all("!!python/object/apply:os.getcwd []"))
