"""The ladder without its sandbox, to test what a child process hides: how rungs are built in parallel."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from shiplift.runtime.base.errors import MissingTool, SpecInvalid
from shiplift.runtime.model.tensors import DataLimits
from shiplift.runtime.precision import nncf_graphs, rungs, tensorrt_plans
from shiplift.runtime.precision.evaluation import Validation
from shiplift.runtime.precision.ladder import _KINDS, Builder, LoggedDataset, Text
from shiplift.runtime.precision.tensorrt_plans import PLAN, STAMP
from shiplift.runtime.records.precision import AS_EXPORTED, Built, Evaluation
from shiplift.runtime.spec.model import Data, Quantization
from shiplift.runtime.spec.target import Target
from tests.unit.runtime.precision.test_tensorrt_plans import H200, Library
from tests.unit.steps.test_quantize import Bench

ON_ONNX_RUNTIME = Target(engine="onnxruntime", precisions=("fp32", "int8"))


def builder(bench: Bench, work: str = "work", **changes: Any) -> Builder:
    folder = bench.home / work
    folder.mkdir()
    model = bench.store.fetch(bench.exported.model, folder / "fp32") / "model.onnx"
    reference = bench.store.fetch(bench.exported.reference, folder / "reference.npz")
    datasets = bench.datasets()
    assert datasets.validation is not None
    validation = bench.store.fetch(datasets.validation, folder / "validation.npz")
    defaults: dict[str, Any] = {
        "model": model,
        "reference": reference,
        "work": folder,
        "signature": bench.exported.signature,
        "target": ON_ONNX_RUNTIME,
        "data": Data(),
        "memory_mb": 8192,
        "limits": DataLimits(),
        "settings": Quantization(max_score_drop=1, methods=("minmax",)),
        "validation": LoggedDataset(file=validation, name="validation.npz"),
    }
    return Builder(**defaults | changes)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_job_in_a_process_of_its_own_gives_what_it_gives_here(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def int8(work: str) -> tuple[Built, str]:
        (built,) = [each for each in builder(bench, work).build().candidates if each.precision == "int8"]
        return built, bench.store.put_tree(bench.home / work / built.folder).sha256

    here, here_digest = int8("here")
    monkeypatch.setattr(rungs, "_SMALL_BYTES", 0)
    apart, apart_digest = int8("apart")
    assert apart_digest == here_digest
    assert apart.score == here.score
    assert apart.build_peak_mb > 0 == here.build_peak_mb


def test_the_precisions_of_a_small_model_are_built_scored_and_timed_in_one_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release waits for each process that Python and an engine are loaded into."""
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    kept = [each for each in builder(bench, target=Target()).build().candidates if not each.dropped]
    assert {each.engine for each in kept} == {"onnxruntime", "openvino"}
    assert all(each.latency_ms > 0 for each in kept)


def test_a_rung_whose_process_is_killed_is_a_reason_and_no_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rungs, "_SMALL_BYTES", 0)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    top, int8 = builder(bench).build().candidates
    assert (top.precision, top.dropped, top.folder) == ("fp32", "", AS_EXPORTED)
    assert "int8 static can't be built" in int8.dropped


@pytest.mark.slow
def test_of_calibrated_graphs_and_nncf_s_the_faster_one_is_kept_on_each_engine(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nncf_graphs, "SMALLEST_BYTES", 0)
    ladder = builder(bench, target=Target(precisions=("fp32", "int8"))).build()
    int8 = [each for each in ladder.candidates if each.precision == "int8"]
    assert sorted((each.engine, each.method) for each in int8) == [
        ("onnxruntime", "NNCF"),
        ("onnxruntime", "static minmax, per channel"),
        ("openvino", "NNCF"),
        ("openvino", "static minmax, per channel"),
    ]
    for each in int8:
        assert each.folder == {"N": "int8-nncf/built", "s": "int8-static/minmax"}[each.method[0]]
        assert each.score == pytest.approx(1, abs=0.1)
        assert each.dropped or each.latency_ms > 0
    for engine in ("onnxruntime", "openvino"):
        assert sum(not each.dropped for each in int8 if each.engine == engine) <= 1  # packages are named by precision


