import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.guest.graphs.guards import Guards
from shiplift.runtime.measure.requests import (
    batch_problem,
    draw_length,
    fitting,
    lengths,
    prompts,
    shortened,
    synthetic,
    with_lengths,
    within,
)
from shiplift.runtime.model.generation.signature import ROOM, SIGNATURE
from shiplift.runtime.model.logged_requests import recorded
from shiplift.runtime.model.tensors import dump_npz
from shiplift.runtime.records.guards import Guard
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.serving import Padding
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.measurement import DynamicShape, Load
from tests.unit.examples import config, package, signature, tensor

TEXT = Signature(inputs=(tensor("ids", -1, -1, datatype="INT64"), tensor("mask", -1, -1, datatype="INT64")), outputs=())


def kserve(data: Any, shape: list[int], name: str = "input") -> dict[str, Any]:
    return {"inputs": [{"name": name, "shape": shape, "datatype": "FP32", "data": data}]}


@pytest.mark.parametrize(("changes", "most"), [({}, 8), ({"sequences": True}, 1), ({"config": config(2)}, 2)], ids=str)
def test_requests_have_no_more_samples_than_the_model_takes(changes: dict[str, Any], most: int) -> None:
    served = package(**{"config": config(8)} | changes)
    assert batch_problem(served, Load(batch=most)) == ""
    problem = batch_problem(served, Load(batch=most + 1))
    assert problem == f"load.batch is {most + 1}, but digits version 2 takes at most {most} per request"


def test_requests_of_an_npz_are_its_rows() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    samples = recorded(dump_npz({"input": rows}), "r.npz", signature())
    assert [sample["input"].tolist() for sample in samples] == rows.tolist()


@pytest.mark.parametrize("form", ["one", "list", "lines", "wrapped"])
def test_requests_of_a_log_are_its_bodies(form: str) -> None:
    bodies = [kserve([1, 2, 3, 4], [1, 4]), kserve([[1, 2, 3, 4], [5, 6, 7, 8]], [2, 4])]
    text = {
        "one": json.dumps(bodies[0]),
        "list": json.dumps(bodies),
        "lines": "\n".join(map(json.dumps, bodies)),
        "wrapped": json.dumps({"requests": bodies}),
    }[form]
    samples = recorded(text.encode(), "requests.json", signature())
    assert len(samples) == (1 if form == "one" else 3)
    assert samples[-1]["input"].tolist() == ([1, 2, 3, 4] if form == "one" else [5, 6, 7, 8])


def test_bytes_in_a_log_are_bytes() -> None:
    tensors = Signature(inputs=(tensor("jpeg", -1, 1, datatype="BYTES"),), outputs=())
    body = {"inputs": [{"name": "jpeg", "shape": [1, 1], "datatype": "BYTES", "data": [{"b64": "/9j/AA=="}]}]}
    (sample,) = recorded(json.dumps(body).encode(), "r.json", tensors)
    assert sample["jpeg"].tolist() == [b"\xff\xd8\xff\x00"]


def test_a_file_s_bytes_may_be_a_tensor_of_bytes() -> None:
    """ONNX models that decode images take them this way, since ONNX strings are text."""
    tensors = Signature(inputs=(tensor("jpeg", -1, -1, datatype="UINT8"),), outputs=())
    body = {"inputs": [{"name": "jpeg", "shape": [1, 4], "datatype": "UINT8", "data": {"b64": "/9j/AA=="}}]}
    (sample,) = recorded(json.dumps(body).encode(), "r.json", tensors)
    assert sample["jpeg"].tolist() == list(b"\xff\xd8\xff\x00")
    body["inputs"][0]["data"] = [{"b64": "/9j/AA=="}]
    assert recorded(json.dumps(body).encode(), "r.json", tensors)[0]["jpeg"].tolist() == sample["jpeg"].tolist()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"[1]",
        b'{"inputs": []}',
        b"\xff",
        json.dumps(kserve([1, 2], [1, 2])).encode(),
        json.dumps(kserve([1, 2, 3], [1, 4])).encode(),
        json.dumps(kserve([1], [1, 1], "other")).encode(),
    ],
)
def test_requests_that_do_not_fit_say_so(body: bytes) -> None:
    with pytest.raises(DataInvalid, match=r"requests"):
        recorded(body, "requests.json", signature())


