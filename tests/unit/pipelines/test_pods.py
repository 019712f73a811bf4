"""Which stages share a pod, and that a mistake in that is an error at import."""

from dataclasses import replace
from typing import Any

import pytest

from shiplift.pipelines import pods
from shiplift.pipelines.graph import FanOut, Pipeline, Placement, Stage
from shiplift.pipelines.release import PODS, RELEASE
from shiplift.runtime.records.base import Record


class Asked(Record):
    """What the pipeline takes."""


class First(Record):
    """What the first stage returns."""


class Second(Record):
    """What the second stage returns."""


class Third(Record):
    """What the third stage returns."""


def begin(asked: Asked) -> First:
    return First()


def go_on(first: First) -> Second:
    return Second()


def end(first: First, second: Second) -> Third:
    return Third()


TOGETHER = Placement(pod="together")


def pipeline(first: Placement = TOGETHER, second: Placement = TOGETHER, third: Placement = TOGETHER) -> Pipeline:
    stages = (Stage(begin, first), Stage(go_on, second), Stage(end, third))
    return Pipeline("small", inputs=(Asked,), stages=stages)


def test_the_pods_of_a_release() -> None:
    assert {pod.name: pod.words for pod in pods.flat(PODS)} == {
        "prepare": "admit+find_targets+export+each-target",
        "find_champion": "find_champion",
        "optimize": "quantize+package+tune",
        "deliver": "deploy+load_test+shadow+gate+promote",
    }


def test_no_stage_of_a_release_has_a_right_that_another_in_its_pod_lacks() -> None:
    for pod in pods.flat(PODS):
        assert len({(stage.at.sandbox, stage.at.cluster, stage.at.on_target) for stage in pod.stages}) == 1


def test_a_pod_takes_what_its_stages_do_not_give_each_other() -> None:
    (pod,) = pods.of(pipeline())
    assert isinstance(pod, pods.Pod)
    assert (pod.words, list(pod.takes), list(pod.provides)) == (
        "begin+go_on+end",
        ["asked"],
        ["first", "second", "third"],
    )
    assert pod.deadline_s == 3 * 1800


def test_without_a_name_each_stage_has_its_own() -> None:
    own = Placement()
    assert [pod.name for pod in pods.of(pipeline(own, own, own))] == ["begin", "go_on", "end"]


def test_a_pod_comes_after_those_whose_records_it_takes() -> None:
    late = pods.of(pipeline(Placement(), Placement(pod="late"), Placement(pod="late")))
    assert [pod.name for pod in late] == ["begin", "late"]
    assert [pod.name for pod in pods.flat(PODS)] == ["prepare", "find_champion", "optimize", "deliver"]


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"second": replace(TOGETHER, sandbox=True)}, "begin and go_on differ in `sandbox`"),
        ({"third": replace(TOGETHER, cluster=True)}, "begin and end differ in `cluster`"),
        ({"third": replace(TOGETHER, on_target=True)}, "begin and end differ in `on_target`"),
        ({"first": replace(TOGETHER, shielded=True)}, "begin is shielded or measures, so it must be the last stage"),
        ({"second": replace(TOGETHER, bench=True)}, "go_on is shielded or measures, so it must be the last stage"),
        ({"second": Placement()}, "pods go_on and together need each other's records"),
    ],
)
def test_stages_that_must_not_share_a_pod_are_an_error(places: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        pods.of(pipeline(**places))


def test_a_broker_knows_only_records_of_the_ledger() -> None:
    place = replace(TOGETHER, sandbox=True)
    assert pods.of(pipeline(place, place, replace(place, keep="never")))
    with pytest.raises(TypeError, match="go_on takes the record of begin, which the ledger does not store"):
        pods.of(pipeline(replace(place, keep="never"), place, place))


def test_an_effect_and_the_stage_that_uses_it_share_a_pod() -> None:
    effect, user = replace(TOGETHER, keep="effect"), replace(TOGETHER, uses=begin)
    assert pods.of(pipeline(effect, user))
    with pytest.raises(TypeError, match="pod 'together': go_on uses begin, which is in another pod"):
        pods.of(pipeline(Placement(keep="effect"), user))


def test_stages_inside_and_outside_a_fan_out_never_share_a_pod() -> None:
    each = next(stage for stage in RELEASE if isinstance(stage, FanOut))
    inside = tuple(Stage(stage.step, replace(stage.at, pod="prepare")) for stage in each.stages)
    stages = tuple(replace(stage, stages=inside) if isinstance(stage, FanOut) else stage for stage in RELEASE)
    with pytest.raises(TypeError, match="two pods 'prepare'"):
        pods.of(Pipeline("odd", inputs=RELEASE.inputs, stages=stages))


def test_a_stage_that_measures_may_leave_its_pod() -> None:
    (optimize,) = [pod for pod in pods.flat(PODS) if pod.name == "optimize"]
    apart = optimize.without_bench()
    assert apart is not None
    assert [pod.words for pod in apart] == ["quantize+package", "tune"]
    assert apart[1].without_bench() is None


class Item(Record):
    """What a fan-out runs for."""

    name: str


class Items(Record):
    """The items, and what else `spread` returns."""

    items: tuple[Item, ...] = ()


class Aside(Record):
    """What a pod beside the first one returns."""


class Fourth(Record):
    """What the fan-out returns."""


def spread(asked: Asked) -> Items:
    return Items()


def look_aside(asked: Asked) -> Aside:
    return Aside()


def work(item: Item, items: Items, aside: Aside) -> Fourth:
    return Fourth()


def spreading(within: str = "together", **at: Any) -> Pipeline:
    each = FanOut(Item, "items", "items", (Stage(work, Placement(**at)),), within=within, at_home=lambda _: True)
    return Pipeline("wide", inputs=(Asked,), stages=(Stage(spread, TOGETHER), Stage(look_aside), each))


def test_a_pod_may_go_on_with_the_fan_out_that_follows_it() -> None:
    together = next(pod for pod in pods.flat(pods.of(spreading())) if pod.name == "together")
    assert (together.words, list(together.takes), list(together.leaves)) == (
        "spread+each-item",
        ["asked"],
        ["items", "fourth"],
    )
    assert together.met == {"aside": Aside}
    assert pods.handed_over(pods.of(spreading())) == (Aside,)
    assert together.deadline_s == 2 * 1800


def test_only_an_item_that_is_alone_and_at_home_needs_no_pod_of_its_own() -> None:
    (each,) = [stage for stage in spreading() if isinstance(stage, FanOut)]
    first, second = Item(name="a"), Item(name="b")
    assert each.only_item(Items(items=(first,))) == first
    assert each.only_item(Items(items=(first, second))) is None
    assert replace(each, at_home=lambda _: False).only_item(Items(items=(first,))) is None


@pytest.mark.parametrize(
    ("within", "at", "message"),
    [
        ("together", {"sandbox": True}, "'together' and work of each-item have different rights"),
        ("together", {"cluster": True}, "'together' and work of each-item have different rights"),
        ("look_aside", {}, "'look_aside', which does not provide 'items'"),
        ("elsewhere", {}, "'elsewhere', which does not provide 'items'"),
    ],
)
def test_a_fan_out_goes_on_only_in_a_pod_of_its_equals(within: str, at: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        pods.of(spreading(within, **at))
