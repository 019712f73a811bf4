"""A code span shows any text as it is."""

import re

from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.base.markdown import code


@given(st.text(max_size=60))
def test_no_text_ends_its_own_span(text: str) -> None:
    span = code(text)
    fence = re.match("`+", span)
    assert fence
    assert span.endswith(fence.group())
    inner = span[len(fence.group()) : -len(fence.group())]
    assert fence.group() not in re.findall("`+", inner)
    assert inner.isprintable()