def test_generated_requests_look_like_the_example() -> None:
    example = {"input": np.array([[0.0, 1, 2, 3], [4, 5, 6, 7]], np.float32)}
    samples = synthetic(example, signature(), Load())
    assert {sample["input"].shape for sample in samples} == {(4,)}
    assert all(sample["input"].min() >= 0 and sample["input"].max() <= 7 for sample in samples)
    again = synthetic(example, signature(), Load())
    assert [sample["input"].tolist() for sample in samples] == [sample["input"].tolist() for sample in again]


def test_generated_requests_keep_to_the_guards() -> None:
    codes, ages = np.array([[1, 30], [9, 50], [5, 40]]), np.array([[3.0], [np.nan], [8.0]], np.float32)
    example = {"codes": codes, "ages": ages, "city": np.array([["Rom"], ["Wien"], ["Rom"]], object)}
    specs = (tensor("codes", -1, 2, datatype="INT64"), tensor("ages", -1, 1), tensor("city", -1, 1, datatype="BYTES"))
    guards = (
        Guard(input="codes", column=0, values=(1, 5, 9)),
        Guard(input="codes", column=1, values=(30, 40, 50)),
        Guard(input="ages", low=3.0, high=8.0),
        Guard(input="city", values=("Rom", "Wien")),
    )
    samples = synthetic(example, Signature(inputs=specs, outputs=()), Load())
    judge = Guards(guard.entry() for guard in guards)
    for sent, refused in ((samples, True), (within((*guards, Guard(input="not here")), samples, example), False)):
        batch = {name: np.stack([sample[name] for sample in sent]) for name in example}
        assert [array.shape for array in batch.values()] == [(32, 2), (32, 1), (32, 1)]
        assert judge.refused(batch).any() == refused


def test_prompts_are_the_example_s_and_ask_for_as_many_tokens_as_the_spec_says() -> None:
    example = {
        "prompt": np.array([["a"], ["b"]], object),
        "max_tokens": np.array([[8], [8]], np.int32),
        "temperature": np.zeros((2, 1), np.float32),
    }
    samples = prompts(example, Load(tokens=17), None)
    assert [{name: array.tolist() for name, array in sample.items()} for sample in samples] == [
        {"prompt": [prompt], "max_tokens": [17], "temperature": [0.0]} for prompt in "ab"
    ]


def test_prompts_ask_for_no_more_tokens_than_the_context_has_room_for() -> None:
    example = {"prompt": np.array([["a"], ["b"]], object), "temperature": np.zeros((2, 1), np.float32)}
    room = np.array([[9], [40]], np.int32)
    samples = prompts(example, Load(tokens=17), room)
    assert [sample["max_tokens"].tolist() for sample in samples] == [[9], [17]]
    assert "as many as fit, 9 after the longest" in shortened({ROOM: room}, Load(tokens=17))
    assert not shortened({ROOM: room}, Load(tokens=9))
    assert not shortened({}, Load(tokens=17))


def test_logged_prompts_may_leave_options_out() -> None:
    texts = np.array([["a"], ["b"]], object)
    samples = recorded(dump_npz({"prompt": texts, "seed": np.array([[1], [2]])}), "r.npz", SIGNATURE)
    assert [{name: array.tolist() for name, array in sample.items()} for sample in samples] == [
        {"prompt": ["a"], "seed": [1]},
        {"prompt": ["b"], "seed": [2]},
    ]
    with pytest.raises(DataInvalid, match="input 'prompt' is missing"):
        recorded(dump_npz({"seed": np.array([[1]])}), "r.npz", SIGNATURE)


def test_lengths_follow_their_distribution_and_agree_where_it_is_the_same() -> None:
    """In every request, a text's tokens and their mask have the same length."""
    example = {name: np.ones((2, 16), np.int64) for name in ("ids", "mask")}
    shapes = tuple(DynamicShape(input=name, distribution="choice", lengths=(8, 64)) for name in ("ids", "mask"))
    samples = synthetic(example, TEXT, Load(shapes=shapes))
    assert {sample["ids"].shape for sample in samples} == {(8,), (64,)}
    assert all(sample["ids"].shape == sample["mask"].shape for sample in samples)