def test_a_small_model_is_not_quantized_by_nncf(bench: Bench) -> None:
    ladder = builder(bench).build()
    assert "NNCF" not in {each.method for each in ladder.candidates}


def test_where_bf16_wins_a_transformer_is_not_quantized_and_a_note_says_so(tmp_path: Path) -> None:
    arrays = {"input": Bench(tmp_path, normed=True).inputs}
    validation = Validation(metric=None, asked=arrays, reference={})
    target = Target(precisions=("fp32", "bf16", "int8"))
    for wins, kinds in (("", {"int8 static", "int8 dynamic"}), ("bf16 is 4.2x as fast", set())):
        folder = tmp_path / (wins or "slow")
        folder.mkdir()
        made = builder(Bench(folder, normed=True), target=target)
        jobs, later, notes = made._jobs(validation, arrays, Evaluation(), wins)
        assert {job.kind for job in jobs} == kinds
        assert later == []
        assert any(note.startswith("int8 was not built: bf16 is 4.2x as fast") for note in notes) is bool(wins)


def test_where_bf16_wins_our_own_calibration_waits_for_nncf(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nncf_graphs, "SMALLEST_BYTES", 0)
    arrays = {"input": bench.inputs}
    validation = Validation(metric=None, asked=arrays, reference={})
    made = builder(bench, target=Target(precisions=("fp32", "bf16", "int8")))
    jobs, later, _ = made._jobs(validation, arrays, Evaluation(), "bf16 is 4.2x as fast")
    assert [job.kind for job in jobs] == ["int8 nncf"]
    assert [job.kind for job in later] == ["int8 static"]


@pytest.mark.parametrize(
    ("kind", "accurate", "worth"),
    [
        ("int8 static", set(), True),
        ("int8 static", {"int8 dynamic"}, True),  # OpenVINO can't run that
        ("int8 static", {"int8 nncf"}, False),
        ("int8 static", {"fp16"}, True),
        ("int8 dynamic", {"int8 static"}, False),
        ("int8 dynamic", set(), True),
        ("int8 nncf", set(), True),
        ("int8 nncf", {"int8 dynamic"}, True),
        ("int8 nncf", {"int8 static"}, False),
    ],
)
def test_layers_are_left_in_float_only_where_nothing_makes_up_for_the_graph(
    kind: rungs.Kind, accurate: set[rungs.Kind], *, worth: bool
) -> None:
    scored = Evaluation(score=0.5)
    assert rungs.worth_improving(rungs.Rung(kind=kind, evaluation=scored), accurate) is worth
    assert not rungs.worth_improving(rungs.Rung(kind=kind), accurate)  # without a score nothing says when to stop
    assert not rungs.worth_improving(rungs.Rung(kind=kind, evaluation=scored, failed="no"), accurate)


def test_a_graph_within_the_budget_spares_the_search_for_layers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nncf_graphs, "SMALLEST_BYTES", 0)
    asked: list[str] = []

    def built(jobs: Any, *, memory_mb: int) -> tuple[rungs.Rung, ...]:
        asked.extend(f"{job.kind}{' again' if job.improved else ''}" for job in jobs)
        scores = {"int8 static": 0.1, "int8 nncf": nncf}
        return tuple(rungs.Rung(kind=job.kind, evaluation=Evaluation(score=scores[job.kind])) for job in jobs)

    monkeypatch.setattr(rungs, "build_all", built)
    arrays = {"input": bench.inputs}
    validation = Validation(metric="accuracy", asked=arrays, reference={})
    again = ["int8 static again", "int8 nncf again"]  # NNCF's where static's own layers did not help
    for nncf, bf16_wins, searched in ((0.9, False, []), (0.2, False, again), (0.3, True, [])):
        asked.clear()
        made = builder(bench, f"work-{nncf}", target=Target(precisions=("fp32", "int8")), settings=Quantization())
        jobs, later, _ = made._jobs(validation, arrays, Evaluation(score=0.9), "")
        made._built(jobs, later, validation, Evaluation(score=0.9), search=not bf16_wins)
        assert asked == ["int8 static", "int8 nncf", *searched]


