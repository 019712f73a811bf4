"""Golden requests of pipelines, whose answers may have any number of rows, of any length."""

from typing import Any, cast

import numpy as np
import pytest

from shiplift.runtime.base.errors import GoldenMismatch
from shiplift.runtime.model.tensors import Arrays, concatenate, first_requests
from shiplift.runtime.records.serving import BundleMember
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.triton.client import TritonClient, check_golden, check_package
from shiplift.runtime.serving.triton.repository import golden_arrays
from tests.unit.examples import package, tensor

SIGNATURE = Signature(inputs=(tensor("x", -1, 1),), outputs=(tensor("rows", -1, -1),))
ASKED = np.array([[2], [0], [3]], dtype=np.float32)


def answered(x: float) -> Any:
    """As many rows as it is asked for, each that long."""
    return np.full((int(x), int(x)), x, dtype=np.float32)


class Counting:
    """A server whose models answer so, or are off by something."""

    def __init__(self, **off: float) -> None:
        self.asked: list[tuple[str, float]] = []
        self._off = off

    def infer(self, model: str, signature: Signature, inputs: Arrays, **_: object) -> Arrays:
        (x,) = inputs["x"].ravel().tolist()
        self.asked.append((model, x))
        return {"rows": answered(x) + np.float32(self._off.get(model, 0))}


def server(**off: float) -> TritonClient:
    return cast("TritonClient", Counting(**off))


@pytest.fixture
def golden() -> Arrays:
    answers = [{"rows": answered(x)} for x in ASKED[:, 0]]
    rows = np.array([len(each["rows"]) for each in answers])
    return golden_arrays({"x": ASKED}, concatenate(answers)) | {"rows/rows": rows}


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_some_of_the_requests_are_checked_with_their_own_answers(golden: Arrays, count: int) -> None:
    some = first_requests(golden, count)
    asked = cast("Counting", client := server()).asked
    check_golden(client, "counts", SIGNATURE, some, tolerance=1e-6)
    assert [x for _, x in asked] == ASKED[:count, 0].tolist()
    with pytest.raises(GoldenMismatch, match="'rows' is off by"):
        check_golden(server(counts=1), "counts", SIGNATURE, some, tolerance=1e-6)


def test_an_answer_of_another_number_of_rows_is_wrong(golden: Arrays) -> None:
    golden["rows/rows"] = np.array([3, 0, 2])
    with pytest.raises(GoldenMismatch):
        check_golden(server(), "counts", SIGNATURE, first_requests(golden, 1), tolerance=1e-6)


def test_members_are_checked_where_their_requests_are_there(golden: Arrays) -> None:
    member = BundleMember(
        name="part", served="part-1--x", model="part", version=1, follows=True, signature=SIGNATURE
    )  # fmt: skip
    whole = package(signature=SIGNATURE, members=(member,), precision="fp32")
    own = golden_arrays({"x": ASKED[:1]}, {"rows": answered(2)})
    everything = golden | {f"member/part-1--x/{name}": array for name, array in own.items()}
    with pytest.raises(GoldenMismatch, match="part-1--x answers"):
        check_package(server(**{"part-1--x": 1}), "counts", whole, everything)
    asked = cast("Counting", client := server()).asked
    check_package(client, "counts", whole, everything)
    assert asked[0] == ("part-1--x", 2)
    probed = cast("Counting", client := server(**{"part-1--x": 1})).asked
    check_package(client, "counts", whole, first_requests(everything, 1))  # a probe asks for the whole alone
    assert probed == [("counts", 2)]
