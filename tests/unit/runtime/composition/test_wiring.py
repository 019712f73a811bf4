"""Properties of graphs: any sound pipeline passes in an order that respects its edges, and each fault is found."""

import itertools
from dataclasses import dataclass, field
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from shiplift.runtime.composition import wiring
from shiplift.runtime.composition.check import check
from shiplift.runtime.composition.checked import CheckedPipeline
from shiplift.runtime.spec.pipeline import PipelineSpec, Written
from tests.unit.examples import tensor
from tests.unit.pipelines_of_models import member


@dataclass
class Drawn:
    """A pipeline: by step, which earlier steps it takes a tensor of; `shuffled` is their order in the file."""

    takes: list[list[int]]
    shuffled: list[int]
    body: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        used = {other for inputs in self.takes for other in inputs}
        ends = [at for at in range(len(self.takes)) if at not in used]
        kind = {"datatype": "FP32", "shape": [-1, 4]}
        self.body = {
            "name": "drawn",
            "inputs": {"x": kind},
            "outputs": {f"t{at}": kind for at in ends},
            "members": {f"m{at}": {"model": f"model-{at}"} for at in range(len(self.takes))},
            "steps": {f"s{at}": self._step(at) for at in self.shuffled},
        }

    def _step(self, at: int) -> dict[str, Any]:
        tensors = [f"t{other}" for other in self.takes[at]] or ["x"]
        inputs = {f"i{index}": name for index, name in enumerate(tensors)}
        return {"member": f"m{at}", "inputs": inputs, "outputs": {"o": f"t{at}"}}

    def check(self) -> CheckedPipeline:
        spec = PipelineSpec.model_validate(self.body)
        members = {
            f"m{at}": member(
                f"model-{at}", [tensor(f"i{n}", -1, 4) for n in range(max(1, len(inputs)))], [tensor("o", -1, 4)]
            )
            for at, inputs in enumerate(self.takes)
        }
        return check(Written(spec=spec), members, {})


@st.composite
def drawn(draw: st.DrawFn, least: int = 1) -> Drawn:
    count = draw(st.integers(least, 8))
    takes = [draw(st.lists(st.integers(0, at - 1), unique=True, max_size=3)) if at else [] for at in range(count)]
    return Drawn(takes=takes, shuffled=draw(st.permutations(range(count))))


@given(drawn())
def test_a_sound_graph_passes_in_an_order_that_respects_its_edges(graph: Drawn) -> None:
    result = graph.check()
    assert result.problems == ()
    places = {name: at for at, name in enumerate(result.order)}
    assert len(places) == len(graph.takes)
    assert all(places[f"s{other}"] < places[f"s{at}"] for at, inputs in enumerate(graph.takes) for other in inputs)
    assert len(result.edges) == sum(map(len, graph.takes)) + len(graph.body["outputs"]) + graph.takes.count([])


@given(drawn())
def test_the_order_is_that_of_the_file_where_the_edges_leave_it_open(graph: Drawn) -> None:
    written = [f"s{at}" for at in graph.shuffled]
    order, needs = graph.check().order, wiring.needs(PipelineSpec.model_validate(graph.body))
    for at, name in enumerate(order):
        later = [other for other in written[: written.index(name)] if other in order[at:]]
        assert all(needs[other] & set(order[at:]) for other in later)


@given(drawn(least=2), st.data())
def test_an_edge_backwards_is_a_cycle(graph: Drawn, data: st.DataObject) -> None:
    edges = [(other, at) for at, inputs in enumerate(graph.takes) for other in inputs]
    assume(edges)
    other, at = data.draw(st.sampled_from(edges))
    graph.body["steps"][f"s{other}"]["inputs"]["i0"] = f"t{at}"
    problems = graph.check().problems
    (cycle,) = [problem for problem in problems if "wait for each other" in problem.what]
    assert f"s{other}" in cycle.what


@given(drawn(), st.data())
def test_an_unknown_tensor_is_named(graph: Drawn, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(graph.takes) - 1))
    graph.body["steps"][f"s{at}"]["inputs"]["i0"] = "nowhere"
    problems = graph.check().problems
    assert f"steps.s{at}.inputs.i0" in {problem.path for problem in problems if "no step gives" in problem.what}


@given(drawn(), st.data())
def test_a_tensor_that_two_steps_give_is_named(graph: Drawn, data: st.DataObject) -> None:
    assume(len(graph.takes) > 1)
    first, second = data.draw(st.permutations(range(len(graph.takes))))[:2]
    graph.body["steps"][f"s{first}"]["outputs"]["o"] = f"t{second}"
    problems = graph.check().problems
    (twice,) = [problem for problem in problems if "is also given by" in problem.what]
    assert repr(f"t{second}") in twice.what


@given(drawn(), st.data(), st.sampled_from([("shape", [-1, 5]), ("shape", [-1]), ("datatype", "INT8")]))
def test_a_wrong_type_is_found_at_its_edge_and_nowhere_else(
    graph: Drawn, data: st.DataObject, change: tuple[str, Any]
) -> None:
    name = data.draw(st.sampled_from(sorted(graph.body["outputs"])))
    graph.body["outputs"][name] = {**graph.body["outputs"][name], change[0]: change[1]}
    assert [problem.path for problem in graph.check().problems] == [f"outputs.{name}"]


@given(st.dictionaries(st.integers(0, 6).map(str), st.sets(st.integers(0, 6).map(str), max_size=4), max_size=7))
def test_either_every_step_has_a_place_or_a_cycle_says_why(graph: dict[str, set[str]]) -> None:
    graph = {node: before & set(graph) for node, before in graph.items()}
    order, cycles = wiring.order(graph), wiring.cycles(graph)
    assert (len(order) == len(graph)) is (cycles == [])
    for cycle in cycles:
        assert cycle[0] == cycle[-1]
        assert all(one in graph[other] or other in graph[one] for one, other in itertools.pairwise(cycle))