def test_lengths_of_different_distributions_or_axes_are_drawn_apart() -> None:
    example = {"ids": np.ones((2, 16), np.int64), "mask": np.ones((2, 16), np.int64)}
    apart = (DynamicShape(input="ids", low=1, high=99), DynamicShape(input="mask", low=1, high=98))
    samples = synthetic(example, TEXT, Load(shapes=apart))
    assert any(sample["ids"].shape != sample["mask"].shape for sample in samples)
    image = Signature(inputs=(tensor("image", -1, -1, -1),), outputs=())
    both = tuple(DynamicShape(input="image", axis=axis, low=1, high=99) for axis in (1, 2))
    samples = synthetic({"image": np.ones((1, 4, 4), np.float32)}, image, Load(shapes=both))
    sizes = [sample["image"].shape for sample in samples]
    assert any(height != width for height, width in sizes)


def padding_package(**changes: Any) -> Package:
    return package(signature=TEXT, padding=Padding(pad={"ids": 0, "mask": 0}, **changes))


def test_a_package_that_pads_gets_requests_of_many_lengths_even_if_the_spec_draws_none() -> None:
    golden = {f"input/{name}": np.ones((2, 64), np.int64) for name in ("ids", "mask")}
    served = padding_package()
    load = with_lengths(Load(), served, golden)
    sent = lengths(served, golden, load)
    samples = synthetic({name: golden[f"input/{name}"] for name in ("ids", "mask")}, TEXT, load)
    assert [sample["ids"].shape[0] for sample in samples] == list(sent)
    assert all(sample["ids"].shape == sample["mask"].shape for sample in samples)
    assert len(set(sent)) > 5
    assert 4 <= min(sent) <= max(sent) <= 64


def test_lengths_in_the_spec_are_drawn_as_they_are() -> None:
    golden = {f"input/{name}": np.ones((2, 64), np.int64) for name in ("ids", "mask")}
    load = Load(shapes=tuple(DynamicShape(input=name, distribution="choice", lengths=(3,)) for name in ("ids", "mask")))
    assert with_lengths(load, padding_package(), golden) == load
    assert set(lengths(padding_package(), golden, load)) == {3}


def test_without_buckets_requests_are_as_long_as_the_example() -> None:
    golden = {f"input/{name}": np.ones((2, 64), np.int64) for name in ("ids", "mask")}
    assert with_lengths(Load(), package(signature=TEXT), golden) == Load()
    assert lengths(package(signature=TEXT), golden, Load()) == ()


def test_a_text_model_s_lengths_are_its_example_s_in_tokens() -> None:
    text = package(padding=Padding(lengths=(3, 9), buckets=(8,)))
    assert with_lengths(Load(), text, {}) == Load()
    assert lengths(text, {}, Load()) == (3, 9)


def test_a_champion_without_a_dimension_gets_no_lengths_of_it() -> None:
    load = Load(shapes=(DynamicShape(input="ids"), DynamicShape(input="other")))
    assert [shape.input for shape in fitting(load, TEXT).shapes] == ["ids"]
    assert fitting(load, signature()).shapes == ()


@pytest.mark.parametrize("shape", [DynamicShape(input="nothing"), DynamicShape(input="input", axis=1)])
def test_only_a_dynamic_dimension_has_lengths(shape: DynamicShape) -> None:
    with pytest.raises(DataInvalid, match="not a dynamic dimension"):
        synthetic({"input": np.ones((1, 4), np.float32)}, signature(), Load(shapes=(shape,)))


@given(st.integers(1, 500), st.integers(0, 500), st.sampled_from(["uniform", "lognormal"]), st.integers(0, 9))
def test_a_length_is_within_its_bounds(low: int, more: int, distribution: Any, seed: int) -> None:
    shape = DynamicShape(input="x", low=low, high=low + more, distribution=distribution)
    assert low <= draw_length(shape, np.random.default_rng(seed)) <= low + more
