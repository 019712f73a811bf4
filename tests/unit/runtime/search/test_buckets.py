"""Which packages get buckets, and which sets a search tries on them."""

from typing import Any

import pytest

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.records.serving import Padding
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.search.buckets import check_pad, lengths_sent, padded_with, problem
from shiplift.runtime.search.goal import goal_of
from shiplift.runtime.search.planner import Search
from shiplift.runtime.search.space import space_of
from shiplift.runtime.spec.measurement import LatencyTarget, SearchSpace
from shiplift.runtime.spec.serving_settings import Lengths, Serving
from shiplift.runtime.spec.target import Target
from tests.unit.examples import config, package, tensor, trial

TOKENS = Signature(
    inputs=(
        tensor("ids", -1, -1, datatype="INT64"),
        tensor("bias", -1, 4),
        tensor("mask", -1, -1, datatype="BOOL"),
        tensor("half", -1, -1, datatype="FP16"),
    ),
    outputs=(tensor("scores", -1, -1, 9),),
)
PAD = Lengths(pad={"ids": 0, "mask": 0})
SMALL = SearchSpace(max_batch=(1, 8), queue_delay_us=(0,), instances=(1,), threads=(1,))


@pytest.mark.parametrize(
    ("pad", "why"),
    [
        ({}, "names no input"),
        ({"other": 0}, "'other', which is not an input with a dynamic dimension"),
        ({"bias": 0}, "'bias', which is not an input with a dynamic dimension"),
        ({"scores": 0}, "'scores', which is not an input"),
        ({"ids": 0.5}, "fills 'ids' up with 0.5, which is not INT64"),
        ({"mask": 2}, "fills 'mask' up with 2, which is not BOOL"),
        ({"half": 1}, "fills 'half' up with 1, which is not FP16"),
    ],
)
def test_what_is_padded_must_be_an_input_with_a_length_that_holds_the_value(pad: dict[str, float], why: str) -> None:
    with pytest.raises(SpecInvalid, match=why) as caught:
        check_pad(Lengths(pad=pad), TOKENS)
    assert "ids, mask, half" in str(caught.value.do) or "data type" in str(caught.value.do)


def test_values_that_the_inputs_hold_are_fine_and_a_tokenizer_knows_its_own() -> None:
    check_pad(Lengths(pad={"ids": -100, "mask": 1, "half": 0}), TOKENS)
    check_pad(Lengths(), TOKENS, text=True)
    with pytest.raises(SpecInvalid, match="takes text"):
        check_pad(PAD, TOKENS, text=True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"engine": "openvino"}, ""),
        ({"engine": "python"}, "python pads no requests"),
        ({"target": Target(server="nvidia")}, "NVIDIA's backends don't pad requests"),
        ({"inputs": (tensor("ids", 1, -1),)}, "one sample at a time"),
        ({"inputs": (tensor("ids", -1, -1, -1),)}, "'ids' has more than one dynamic dimension"),
        ({"inputs": (tensor('a "quote"', -1, -1),)}, "can't be used in the backend's parameters"),
        ({"inputs": (tensor("text", -1, 1, datatype="BYTES"),)}, "Python backend"),
    ],
)
def test_only_what_our_own_backends_can_pad_gets_buckets(changes: dict[str, Any], why: str) -> None:
    model = Signature(inputs=changes.get("inputs", TOKENS.inputs), outputs=TOKENS.outputs)
    reason = problem(PAD, model, changes.get("engine", "onnxruntime"), changes.get("target", Target()))
    assert (why in reason) if why else not reason


def test_a_front_on_nvidia_s_server_pads_texts_to_the_longest_of_their_batch_alone() -> None:
    assert "longest of their batch" in problem(PAD, TOKENS, "onnxruntime", Target(server="nvidia"), text=True)


def padding(*buckets: int) -> Padding:
    return Padding(pad={"ids": 0}, buckets=buckets)


def test_a_search_tries_sets_on_the_packages_that_are_proven_with_them() -> None:
    proven = package(padding=padding(8, 16, 32))
    refused = package(precision="int8", padding=Padding(pad={"ids": 0}, refused="it changes answers"))
    serving = Serving(lengths=PAD)
    space = space_of((proven, refused), SMALL, serving, 2, [5, 6, 30])
    assert space.buckets == ((), (32,), (8, 32))
    points = list(space.points())
    assert len({point.key for point in points}) == len(points)
    assert {point.config.buckets for point in points if point.package is proven} == set(space.buckets)
    assert {point.config.buckets for point in points if point.package is refused} == {()}
    for point in points:
        indices = space.indices(point)
        assert indices is not None
        assert space.point(**indices) == point


def test_declared_buckets_are_the_only_ones_tried() -> None:
    serving = Serving(lengths=Lengths(pad={"ids": 0}, buckets=(16, 64)))
    space = space_of((package(padding=padding(16, 64)),), SMALL, serving, 2, [5, 60])
    assert {point.config.buckets for point in space.points()} == {(16, 64)}


def test_without_lengths_a_search_is_what_it_was() -> None:
    assert space_of((package(),), SMALL, Serving(), 2).buckets == ((),)
    assert padded_with(package(), ()) == ()


def test_every_set_is_measured_before_the_search_may_end() -> None:
    serving = Serving(lengths=PAD)
    space = space_of((package(padding=padding(8, 16, 32), config=config(8)),), SMALL, serving, 2, [5, 12, 30])
    search = Search(space, goal_of(SMALL, LatencyTarget(), 2))
    while (point := search.ask()) is not None:
        search.tell(point, trial(config=point.config, throughput_per_s=100 * (1 + len(point.config.buckets))))
    assert {measured.config.buckets for measured in search.trials} == set(space.buckets)
    assert search.best()[1].config.buckets == (8, 16, 32)


def test_the_report_says_what_padding_costs() -> None:
    sent = lengths_sent([10, 20, 30, 40], (20, 40))
    assert sent is not None
    assert (sent.shortest, sent.median, sent.longest) == (10, 20, 40)
    assert (sent.padding_percent, sent.one_length_percent) == (16.7, 37.5)
    assert lengths_sent([], (20,)) is None
