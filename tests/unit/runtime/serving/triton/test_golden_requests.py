"""Golden requests of pipelines, whose answers may have any number of rows, of any length."""

from typing import Any, cast

import numpy as np
import pytest

from shiplift.runtime.base.errors import GoldenMismatch
from shiplift.runtime.model.generation.signature import SIGNATURE as WRITER
from shiplift.runtime.model.tensors import Arrays, concatenate, first_requests
from shiplift.runtime.records.serving import BundleMember, EarlierVersion, EarlierVersions
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.triton.client import TOLERANCE, TritonClient, check_golden, check_package
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


class Writing:
    """A server that generates text: these answers, in this order."""

    def __init__(self, answers: list[str], prompt_tokens: int = 4) -> None:
        self._answers, self._prompt_tokens = iter(answers), prompt_tokens

    def infer(self, *_: object, **__: object) -> Arrays:
        return {
            "text": np.array([[next(self._answers).encode()]], object),
            "finish_reason": np.array([[b"stop"]], object),
            "tokens": np.array([[7]], np.int32),
            "prompt_tokens": np.array([[self._prompt_tokens]], np.int32),
        }


def written(answers: list[str]) -> Arrays:
    """Golden requests of a text generator with these answers."""
    count = len(answers)
    outputs = {
        "text": np.array([[text] for text in answers], object),
        "finish_reason": np.full((count, 1), "length", object),
        "tokens": np.full((count, 1), 8, np.int32),
        "prompt_tokens": np.full((count, 1), 4, np.int32),
    }
    return golden_arrays({"prompt": np.full((count, 1), "a", object)}, outputs)


@pytest.mark.parametrize(
    ("told", "right"),
    [
        ([" ships carry", " the crane", " a box"], True),
        ([" ships sail", " the crane", " a boat"], True),  # another way to go on
        ([" ships carry", " the crane", " otherwise"], True),  # one token about as likely as another
        ([" wrong", " the crane", " otherwise"], False),
        ([" wrong", " wrong", " wrong"], False),
    ],
)
def test_in_16_bits_most_generated_answers_must_begin_like_the_original_s(told: list[str], right: bool) -> None:
    golden = written([" ships carry", " the crane", " a box"])

    def check(tolerance: float, **options: int) -> None:
        client = cast("TritonClient", Writing(told, **options))
        check_golden(client, "writer", WRITER, golden, tolerance=tolerance)

    if right:
        check(TOLERANCE["bf16"])
    else:
        with pytest.raises(GoldenMismatch, match="'text' is off by"):
            check(TOLERANCE["bf16"])
    with pytest.raises(GoldenMismatch, match="prompt_tokens" if right else "text|prompt_tokens"):
        check(TOLERANCE["bf16"], prompt_tokens=5)
    with pytest.raises(GoldenMismatch):
        check(TOLERANCE["fp32"])  # which has to be exact


def test_a_heartbeat_asks_for_one_answer_which_may_be_the_one_that_differs() -> None:
    golden = first_requests(written([" ships carry", " the crane"]), 1)
    client = cast("TritonClient", Writing([" other"]))
    check_golden(client, "writer", WRITER, golden, tolerance=TOLERANCE["fp16"])


class Versioned:
    """A server whose versions answer with their own number; 3 answers those who name none."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def infer(
        self, model: str, signature: Signature, inputs: Arrays, *, version: int | None = None, **_: object
    ) -> Arrays:
        self.asked.append(version or 3)
        return {"rows": np.full((1, 1), version or 3, np.float32)}


@pytest.mark.parametrize("wrong", [0, 1, 2, 3])
def test_every_version_that_a_package_serves_is_checked_by_its_own_requests(wrong: int) -> None:
    def expected(version: int) -> Arrays:
        value = np.full((1, 1), version + (version == wrong), np.float32)
        return golden_arrays({"x": ASKED[:1]}, {"rows": value})

    golden = expected(3)
    for version in (1, 2):
        golden |= {f"version/{version}/{name}": array for name, array in expected(version).items()}
    earlier = EarlierVersions(versions=tuple(EarlierVersion(version=each, precision="fp32") for each in (1, 2)))
    whole = package(signature=SIGNATURE, version=3, earlier=earlier, precision="fp32")
    client = cast("TritonClient", server := Versioned())
    if wrong:
        name = f"counts version {wrong}" if wrong < 3 else "counts"
        with pytest.raises(GoldenMismatch, match=f"^{name} answers a golden request wrongly"):
            check_package(client, "counts", whole, golden)
        return
    check_package(client, "counts", whole, golden)
    assert server.asked == [1, 2, 3]
    server.asked.clear()
    check_package(client, "counts", whole, first_requests(golden, 1))  # a heartbeat
    assert server.asked == [3]


def test_members_are_checked_where_their_requests_are_there(golden: Arrays) -> None:
    member = BundleMember(name="part", served="part-1--x", model="part", version=1, follows=True, signature=SIGNATURE)
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
