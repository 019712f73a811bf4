from shiplift.runtime.families.graph.candidates import without_graph
from shiplift.runtime.records.precision import Candidate, Candidates
from tests.unit.examples import artifact


def test_of_a_graph_that_is_not_the_model_only_exact_trees_are_left() -> None:
    made = [
        Candidate(precision="fp32", model=artifact()),
        Candidate(precision="int8", model=None, dropped="too slow"),
        Candidate(engine="trees", precision="fp32", model=artifact("a")),
    ]
    candidates = Candidates(target="local-cpu", metric=None, candidates=tuple(made))
    assert without_graph(candidates, "") == candidates
    left = without_graph(candidates, "row 3 differs")
    assert [each.engine for each in left.kept] == ["trees"]
    assert [(each.engine, each.dropped) for each in left.candidates] == [
        ("trees", ""),
        ("onnxruntime", "row 3 differs"),
        ("onnxruntime", "too slow"),
    ]