@pytest.mark.slow
def test_nncf_leaves_the_weakest_layers_in_float_until_its_graph_is_accurate_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nncf_graphs, "SMALLEST_BYTES", 0)
    monkeypatch.setitem(_KINDS, "int8", ("int8 nncf",))
    bench = Bench(tmp_path, fragile=True)

    def built(share: float) -> Built:
        settings = Quantization(max_score_drop=0.08, max_slice_drop=1, max_float_share=share)
        candidates = builder(bench, f"work-{share}", settings=settings).build().candidates
        (int8,) = [each for each in candidates if each.precision == "int8"]
        return int8

    assert "worse than fp32's" in built(0).dropped
    within = built(0.5)
    assert (within.method, within.float_layers) == ("NNCF", ("MatMul_2",))
    assert "worse" not in within.dropped  # so small a graph need not be faster
    assert within.score is not None
    assert within.score >= 0.92
    graph = onnx.load(tmp_path / "work-0.5" / within.folder / "model.onnx").graph
    scaled = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    quantized = {node.name for node in graph.node if node.op_type == "MatMul" and set(node.input) & scaled}
    assert quantized == {"MatMul_0"}


def test_without_calibration_data_there_is_no_fp8_either(bench: Bench) -> None:
    target = H200.model_copy(update={"precisions": ("fp32", "int8", "fp8")})
    validation = Validation(metric=None, asked={"input": bench.inputs}, reference={})
    jobs, later, notes = builder(bench, target=target)._jobs(validation, None, Evaluation(), "")
    assert jobs == later == []
    assert [note.partition(" (")[0] for note in notes] == [
        f"{precision} was not built: no calibration data were logged" for precision in ("int8", "fp8")
    ]


# --- plans ---


def test_qualities_of_jpeg_are_for_models_of_images(bench: Bench) -> None:
    asked = Data(jpeg_qualities=(90,))
    with pytest.raises(SpecInvalid, match="for models that take images, and this one does not"):
        bench.quantize(bench.datasets(), data=asked)
    front = bench.home / "front"  # a tokenizer's, by what is not in it
    front.mkdir()
    made = builder(bench, data=asked, text=Text(inputs=bench.exported.signature.inputs, front=front))
    labelled = Validation(metric="accuracy", asked={}, reference={}, inputs={}, labels=np.ones(2))
    with pytest.raises(SpecInvalid, match="for models that take images"):
        list(made._jpegs(None, labelled))
    assert list(made._jpegs(None, replace(labelled, metric=None))) == []


def test_kept_candidates_get_a_plan_and_dropped_ones_none(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_plans, "library", Library)
    building = builder(bench, target=H200)
    kept = Built(precision="fp32", folder=AS_EXPORTED)
    dropped = Built(precision="fp16", folder="fp16/built", dropped="slow")
    planned, without = building._with_plans((kept, dropped))
    assert {file.name for file in (building.work / planned.folder).iterdir()} == {"model.onnx", PLAN, STAMP}
    assert without == dropped


def test_without_the_library_a_plan_is_a_missing_tool(bench: Bench) -> None:
    with pytest.raises(MissingTool, match="TensorRT is not installed"):
        builder(bench, target=H200)._with_plans(())
    assert builder(bench, "other")._with_plans(()) == ()


def test_a_model_is_never_taken_from_outside_the_sandbox_s_work() -> None:
    for folder in ("../fp32", "/etc", "a/../../b", "a//b", "A"):
        with pytest.raises(ValueError, match="folder"):
            Built(precision="fp32", folder=folder)


def test_of_a_graph_in_fp64_nothing_else_is_built(bench: Bench) -> None:
    target = Target(engine="auto", precisions=("fp32", "bf16", "int8"), cpu_features=("AMXBF16",))
    built = builder(bench, precision="fp64", target=target).build()
    assert [(each.engine, each.precision, each.dropped) for each in built.candidates] == [("onnxruntime", "fp64", "")]
    assert "no lower precision was built of a graph in fp64" in built.notes
