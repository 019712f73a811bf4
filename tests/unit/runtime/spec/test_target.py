"""What a target may ask for."""

from typing import Any

import pytest
from pydantic import ValidationError

from shiplift.runtime.spec.target import Target


@pytest.mark.parametrize("changes", [{"accelerator": "cpu-arm64"}, {"precisions": ("int8",)}])
def test_exact_trees_are_not_for_every_target(changes: dict[str, Any]) -> None:
    assert Target(engine="trees").engines == ("trees",)
    assert Target(engine="trees", server="nvidia").engines == ("trees",)
    with pytest.raises(ValidationError, match="`engine: trees` is for x86 CPUs and GPUs, and for `precisions` with"):
        Target(engine="trees", **changes)
