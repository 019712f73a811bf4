from collections.abc import Callable
from typing import Any

import pytest

from shiplift.pipelines.graph import FanOut, Pipeline, Placement, Stage, load
from shiplift.runtime.records.base import Record, Sections
from shiplift.runtime.records.release import Ending


class Source(Record):
    text: str = ""


class Limit(Record):
    most: int = 1


class Site(Record):
    name: str


class Sites(Record):
    all: tuple[Site, ...] = ()
    first: Site | None = None


class Made(Record):
    text: str = ""


class Parts(Sections):
    limit: Limit
    sites: Sites


class Misnamed(Sections):
    cap: Limit


class Closed(Record):
    message: str = ""


def make(source: Source) -> Made:
    return Made(text=source.text)


def split(source: Source) -> Parts:
    return Parts(limit=Limit(), sites=Sites())


def judge(made: Made, limit: Limit) -> Closed:
    return Closed()


def at_site(site: Site, source: Source) -> Made:
    return Made()


def gather(made: tuple[Made, ...]) -> Closed:
    return Closed()


def close(source: Source, ending: Ending) -> Closed:
    return Closed()


def refused(*stages: Any, inputs: Any = (Source,), on_exit: Stage | None = None) -> str:
    with pytest.raises(TypeError) as error:
        Pipeline("bad", inputs=inputs, stages=stages, on_exit=on_exit)
    return str(error.value)


def test_stages_connect_by_the_types_of_their_records() -> None:
    pipeline = Pipeline("good", inputs=(Source, Limit), stages=(Stage(make), Stage(judge)))
    assert [stage.name for stage in pipeline.flat()] == ["make", "judge"]
    assert list(pipeline) == [Stage(make), Stage(judge)]


def test_a_stage_is_known_by_its_step() -> None:
    stage = Stage(judge, Placement(cpu="2"))
    assert stage.entry == f"{__name__}:judge"
    takes: dict[str, Any] = {"made": Made, "limit": Limit}
    assert (stage.takes, stage.gives) == (takes, Closed)


def test_the_parts_of_sections_are_edges_of_their_own() -> None:
    pipeline = Pipeline("good", inputs=(Source,), stages=(Stage(split), Stage(make), Stage(judge)))
    assert len(list(pipeline.flat())) == 3


def test_a_fan_out_gives_one_record_an_item_to_those_behind_it() -> None:
    each = FanOut(Site, "sites", "all", (Stage(at_site),))
    pipeline = Pipeline("good", inputs=(Source, Sites), stages=(each, Stage(gather)))
    assert [stage.name for stage in pipeline.flat()] == ["at_site", "gather"]
    assert (each.name, each.gives, each.takes) == ("each-site", Made, {"source": Source})


def test_an_input_that_nothing_gives_is_named_with_what_there_is() -> None:
    message = refused(Stage(judge), inputs=(Source, Limit))
    assert "judge takes 'made', which nothing before it provides; available: source, limit" in message


def test_a_stage_cannot_take_what_only_a_later_one_gives() -> None:
    assert "takes 'made'" in refused(Stage(judge), Stage(make), inputs=(Source, Limit))


def test_a_record_given_twice_is_refused() -> None:
    assert "provides 'made' a second time" in refused(Stage(make), Stage(make))
    assert "provides 'source' a second time" in refused(Stage(_gives(Source)))


def test_a_part_of_sections_that_is_there_already_is_refused() -> None:
    assert "provides 'limit' a second time" in refused(Stage(split), inputs=(Source, Limit))


def test_a_part_of_sections_is_named_after_its_type() -> None:
    assert "Misnamed.cap is a Limit: name it 'limit'" in refused(Stage(_gives(Misnamed)))


def test_a_parameter_of_another_type_than_the_record_is_refused() -> None:
    def odd(source: Limit) -> Made:
        return Made()

    assert "takes 'source' as" in refused(Stage(odd))


def test_what_is_many_outside_a_fan_out_cannot_be_taken_as_one() -> None:
    each = FanOut(Site, "sites", "all", (Stage(at_site),))
    message = refused(each, Stage(judge), inputs=(Source, Limit, Sites))
    assert "takes 'made' as" in message
    assert "but it is tuple" in message


def test_a_parameter_or_a_result_without_a_type_is_refused_by_name() -> None:
    def nothing(source) -> Made:  # type: ignore[no-untyped-def]
        return Made()

    def endless(source: Source):  # type: ignore[no-untyped-def]
        return Made()

    assert "nothing has no type for 'source'" in refused(Stage(nothing))
    assert "endless does not say which record it returns" in refused(Stage(endless))


def test_a_step_that_gives_no_record_is_refused() -> None:
    assert "does not say which record it returns" in refused(Stage(_gives(int)))


@pytest.mark.parametrize(
    ("source", "attribute", "message"),
    [
        ("nowhere", "all", "each-site iterates over 'nowhere', which nothing before it provides"),
        ("sites", "some", "each-site iterates over sites.some, which is not a tuple of Site"),
        ("sites", "first", "each-site iterates over sites.first, which is not a tuple of Site"),
    ],
)
def test_a_fan_out_over_what_is_not_there_is_refused(source: str, attribute: str, message: str) -> None:
    assert message in refused(FanOut(Site, source, attribute, (Stage(at_site),)), inputs=(Source, Sites))


def test_the_item_of_a_fan_out_cannot_hide_another_record() -> None:
    each = FanOut(Site, "sites", "all", (Stage(at_site),))
    assert "provides 'site' a second time" in refused(each, inputs=(Source, Sites, Site))


def test_the_exit_stage_takes_the_inputs_and_the_ending_and_nothing_that_may_be_missing() -> None:
    assert Pipeline("good", inputs=(Source,), stages=(Stage(make),), on_exit=Stage(close)).on_exit is not None

    def greedy(made: Made, ending: Ending) -> Closed:
        return Closed()

    message = refused(Stage(make), on_exit=Stage(greedy))
    assert "greedy takes 'made', which nothing before it provides; available: source, ending" in message


def test_a_stage_can_only_use_the_effect_of_another_stage() -> None:
    user = Stage(judge, Placement(uses=make))
    served = Stage(make, Placement(keep="effect"))
    assert Pipeline("good", inputs=(Source, Limit), stages=(served, user)).stages == (served, user)
    message = refused(Stage(make), user, inputs=(Source, Limit))
    assert "judge uses 'make', which is not a stage with an effect" in message


def test_a_record_is_read_from_json_as_text_or_decoded() -> None:
    assert load(Made, '{"text": "a"}') == load(Made, {"text": "a"}) == Made(text="a")


def test_results_of_a_fan_out_are_read_from_a_list_of_json_texts() -> None:
    assert load(tuple[Made, ...], ['{"text": "a"}', {"text": "b"}]) == (Made(text="a"), Made(text="b"))


def _gives(kind: Any) -> Callable[[Source], Any]:
    def step(source: Source) -> Any:
        return kind

    step.__annotations__["return"] = kind
    return step
