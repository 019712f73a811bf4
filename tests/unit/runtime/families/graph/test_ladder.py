"""Which forms of a version are tried, in which order, and what a user is told of those that were dropped."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shiplift.runtime.base import advice
from shiplift.runtime.base.errors import ExportFailed, NotAdmitted, SandboxLimit, Temporary
from shiplift.runtime.families.graph.ladder import RUNGS, FormRung, Work, export_first, no_python, rungs_of
from shiplift.runtime.families.work import Exporting
from shiplift.runtime.records.kinds.contract import DeclaredGraph
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.model import Datasets, Obstacle, PythonEnvironment, PythonModel
from shiplift.runtime.records.proof import Counterexample, Form, Proof, served_by
from shiplift.runtime.records.site import Cluster, SitePolicy
from shiplift.runtime.spec.document import parse
from shiplift.runtime.spec.model import Conversion, Data
from tests.unit.examples import artifact, exported, model_version, signature, site

PICKLED, DATA = "the pickle model.pkl", ""
ONE_LINE = "Write `admission: {python: sandbox}` in the spec."
CLUSTER = Cluster(namespace="a", serving_namespace="b", server_image="c")
UNREAD = Obstacle(what="the Python model has no requirements.txt", do="Log it again.")


@pytest.mark.parametrize(
    ("own_code", "spec", "policy", "told"),
    [
        (DATA, "", SitePolicy(), ""),
        (DATA, "", SitePolicy(python=("refuse",)), ""),  # a policy for its author's code
        (PICKLED, "", SitePolicy(), f"the author's code in production (the pickle model.pkl)|{ONE_LINE}"),
        (
            PICKLED,
            "admission: {pickle: sandbox}",
            SitePolicy(),
            "|Write `admission: {pickle: sandbox, python: sandbox}`",
        ),
        (
            PICKLED,
            "",
            SitePolicy(python=("refuse",)),
            "|This site allows no `admission: {python: sandbox}`: ask its owner",
        ),
        (PICKLED, "admission: {python: sandbox}", SitePolicy(), ""),
        (DATA, "export: {preprocess: {resize: [8, 8]}}", SitePolicy(), "it takes pixels, no files|Leave"),
        (
            DATA,
            "export: {outputs: [a]}",
            SitePolicy(),
            "`export.outputs` is set, but a Python model has no graph|Leave",
        ),
        (DATA, "targets: [{name: gpu, accelerator: nvidia, server: nvidia}]", SitePolicy(), "target gpu can't serve"),
        (DATA, "targets: [{name: own, engine: openvino}]", SitePolicy(), "only a CPU with `engine: auto` does"),
        (
            PICKLED,
            "{targets: [{name: own, engine: openvino}], admission: {python: sandbox}}",
            SitePolicy(),
            "target own",
        ),
    ],
)
def test_what_keeps_its_own_library_from_serving_a_model(
    tmp_path: Path, own_code: str, spec: str, policy: SitePolicy, told: str
) -> None:
    found = no_python(site(tmp_path, policy=policy), parse(spec), own_code, None)
    assert bool(found) == bool(told)
    what, _, do = told.partition("|")
    assert not found or (what in found.what and do in found.do)


def test_a_cluster_needs_an_index_and_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    found = no_python(site(tmp_path, place=CLUSTER), parse(""), DATA, None)
    assert found
    assert "the index that `policy.package_index` names" in found.what
    policy = SitePolicy(package_index="https://index.example/simple")
    assert no_python(site(tmp_path, place=CLUSTER, policy=policy), parse(""), DATA, None) is None
    assert no_python(site(tmp_path), parse(""), DATA, UNREAD) == UNREAD


def work(home: Path, *, flavor: str = "sklearn", obstacle: Obstacle | None = None, fallback: Any = "auto") -> Work:
    contract = DeclaredGraph(signature=signature(), example=artifact(), no_python=obstacle)
    return Exporting(
        site=site(home),
        version=model_version().model_copy(update={"flavor": flavor}),
        contract=contract,
        conversion=Conversion(fallback=fallback),
        datasets=Datasets(),
        data=Data(),
    )


@pytest.mark.parametrize(
    ("flavor", "fallback", "tried"),
    [
        ("sklearn", "auto", ["FP32 graph", "Python"]),
        ("sklearn", "python", ["FP32 graph", "Python"]),
        ("sklearn", "none", ["FP32 graph"]),
        ("onnx", "auto", ["FP32 graph"]),  # it is the graph
    ],
)
def test_a_spec_and_a_flavor_say_how_far_down_the_ladder_goes(
    tmp_path: Path, flavor: str, fallback: str, tried: list[str]
) -> None:
    assert [rung.form.name for rung in rungs_of(work(tmp_path, flavor=flavor, fallback=fallback))] == tried


def failing(error: Exception) -> Callable[[Work], Exported]:
    def make(_: Work) -> Exported:
        raise error

    return make


def ladder(graph: Callable[[Work], Exported], python: Callable[[Work], Exported]) -> tuple[FormRung, ...]:
    return replace(RUNGS[0], make=graph), replace(RUNGS[1], make=python)


NO_GRAPH = ExportFailed("no converter for KernelRidge.", do="Export it yourself.")


def test_the_first_form_that_is_right_serves_and_those_before_it_are_told(tmp_path: Path) -> None:
    tried = exported(forms=(Form(name="FP32 graph", dropped="row 3"), Form(name="exact trees")))
    assert export_first(work(tmp_path), ladder(lambda _: tried, failing(AssertionError()))) == tried
    assert served_by(tried.forms) == "Served by: exact trees, because FP32 graph was dropped: row 3."
    runs = PythonModel(environment=PythonEnvironment(python="3.11", machine="x86_64", wheels=()), memory_mb=64)
    python = exported(kind="python", python=runs, notes=("of its own",))
    made = export_first(work(tmp_path), ladder(failing(NO_GRAPH), lambda _: python))
    assert served_by(made.forms) == "Served by: Python, because FP32 graph was dropped: no converter for KernelRidge."
    assert made.notes[0].startswith("Warning: the model's own library serves it")
    assert made.notes[1:] == ("of its own",)
    assert served_by((Form(name="FP32 graph"), Form(name="exact trees", dropped="row 5"))) == ""
    wordy = served_by((Form(name="FP32 graph", dropped="no. " * 200), Form(name="Python")))
    assert wordy.endswith("....")
    assert len(wordy) < 400


@pytest.mark.parametrize(
    ("origin", "python", "served"),
    [
        ("category", "right", "Python"),
        ("category", "refused", "FP32 graph"),  # nothing else can serve it, and a note warns
        ("infinite", "right", "FP32 graph"),  # no client's JSON has infinities
    ],
)
def test_what_answers_rows_that_the_model_refuses_serves_only_if_nothing_else_can(
    tmp_path: Path, origin: str, python: str, served: str
) -> None:
    unrefused = Counterexample(row=1, origin=origin, original="raises ValueError", served="answers")
    proof = Proof(asked=(), settings=(), unrefused=unrefused)
    graph = exported(proof=proof, forms=(Form(name="FP32 graph"), Form(name="exact trees", dropped="row 5")))
    runs = PythonModel(environment=PythonEnvironment(python="3.11", machine="x86_64", wheels=()), memory_mb=64)
    own = exported(kind="python", python=runs)
    made = export_first(
        work(tmp_path), ladder(lambda _: graph, (lambda _: own) if python == "right" else failing(NO_GRAPH))
    )
    assert [form.name for form in made.forms if not form.dropped] == [served]
    if served == "Python":
        assert [form.name for form in made.forms] == ["FP32 graph", "exact trees", "Python"]
        assert "it answers what the model refuses: to row 1 of the category rows" in made.forms[0].dropped


@pytest.mark.parametrize(
    "error", [ExportFailed("it is not repeatable", do="Seed it."), NotAdmitted("no wheel", do="Seed it.")]
)
def test_a_refusal_has_every_reason_and_what_to_do_about_each(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(ExportFailed) as refused:
        export_first(work(tmp_path), ladder(failing(NO_GRAPH), failing(error)))
    why = str(error).partition(".")[0]
    assert refused.value.what == f"no converter for KernelRidge; its own library can't serve it either: {why}"
    assert refused.value.do == "Export it yourself. Or let its own library serve it: Seed it."


def test_what_only_the_author_can_change_is_the_only_advice(tmp_path: Path) -> None:
    wrong = ExportFailed("it does not answer a batch of 1", do=advice.LOG_ITS_EXAMPLE)
    with pytest.raises(ExportFailed) as refused:
        export_first(work(tmp_path), ladder(failing(wrong), failing(NotAdmitted("no", do="Choose another target."))))
    assert str(refused.value) == str(wrong)


def test_a_conversion_that_exceeds_a_limit_leaves_the_next_form_unless_it_is_the_last(tmp_path: Path) -> None:
    limit = failing(SandboxLimit("converting takes more than 4096 MB", do="Raise `export.memory_mb`."))
    made = export_first(work(tmp_path), ladder(limit, lambda _: exported()))
    assert [each.dropped for each in made.forms][:1] == ["converting takes more than 4096 MB"]
    for rungs in (ladder(failing(NO_GRAPH), limit), ladder(limit, failing(AssertionError()))[:1]):
        with pytest.raises(SandboxLimit):
            export_first(work(tmp_path), rungs)


def test_a_form_that_is_out_of_the_question_is_not_tried_and_what_may_pass_ends_nothing(tmp_path: Path) -> None:
    refused = work(tmp_path, obstacle=Obstacle(what="it would run code", do=ONE_LINE))
    with pytest.raises(ExportFailed, match=r"can't serve it either: it would run code\. .*Write `admission"):
        export_first(refused, ladder(failing(NO_GRAPH), failing(AssertionError())))
    with pytest.raises(Temporary):
        export_first(work(tmp_path), ladder(failing(NO_GRAPH), failing(Temporary("no index", do="Wait."))))
    with pytest.raises(ExportFailed) as alone:
        export_first(work(tmp_path), ladder(failing(NO_GRAPH), failing(AssertionError()))[:1])
    assert str(alone.value) == str(NO_GRAPH)
