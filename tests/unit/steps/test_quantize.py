import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from shiplift.pipelines.engines.interruption import Interrupted, deadline
from shiplift.runtime.base.errors import (
    DataInvalid,
    DeadlineExceeded,
    ExportFailed,
    QuantizeFailed,
    SandboxLimit,
    SpecInvalid,
    Temporary,
)
from shiplift.runtime.base.secrets import load_secrets
from shiplift.runtime.confinement import workplace
from shiplift.runtime.families.graph.candidates import BUILD
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.graph_digest import graph_digest
from shiplift.runtime.model.tensors import dump_npz
from shiplift.runtime.precision import quantization, rungs, selection, sensitivity
from shiplift.runtime.precision.evaluation import over_budget
from shiplift.runtime.precision.quantization import (
    has_attention,
    layers,
    model_bytes,
    pick,
    prepare,
    quantize_dynamic,
    quantize_static,
    ranges,
    scheme,
    to_half,
)
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.model import Datasets, PythonEnvironment, PythonModel
from shiplift.runtime.records.precision import AuthorMetric, Candidate, Candidates, Evaluation, Slice
from shiplift.runtime.records.proof import Form
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.model import Data, OwnMetric, Quantization
from shiplift.runtime.spec.target import Target, Versions
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.tuning_cache import tuning_cache
from shiplift.runtime.targets.operators import bundled_onnxruntime, require_operators, support_of
from shiplift.steps.quantize import quantize
from tests.integration.conftest import until
from tests.unit.examples import artifact, endless, exported, perceptron, save, site, tensor

BOTH = Target(engine="onnxruntime", precisions=("fp32", "int8"))
INT8_ONLY = Target(engine="onnxruntime", precisions=("int8",))
IN_THE_SANDBOX = pytest.mark.usefixtures("confined")


# --- the rules ---


def candidate(precision: Any, latency_ms: float, score: float | None = 0.95, dropped: str = "") -> Candidate:
    return Candidate(
        precision=precision, model=artifact(), score=score, latency_ms=latency_ms, latency_batch=8, dropped=dropped
    )


def judged(*candidates: Candidate, target: Target = BOTH, metric: Any = "accuracy", drop: float = 0.01) -> Any:
    ranked = selection.judged(candidates, target, metric, Quantization(max_score_drop=drop))
    return [(entry.precision, entry.dropped) for entry in ranked]


def test_each_part_of_the_data_has_a_score_of_its_own(tmp_path: Path) -> None:
    store = ArtifactStore(site(tmp_path).artifacts_uri)
    model = perceptron(tmp_path / "model" / "model.onnx")
    inputs = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    answers = onnx_models.answer(onnx_models.session(model), {"input": inputs})["output"].argmax(axis=1)
    labels = np.where(np.arange(40) < 30, answers, (answers + 1) % 3)  # the last ten are all wrong
    parts = np.where(np.arange(40) < 30, "north", "south")
    body = dump_npz({"input": inputs, "label": labels, "region": parts, "few": np.arange(3)})
    source = exported(
        model=store.put_tree(model.parent),
        reference=store.put_bytes(dump_npz({"input/input": inputs[:8]})),
    )
    datasets = Datasets(validation=store.put_bytes(body), validation_name="validation.npz")

    def scored(data: Data) -> Candidates:
        return quantize(
            site(tmp_path), Target(engine="onnxruntime", precisions=("fp32",)), source, datasets, data, Quantization()
        )

    (fp32,) = scored(Data(slices=("region",))).candidates
    assert [(part.name, part.score, part.samples) for part in fp32.slices][:2] == [
        ("region=north", 1.0, 30),
        ("region=south", 0.0, 10),
    ]
    assert all(part.name.startswith("label=") for part in scored(Data()).candidates[0].slices)
    with pytest.raises(DataInvalid, match=r"has no 'colour', which `data\.slices` names"):
        scored(Data(slices=("colour",)))
    with pytest.raises(DataInvalid, match=r"has 3 values of 'few' for 40 samples"):
        scored(Data(slices=("few",)))


def detector(to: Path) -> Path:
    """Answers each input's own numbers as its only box, of class 0."""
    shape = numpy_helper.from_array(np.array([0, 1, 4], np.int64), "shape")
    zero = numpy_helper.from_array(np.zeros(1, np.float32), "zero")
    nodes = [
        helper.make_node("Reshape", ["input", "shape"], ["boxes"]),
        helper.make_node("ReduceMax", ["input"], ["top"], keepdims=1, axes=[1]),
        helper.make_node("Sigmoid", ["top"], ["scores"]),
        helper.make_node("Mul", ["scores", "zero"], ["none"]),
        helper.make_node("Cast", ["none"], ["labels"], to=TensorProto.INT64),
    ]
    outputs = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["n", 1, 4]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 1]),
        helper.make_tensor_value_info("labels", TensorProto.INT64, ["n", 1]),
    ]
    taken = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["n", 4])
    return save(helper.make_graph(nodes, "detector", [taken], outputs, [shape, zero]), to, opset=17)


def speaker(to: Path) -> Path:
    """Answers a text to each input number."""
    node = helper.make_node(
        "LabelEncoder",
        ["input"],
        ["text"],
        domain="ai.onnx.ml",
        keys_int64s=[0, 1],
        values_strings=["nothing was said", "somebody said this"],
    )
    taken = helper.make_tensor_value_info("input", TensorProto.INT64, ["n", 1])
    answer = helper.make_tensor_value_info("text", TensorProto.STRING, ["n", 1])
    graph = helper.make_graph([node], "speaker", [taken], [answer])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    to.parent.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), to)
    return to


BOXES = np.array([[10, 10, 20, 20], [0, 0, 5, 5], [30, 30, 40, 50], [1, 1, 9, 9]], np.float32)
SPOKEN = np.array([[0], [1], [0], [1]])


@pytest.mark.parametrize(
    ("metric", "model", "signature", "inputs", "labels", "score"),
    [
        (
            "map",
            detector,
            Signature(
                inputs=(tensor("input", -1, 4),),
                outputs=(tensor("boxes", -1, 1, 4), tensor("scores", -1, 1), tensor("labels", -1, 1, datatype="INT64")),
            ),
            BOXES,
            np.concatenate([BOXES, np.zeros((4, 1), np.float32)], axis=1)[:, None],
            1.0,
        ),
        (
            "wer",
            speaker,
            Signature(
                inputs=(tensor("input", -1, 1, datatype="INT64"),), outputs=(tensor("text", -1, 1, datatype="BYTES"),)
            ),
            SPOKEN,
            np.array(["nothing was said", "somebody said that", "nothing said", "somebody said this"]),
            2 / 11,
        ),
    ],
    ids=["map", "wer"],
)
def test_boxes_and_texts_are_scored(
    tmp_path: Path, metric: Any, model: Any, signature: Signature, inputs: Any, labels: Any, score: float
) -> None:
    store = ArtifactStore(site(tmp_path).artifacts_uri)
    file = model(tmp_path / "model" / "model.onnx")
    source = exported(
        model=store.put_tree(file.parent),
        reference=store.put_bytes(dump_npz({"input/input": inputs})),
        signature=signature,
    )
    logged = store.put_bytes(dump_npz({"input": inputs, "label": labels}))
    datasets = Datasets(validation=logged, validation_name="validation.npz")
    target = Target(engine="onnxruntime", precisions=("fp32",))
    result = quantize(site(tmp_path), target, source, datasets, Data(metric=metric), Quantization())
    (fp32,) = result.candidates
    assert fp32.score == pytest.approx(score)
    assert len(fp32.resamples) == 200


OWN = Data(metric=OwnMetric(python="score.py"))
HITS = "def score(labels, predictions):\n    return float((predictions.argmax(axis=1) == labels).mean())"


def own_metric(bench: "Bench", code: str) -> Datasets:
    metric = ArtifactStore(bench.site.artifacts_uri).put_bytes(code.encode())
    return bench.datasets().model_copy(update={"metric": metric})


@IN_THE_SANDBOX
@pytest.mark.slow
def test_every_precision_is_scored_by_the_author_s_own_metric(bench: "Bench", tmp_path: Path) -> None:
    def scored(code: str, target: Target = BOTH) -> Candidates:
        metric = own_metric(bench, code)
        return quantize(bench.site, target, bench.exported, metric, OWN, Quantization(max_score_drop=1))

    result = scored(HITS)
    assert isinstance(result.metric, AuthorMetric)
    fp32, int8 = sorted(result.candidates, key=lambda each: each.precision)
    assert (fp32.score, len(fp32.resamples)) == (1.0, 200)
    assert int8.score is not None
    assert 0.8 < int8.score <= 1
    other = scored(HITS + "  # as good", Target(engine="onnxruntime", precisions=("fp32",)))
    assert other.metric != result.metric  # scores by different files can't be compared


ATTEMPTS = """
import socket
def score(labels, predictions):
    met = []
    for attempt in (
        lambda: open({secret!r}).read(),
        lambda: open({secret!r}, "w").write("x"),
        lambda: socket.create_connection(("127.0.0.1", 1)),
    ):
        try:
            attempt()
            met.append("done")
        except OSError as error:
            met.append(type(error).__name__)
    raise RuntimeError(met)
"""


@IN_THE_SANDBOX
def test_a_metric_reaches_neither_files_nor_the_network(bench: "Bench", tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("token")
    code = ATTEMPTS.format(secret=str(secret))
    with pytest.raises(DataInvalid, match=r"metric score\.py raised RuntimeError in line 15: \[(.*)\]") as error:
        quantize(bench.site, BOTH, bench.exported, own_metric(bench, code), OWN, Quantization())
    met = [name.strip(" '") for name in error.value.what.partition("[")[2].partition("]")[0].split(",")]
    assert len(met) == 3
    assert set(met) <= {"PermissionError", "FileNotFoundError", "OSError"}
    assert secret.read_text() == "token"


def test_a_faster_candidate_that_is_as_good_comes_first() -> None:
    assert judged(candidate("fp32", 2.0), candidate("int8", 1.0)) == [("int8", ""), ("fp32", "")]


def test_a_slower_candidate_is_dropped_with_both_times() -> None:
    (kept, (precision, why)) = judged(candidate("fp32", 1.0), candidate("int8", 1.0))
    assert (kept, precision) == (("fp32", ""), "int8")
    assert why == "1.000 ms per batch of 8 is not faster than fp32's 1.000 ms"


@pytest.mark.parametrize(
    ("metric", "before", "now", "kept"),
    [
        ("accuracy", 0.95, 0.941, True),
        ("accuracy", 0.95, 0.93, False),
        ("accuracy", 0.95, 0.99, True),
        ("mae", 1.0, 1.005, True),
        ("mae", 1.0, 1.5, False),
        ("mae", 1.0, 0.2, True),
        ("cosine", 0.95, float("nan"), False),
        ("cosine", float("nan"), 0.95, False),
    ],
)
def test_a_candidate_may_cost_no_more_of_the_metric_than_the_budget(
    metric: str, before: float, now: float, kept: bool
) -> None:
    ranked = judged(candidate("fp32", 2.0, before), candidate("int8", 1.0, now), metric=metric)
    why = dict(ranked)["int8"]
    assert (why == "") is kept
    assert kept or "the budget is 0.01" in why


@pytest.mark.parametrize(
    ("drop", "error", "judge_by", "kept", "why"),
    [
        (0.005, 0.02, "score", True, ""),
        (0.005, 0.02, "interval", False, "500 samples can't decide it, about"),
        (0.02, 0.02, "score", False, "500 samples can't decide it, about"),
        (0.03, 0.002, "score", False, "the budget is 0.01"),
        (0.0, 0.001, "interval", True, ""),
    ],
)
def test_a_loss_that_the_samples_can_not_decide_says_how_many_would(
    drop: float, error: float, judge_by: Any, kept: bool, why: str
) -> None:
    common, own = np.random.default_rng(0).normal(size=(2, 200))  # samples are hard or easy for both precisions
    base = Evaluation(score=0.95, samples=500, resamples=tuple(0.95 + 0.03 * common))
    lower = Evaluation(score=0.95 - drop, samples=500, resamples=tuple(0.95 - drop + 0.03 * common + error * own))
    reason = over_budget(base, lower, "accuracy", Quantization(judge_by=judge_by))
    assert (reason == "") is kept
    assert why in reason
    assert ("decide" in reason) == ("decide" in why)


@pytest.mark.parametrize(("before", "now"), [(None, 0.9), (0.9, None), (None, None)])
def test_accuracy_that_nobody_knows_is_not_given_away(before: float | None, now: float | None) -> None:
    ranked = judged(candidate("fp32", 2.0, before), candidate("int8", 1.0, now))
    assert ranked == [
        ("fp32", ""),
        ("int8", "its accuracy is unknown: there are no labels to score it with"),
    ]


def test_a_target_that_allows_int8_alone_gets_no_fp32() -> None:
    ranked = judged(candidate("fp32", 2.0), candidate("int8", 1.0), target=INT8_ONLY)
    assert ranked == [("int8", ""), ("fp32", "target local-cpu does not allow fp32 (`precisions`)")]


def test_a_target_that_allows_int8_alone_may_end_with_nothing() -> None:
    ranked = judged(candidate("fp32", 1.0), candidate("int8", 2.0), target=INT8_ONLY)
    assert all(why for _, why in ranked)


def test_a_candidate_that_gave_no_numbers_stays_dropped_for_that() -> None:
    ranked = judged(candidate("fp32", 2.0), candidate("int8", 1.0, None, "output holds NaN"))
    assert ranked == [("fp32", ""), ("int8", "output holds NaN")]
    broken = judged(candidate("fp32", 2.0, None, "output holds NaN"))
    assert broken == [("fp32", "output holds NaN")]


# --- the step, on a real model ---


def test_a_target_of_exact_trees_needs_a_model_that_has_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with pytest.raises(SpecInvalid, match=r"`engine: trees`, but the model is not served as exact trees"):
        bench.quantize(bench.datasets(), Target(engine="trees"))


def test_a_target_that_only_the_spec_names_is_told_why_it_would_get_python(tmp_path: Path) -> None:
    runs = PythonModel(environment=PythonEnvironment(python="3.11", machine="x86_64", wheels=()), memory_mb=64)
    fallen = exported(kind="python", python=runs, forms=(Form(name="FP32 graph", dropped="row 3"), Form(name="Python")))
    with pytest.raises(
        SpecInvalid, match=r"can't serve a Python model: .*Served by: Python, because FP32 graph .* row 3"
    ):
        quantize(site(tmp_path), Target(name="own", engine="openvino"), fallen, Datasets(), Data(), Quantization())


class Bench:
    """A site with an exported perceptron, and data on which its own answers are right."""

    def __init__(self, home: Path, *, hidden: int = 256, fragile: bool = False, normed: bool = False) -> None:
        self.home = home
        self.store = ArtifactStore(site(home).artifacts_uri)
        self.file = perceptron(home / "onnx" / "model.onnx", inputs=4, hidden=hidden)
        if fragile:
            _spread_weights(self.file)
        if normed:
            _normalise(self.file)
        self.inputs = np.random.default_rng(1).normal(size=(400, 4)).astype(np.float32)
        running = onnx_models.session(self.file)
        self.labels = onnx_models.answer(running, {"input": self.inputs})["output"].argmax(axis=1)
        example = {"input/input": self.inputs[:4], "output/output": np.zeros((4, 3), np.float32)}
        self.exported: Exported = exported(
            model=self.store.put_tree(self.file.parent),
            reference=self.store.put_bytes(dump_npz(example)),
            graph=graph_digest(self.file),
        )

    @property
    def site(self) -> Site:
        return site(self.home)

    def logged(self, **arrays: Any) -> Any:
        return self.store.put_bytes(dump_npz(arrays))

    def datasets(self, **arrays: Any) -> Datasets:
        validation = self.logged(**arrays or {"input": self.inputs, "label": self.labels})
        return Datasets(validation=validation, validation_name="validation.npz")

    def quantize(self, datasets: Datasets, target: Target = BOTH, data: Data | None = None, **how: Any) -> Candidates:
        """Calibrates by one method, unless `how` says more: entropy takes longer than all the rest."""
        settings = Quantization(**{"methods": ("minmax",)} | how)
        return quantize(self.site, target, self.exported, datasets, data or Data(), settings)


def _spread_weights(file: Path) -> None:
    """One huge weight, of an input that is always tiny, takes the whole range of its layer's 8 bits."""
    model = onnx.load(file)
    (first,) = (tensor for tensor in model.graph.initializer if tensor.name == "w1")
    weights = numpy_helper.to_array(first).copy()
    weights[:, -1] = 3000.0
    first.CopyFrom(numpy_helper.from_array(weights, "w1"))
    (second,) = (tensor for tensor in model.graph.initializer if tensor.name == "w2")
    weights = numpy_helper.to_array(second).copy()
    weights[-1] = 0
    second.CopyFrom(numpy_helper.from_array(weights, "w2"))
    onnx.save(model, file)


def _normalise(file: Path) -> None:
    """A LayerNormalization between the two layers, as transformers have it."""
    model = onnx.load(file)
    size = model.graph.initializer[0].dims[1]
    model.graph.initializer.append(numpy_helper.from_array(np.ones(size, np.float32), "scale"))
    model.graph.node[2].input[0] = "normed"
    model.graph.node.insert(2, helper.make_node("LayerNormalization", ["h2", "scale"], ["normed"], axis=-1))
    onnx.checker.check_model(model)
    onnx.save(model, file)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@IN_THE_SANDBOX
def test_every_precision_is_built_scored_and_timed(bench: Bench) -> None:
    datasets = bench.datasets()
    load_secrets(bench.home)
    before = set(bench.home.iterdir())
    result = bench.quantize(datasets, max_score_drop=1, methods=Quantization().methods)
    assert set(bench.home.iterdir()) == before, "something was left behind in the home"
    assert datasets.validation is not None
    assert (result.target, result.metric, result.validation) == ("local-cpu", "accuracy", datasets.validation.sha256)
    by = {entry.precision: entry for entry in result.candidates}
    assert by["fp32"].score == 1.0
    assert by["int8"].score is not None
    assert by["int8"].score > 0.9
    assert all(entry.latency_ms > 0 and entry.samples == 400 and entry.score_error is not None for entry in by.values())
    assert by["int8"].size_bytes < by["fp32"].size_bytes
    assert by["fp32"].model == bench.exported.model
    assert by["int8"].model is not None
    assert bench.store.holds(by["int8"].model)
    assert by["int8"].method.startswith("static ")
    assert by["int8"].relative_error is not None
    assert 0 < by["int8"].relative_error < 0.2
    assert [(part.name, part.score) for part in by["fp32"].slices] == [(f"label={at}", 1.0) for at in range(3)]
    assert sum(part.samples for part in by["int8"].slices) == 400


@pytest.mark.slow
@IN_THE_SANDBOX
def test_a_sandbox_that_rehearsed_builds_what_a_new_one_builds(bench: Bench) -> None:
    """OpenVINO loads its plugin for the first graph: a rehearsed sandbox has it, confined as it is."""

    def built() -> list[tuple[object, ...]]:
        kept = bench.quantize(bench.datasets(), Target(precisions=("fp32", "int8")), max_score_drop=1).candidates
        return sorted((each.engine, each.precision, each.method, each.score, each.size_bytes) for each in kept)

    new = built()
    workplace.warm(BUILD, bench.home, bench.site.sandbox)
    waiting = workplace._warm[BUILD]
    workplace.expect("pytorch", rehearse=True)
    children = psutil.Process(waiting.sandbox._child.pid).children
    assert until(
        lambda: any("intel_cpu_plugin" in each.path for child in children(recursive=True) for each in maps(child))
    )
    assert built() == new
    assert BUILD not in workplace._warm
    assert {engine for engine, *_ in new} == {"onnxruntime", "openvino"}


def maps(process: psutil.Process) -> list[Any]:
    with suppress(psutil.Error):
        return process.memory_maps()
    return []


@pytest.mark.slow
@IN_THE_SANDBOX
def test_a_large_model_is_built_in_processes_of_its_own_inside_the_sandbox(tmp_path: Path) -> None:
    bench = Bench(tmp_path, hidden=610_000)
    assert model_bytes(bench.file) > 16 << 20
    few = bench.datasets(input=bench.inputs[:30], label=bench.labels[:30])
    target = Target(engine="onnxruntime", precisions=("fp32", "fp16"))
    (fp16,) = [each for each in bench.quantize(few, target).candidates if each.precision == "fp16"]
    assert fp16.score is not None
    assert fp16.build_peak_mb > 0


def test_int8_is_calibrated_on_its_own_data_where_they_were_logged(bench: Bench) -> None:
    both = bench.datasets().model_copy(
        update={"calibration": bench.logged(input=bench.inputs[:50]), "calibration_name": "calibration.npz"}
    )
    assert bench.quantize(both).notes == ()
    assert "calibrated on samples of the validation set" in bench.quantize(bench.datasets()).notes[0]


def test_without_data_there_is_fp32_alone_and_the_reason(bench: Bench) -> None:
    result = bench.quantize(Datasets())
    assert [entry.precision for entry in result.kept] == ["fp32"]
    assert (result.metric, result.candidates[0].score) == (None, None)
    assert any("no validation data were logged" in note for note in result.notes)
    assert any("int8 was not built" in note for note in result.notes)


def test_a_target_that_allows_fp32_alone_builds_nothing_else(bench: Bench) -> None:
    result = bench.quantize(bench.datasets(), Target(engine="onnxruntime", precisions=("fp32",)))
    assert [entry.precision for entry in result.candidates] == ["fp32"]


def test_data_without_labels_score_nothing_and_keep_fp32(bench: Bench) -> None:
    result = bench.quantize(bench.datasets(input=bench.inputs))
    assert [entry.precision for entry in result.kept] == ["fp32"]
    assert any("has no 'label'" in note for note in result.notes)
    (int8,) = (entry for entry in result.candidates if (entry.engine, entry.precision) == ("onnxruntime", "int8"))
    assert (int8.model, int8.build_seconds) == (None, 0)  # it could not be kept, so it was not built
    assert "no labels" in int8.dropped


def test_calibration_needs_two_samples(bench: Bench) -> None:
    with pytest.raises(DataInvalid, match="fewer than 2 samples"):
        bench.quantize(bench.datasets(input=bench.inputs[:1], label=bench.labels[:1]))


def test_data_that_do_not_fit_are_refused(bench: Bench) -> None:
    with pytest.raises(DataInvalid, match="has shape"):
        bench.quantize(bench.datasets(input=bench.inputs[:, :3], label=bench.labels))


def endless_bench(home: Path) -> Bench:
    """A model that answers the batches of the parity check, and loops for ever on those of a score."""
    bench = Bench(home)
    endless(bench.file)
    bench.exported = bench.exported.model_copy(update={"model": bench.store.put_tree(bench.file.parent)})
    return bench


@IN_THE_SANDBOX
@pytest.mark.slow
def test_a_graph_that_never_ends_is_stopped_at_its_limit(tmp_path: Path) -> None:
    bench = endless_bench(tmp_path)
    with pytest.raises(SandboxLimit, match="building and scoring the precisions took over 5 s") as error:
        bench.quantize(bench.datasets(), timeout_s=5)
    assert "Raise `quantization.timeout_s` in the spec" in error.value.do
    assert psutil.Process().children(recursive=True) == []


@IN_THE_SANDBOX
def test_a_graph_that_never_ends_is_stopped_at_once_at_the_stage_s_deadline(tmp_path: Path) -> None:
    bench = endless_bench(tmp_path)
    before = time.monotonic()
    with pytest.raises(Interrupted) as interruption, deadline("quantize", 1):
        bench.quantize(bench.datasets())
    assert isinstance(interruption.value.error, DeadlineExceeded)
    assert time.monotonic() - before < 600  # and not at the limit of an hour
    assert psutil.Process().children(recursive=True) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["artifacts", "onnx", "secrets.json"]


# --- int8 itself ---


def built(bench: Bench, to: Path, **how: Any) -> dict[str, Path]:
    """The bench's model with every method of calibration, on the default target."""
    settings = Quantization(**how)
    prepared = prepare(bench.file, to / "prepared.onnx")
    plan = scheme(bench.file, Target(), settings)
    files = ranges(prepared, {"input": bench.inputs}, plan.op_types, settings, to)
    for method in files:
        (to / method).mkdir()
    return {method: quantize_static(prepared, at, plan, to / method / "model.onnx") for method, at in files.items()}


def test_each_way_of_calibration_gives_a_model_close_to_the_original(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "q").mkdir()
    for file in built(bench, tmp_path / "q").values():
        got = onnx_models.answer(onnx_models.session(file), {"input": bench.inputs})["output"]
        assert (got.argmax(axis=1) == bench.labels).mean() > 0.9
    assert sorted(path.name for path in (tmp_path / "q").iterdir()) == [
        "entropy",
        "entropy.json",
        "minmax",
        "minmax.json",
        "percentile",
        "percentile.json",
        "prepared.onnx",
        "weights.bin",
    ]


@pytest.mark.slow
def test_looking_at_few_tensors_at_a_time_finds_the_same(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ranges_and_limits(folder: Path) -> tuple[dict[str, float], dict[str, float]]:
        folder.mkdir()
        prepared, plan = prepare(bench.file, folder / "prepared.onnx"), scheme(bench.file, Target(), Quantization())
        file = ranges(prepared, {"input": bench.inputs}, plan.op_types, Quantization(), folder)["minmax"]
        (folder / "to").mkdir()
        rough = quantize_static(prepared, file, plan, folder / "to" / "model.onnx")
        noise = sensitivity.layer_noise(prepared, rough, layers(prepared), {"input": bench.inputs[:4]})
        limits = json.loads(file.read_text())["data"]
        return {f"{name} {end}": limits[name][end]["data"] for name in limits for end in ("lowest", "highest")}, noise

    together = ranges_and_limits(tmp_path / "together")
    monkeypatch.setattr(onnx_models, "observed_bytes", lambda _: 1)
    apart = ranges_and_limits(tmp_path / "apart")
    assert apart[0] == pytest.approx(together[0])
    assert apart[1] == pytest.approx(together[1], rel=1e-3)
    assert apart[1]
    assert all(noise > 0 for noise in apart[1].values())


def test_ranges_are_those_that_onnxruntime_s_own_calibration_finds(bench: Bench, tmp_path: Path) -> None:
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import create_calibrator

    prepared = prepare(bench.file, tmp_path / "prepared.onnx")
    ours = json.loads(
        ranges(prepared, {"input": bench.inputs}, ("MatMul",), Quantization(), tmp_path)["minmax"].read_text()
    )
    calibrator = create_calibrator(prepared, ["MatMul"], str(tmp_path / "augmented.onnx"), CalibrationMethod.MinMax)
    calibrator.collect_data(iter_reader([{"input": bench.inputs}]))
    theirs = calibrator.compute_data()
    for name in theirs.keys():  # noqa: SIM118 - no mapping
        low, high = theirs[name].range_value
        assert ours["data"][name]["lowest"]["data"] == pytest.approx(np.asarray(low).item())
        assert ours["data"][name]["highest"]["data"] == pytest.approx(np.asarray(high).item())


def iter_reader(batches: list[Any]) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Any:
            return batches.pop(0) if batches else None

    return Reader()


def test_a_model_that_cannot_be_quantized_says_why(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(QuantizeFailed, match="int8 can't be built") as error:
        prepare(tmp_path / "model.onnx", tmp_path / "prepared.onnx")
    assert "precisions" in error.value.do


def test_schemes_follow_the_target(bench: Bench) -> None:
    def of(**target: Any) -> Any:
        return scheme(bench.file, Target(**target), Quantization())

    assert of(accelerator="cpu-vnni").reduce_range is False
    assert of(accelerator="cpu-avx2").reduce_range is True
    assert of(accelerator="cpu-arm64").reduce_range is False
    assert of(accelerator="nvidia", server="nvidia").symmetric is True


@pytest.mark.parametrize("blank", [1e-30, 1e-6, 0.01, 1.0])
def test_a_nearly_blank_first_sample_makes_no_endless_histogram(blank: float) -> None:
    from onnxruntime.quantization.calibrate import HistogramCollector

    random = np.random.default_rng(0)
    collector = HistogramCollector("entropy", False, 128, 128, 99.999, "same")
    samples = [random.normal(size=20_000).astype(np.float32) * scale for scale in (blank, 1.0, 1.0)]
    for sample in samples:
        quantization._count(collector, {"x": sample}, 1024)
    counts, edges, lowest, highest, bound = collector.histogram_dict["x"]
    assert len(counts) <= 1100
    assert counts.sum() == 60_000
    assert (lowest, highest) == (min(map(np.min, samples)), max(map(np.max, samples)))
    assert -edges[0] == edges[-1] == pytest.approx(bound)
    assert bound >= highest
    low, high = collector.compute_entropy()["x"][:2]
    assert low < -2 < 2 < high


# --- layers left in float ---


@pytest.mark.parametrize("least", [1, 2, 3, 5, 8, 13, 20])
def test_the_fewest_layers_are_found_in_few_tries(least: int) -> None:
    tried: list[int] = []

    def fits(count: int) -> bool:
        tried.append(count)
        return count >= least

    assert sensitivity.smallest(20, fits) == least
    assert len(tried) == len(set(tried)) <= 9
    assert sensitivity.smallest(20, lambda _: False) is None
    assert sensitivity.smallest(1, lambda _: True) == 1


def test_a_layer_whose_output_needs_more_than_8_bits_is_left_in_float(tmp_path: Path) -> None:
    """One layer's weights span six decades in one channel: quantized, its small inputs vanish."""
    bench = Bench(tmp_path, fragile=True)
    how: Any = {"max_score_drop": 0.02, "per_channel": False, "max_float_share": 1.0}
    by_precision = {entry.precision: entry for entry in bench.quantize(bench.datasets(), **how).candidates}
    assert by_precision["int8"].float_layers != ()
    assert by_precision["int8"].score is not None
    assert by_precision["int8"].score >= 0.98
    name = f"layers of {graph_digest(bench.file)}"
    with tuning_cache(bench.site, name, tmp_path / "learned") as learned:
        (kept,) = learned.iterdir()
        noise = json.loads(kept.read_text())
        assert list(by_precision["int8"].float_layers) == noise["layers"][: len(by_precision["int8"].float_layers)]
        kept.write_text(json.dumps(noise | {"layers": noise["layers"][::-1]}))
    again = {entry.precision: entry for entry in bench.quantize(bench.datasets(), **how).candidates}
    assert again["int8"].float_layers[0] == noise["layers"][-1]  # what is kept is used, not measured again


@pytest.mark.parametrize("gemm", [False, True])
def test_a_dynamic_rung_leaves_its_weakest_layers_in_float_too(tmp_path: Path, *, gemm: bool) -> None:
    bench = Bench(tmp_path, fragile=True, normed=True)
    if gemm:
        _with_gemm(bench)
    how: Any = {"max_score_drop": 0.02, "per_channel": False, "max_float_share": 1.0}
    by_method = {entry.method.split(",")[0]: entry for entry in bench.quantize(bench.datasets(), **how).candidates}
    dynamic = by_method["dynamic"]
    assert dynamic.float_layers != ()
    assert dynamic.score is not None
    assert dynamic.score >= 0.98
    assert dynamic.model is not None
    graph = onnx.load(bench.store.fetch(dynamic.model, tmp_path / "fetched") / "model.onnx").graph
    assert sum(node.op_type == "MatMulInteger" for node in graph.node) == 2 - len(dynamic.float_layers)


def _with_gemm(bench: Bench) -> None:
    """Its products written as Gemm: the quantizer takes those apart first, and names them anew."""
    model = onnx.load(bench.file)
    for node in model.graph.node:
        if node.op_type == "MatMul":
            node.op_type = "Gemm"
    onnx.save(model, bench.file)
    bench.exported = bench.exported.model_copy(update={"model": bench.store.put_tree(bench.file.parent)})


def test_a_model_without_layers_to_quantize_is_told_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    graph = helper.make_graph(
        [helper.make_node("Split", ["input"], ["output", "rest"], axis=1, num_outputs=2)],
        "trees",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 2])],
    )
    save(graph, bench.file)
    bench.exported = bench.exported.model_copy(update={"model": bench.store.put_tree(bench.file.parent)})
    by_precision = {entry.precision: entry for entry in bench.quantize(bench.datasets()).candidates}
    assert by_precision["int8"].model is None
    assert "the model has no convolution and no matrix product" in by_precision["int8"].dropped


def test_the_same_graph_with_other_weights_has_the_same_digest(tmp_path: Path) -> None:
    first, second = perceptron(tmp_path / "a.onnx", seed=1), perceptron(tmp_path / "b.onnx", seed=2)
    assert graph_digest(first) == graph_digest(second)
    assert graph_digest(first) != graph_digest(perceptron(tmp_path / "c.onnx", hidden=33))


# --- the other rungs ---


def test_half_precision_keeps_its_inputs_and_outputs_in_fp32(bench: Bench, tmp_path: Path) -> None:
    for kind in ("fp16", "bf16"):
        half = onnx.load(to_half(bench.file, kind, tmp_path / f"{kind}.onnx"))
        assert {v.type.tensor_type.elem_type for v in (*half.graph.input, *half.graph.output)} == {TensorProto.FLOAT}
        datatype = TensorProto.FLOAT16 if kind == "fp16" else TensorProto.BFLOAT16
        assert {tensor.data_type for tensor in half.graph.initializer} == {datatype}
        onnx.checker.check_model(half)
    got = onnx_models.answer(onnx_models.session(tmp_path / "fp16.onnx"), {"input": bench.inputs})["output"]
    assert (got.argmax(axis=1) == bench.labels).mean() > 0.99


def test_a_rung_that_this_hardware_has_not_is_recorded_with_the_reason(bench: Bench) -> None:
    result = bench.quantize(bench.datasets(), Target(engine="onnxruntime", precisions=("fp32", "fp16", "bf16")))
    by = {entry.precision: entry for entry in result.candidates}
    assert by["fp32"].dropped == ""
    assert by["fp16"].model is not None
    assert by["bf16"].model is None
    assert "no BF16 kernels" in by["bf16"].dropped


def test_dynamic_int8_is_tried_where_attention_or_recurrence_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path, normed=True)
    assert has_attention(bench.file)
    int8 = [
        entry for entry in bench.quantize(bench.datasets(), max_score_drop=1).candidates if entry.precision == "int8"
    ]
    assert sorted(entry.method.split()[0].rstrip(",") for entry in int8) == ["dynamic", "static"]
    assert sum(not entry.dropped for entry in int8) <= 1


def test_dynamic_int8_takes_a_gemm_whose_weights_are_transposed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(3, 8)), "b": np.zeros(3), "scale": np.ones(8)}
    graph = helper.make_graph(
        [
            helper.make_node("LayerNormalization", ["input", "scale"], ["normed"], axis=-1),
            helper.make_node("Gemm", ["normed", "w", "b"], ["output"], transB=1),
        ],
        "head",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
        value_info=[helper.make_tensor_value_info("w", TensorProto.FLOAT, [3, 8])],
    )
    file = save(graph, tmp_path / "model.onnx")
    quantized = quantize_dynamic(
        prepare(file, tmp_path / "prepared.onnx"), scheme(file, Target(), Quantization()), tmp_path / "dynamic.onnx"
    )
    inputs = {"input": rng.normal(size=(5, 8)).astype(np.float32)}
    expected, got = (onnx_models.answer(onnx_models.session(path), inputs)["output"] for path in (file, quantized))
    np.testing.assert_allclose(got, expected, atol=0.1)


@pytest.mark.parametrize(
    ("jobs", "model_mb", "free_mb", "cores", "at_once"),
    [(3, 100, 8000, 8, 3), (3, 100, 8000, 2, 2), (3, 1000, 8000, 8, 2), (3, 9000, 8000, 8, 1), (1, 1, 8000, 8, 1)],
)
def test_rungs_are_built_side_by_side_as_memory_allows(
    jobs: int, model_mb: int, free_mb: int, cores: int, at_once: int
) -> None:
    assert rungs.parallel_builds(jobs, model_mb << 20, free_mb << 20, cores) == at_once


# --- budgets ---


def evaluation(score: float | None = 0.9, **changes: Any) -> Evaluation:
    slices = tuple(Slice(name=n, score=s, error=0.0, samples=k) for n, s, k in changes.pop("slices", ()))
    return Evaluation(score=score, samples=500, slices=slices, **changes)


@pytest.mark.parametrize(
    ("it", "why"),
    [
        (evaluation(), ""),
        (evaluation(0.895), ""),
        (evaluation(0.85), "accuracy 0.8500 is 0.0500 worse than fp32's 0.9000, the budget is 0.01"),
        (evaluation(slices=[("label=1", 0.96, 100)]), ""),
        (
            evaluation(slices=[("label=1", 0.8, 100), ("label=2", 0.0, 5)]),
            "label=1 (100 samples) scores 0.8000, 0.2000 worse than fp32's, the budget of a slice is 0.05",
        ),
        (evaluation(slices=[("label=2", 0.0, 5)]), ""),
        (evaluation(relative_error=1.5), "its outputs are off by 1.5 of fp32's, the limit is 1"),
        (evaluation(relative_error=float("nan")), "its outputs are off by nan of fp32's, the limit is 1"),
        (evaluation(problem="output holds NaN"), "output holds NaN"),
    ],
)
def test_a_rung_is_held_against_fp32_overall_and_per_slice(it: Evaluation, why: str) -> None:
    base = evaluation(slices=[("label=1", 1.0, 100), ("label=2", 1.0, 5)])
    assert over_budget(base, it, "accuracy", Quantization()) == why


def test_a_faster_form_of_the_same_precision_takes_its_place() -> None:
    static = candidate("int8", 1.0).model_copy(update={"method": "static"})
    dynamic = candidate("int8", 0.5).model_copy(update={"method": "dynamic"})
    ranked = selection.judged((candidate("fp32", 2.0), static, dynamic), BOTH, "accuracy", Quantization())
    assert [(entry.method, entry.dropped) for entry in ranked] == [
        ("dynamic", ""),
        ("", ""),
        ("static", "dynamic is faster: 0.500 ms"),
    ]


def test_scores_are_split_by_named_columns(bench: Bench) -> None:
    site_of = np.where(np.arange(400) % 2, "north", "south")
    result = bench.quantize(
        bench.datasets(input=bench.inputs, label=bench.labels, plant=site_of), data=Data(slices=("plant",))
    )
    names = {part.name: part.samples for part in result.candidates[0].slices}
    assert (names["plant=north"], names["plant=south"]) == (200, 200)
    with pytest.raises(DataInvalid, match=r"which `data\.slices` names"):
        bench.quantize(bench.datasets(), data=Data(slices=("plant",)))


def test_classes_are_scored_by_the_metric_that_the_record_names(bench: Bench) -> None:
    """Under F1 the slices by class are each class's own F1: their mean is the score, as macro F1 is defined."""
    result = bench.quantize(bench.datasets(), data=Data(metric="f1"))
    top = result.candidates[0]
    assert result.metric == "f1"
    assert np.mean([part.score for part in top.slices]) == pytest.approx(top.score)
    assert all(part.name.startswith("label=") for part in top.slices)


def test_a_column_with_more_values_than_a_record_has_room_for_is_not_one_to_slice_by(bench: Bench) -> None:
    columns = {"serial": np.arange(400), "plant": np.repeat(["north", "south"], 200), "text": np.full(400, "x" * 50)}
    result = bench.quantize(
        bench.datasets(input=bench.inputs, label=bench.labels, **columns), data=Data(slices=tuple(columns))
    )
    slices = result.candidates[0].slices
    assert {part.name.split("=")[0] for part in slices} == {"plant", "label"}
    assert all(0 <= part.error < 0.1 for part in slices)


# --- what can't be served there ---


def test_a_machine_that_is_not_the_target_is_a_temporary_failure(bench: Bench) -> None:
    other = Target(name="arm", accelerator="cpu-arm64")
    with pytest.raises(Temporary, match="target arm is not this machine: it needs cpu-arm64"):
        bench.quantize(bench.datasets(), other)


def test_an_opset_that_the_target_s_onnxruntime_does_not_know_is_refused_before_building(bench: Bench) -> None:
    old = Target(versions=Versions(onnxruntime="1.16"))
    with pytest.raises(ExportFailed, match=r"the model has opset 20; .* ONNX Runtime 1\.16, .* up to 19") as error:
        bench.quantize(bench.datasets(), old)
    assert "export.opset: 19" in error.value.do


def written(to: Path, *, opset: int = 20, ir: int = 8, ml: int = 0) -> Path:
    """A model of one operator in a file of the given versions; with `ml` it imports that domain too."""
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 4]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    imports = [onnx.helper.make_opsetid("", opset)] + ([onnx.helper.make_opsetid("ai.onnx.ml", ml)] if ml else [])
    to.write_bytes(onnx.helper.make_model(graph, ir_version=ir, opset_imports=imports).SerializeToString())
    return to


def test_what_the_bundled_server_s_onnxruntime_loads_is_let_through_and_nothing_newer(tmp_path: Path) -> None:
    """The same ONNX Runtime is installed here, so the table is held against the real one."""
    assert bundled_onnxruntime() == onnxruntime.__version__
    supported = support_of(bundled_onnxruntime())
    assert supported is not None
    newest = written(tmp_path / "newest.onnx", opset=supported.opset, ir=supported.ir, ml=supported.ml_opset)
    require_operators(newest, Target())
    onnx_models.session(newest)
    for name, newer in {"opset": supported.opset + 1, "ir": supported.ir + 1}.items():
        file = written(tmp_path / f"{name}.onnx", **{name: newer})
        with pytest.raises(ExportFailed, match=f"target local-cpu runs ONNX Runtime {onnxruntime.__version__}"):
            require_operators(file, Target())
        with pytest.raises(ExportFailed, match="does not load the model"):
            onnx_models.session(file)


@pytest.mark.parametrize(
    ("version", "model", "message"),
    [
        ("1.22.1", {"opset": 23}, "the model has opset 23; .* opsets up to 22"),
        ("1.22", {"ir": 11}, "IR version 11; .* those up to 10"),
        ("1.23.2", {"ir": 12}, "IR version 12; .* those up to 11"),
        ("1.16", {"opset": 19, "ml": 5}, "opset 5 of ai.onnx.ml; .* those up to 3"),
        ("1.23.2", {"opset": 23, "ir": 11, "ml": 5}, ""),
        ("1.24", {"opset": 25, "ir": 13}, ""),
        ("", {"opset": 26, "ir": 13}, ""),
        ("2.0", {"opset": 26, "ir": 14}, ""),
        ("1.5", {"opset": 20}, ""),
    ],
)
def test_an_older_onnxruntime_of_a_target_is_known_by_its_version(
    tmp_path: Path, version: str, model: Any, message: str
) -> None:
    """The limits are those measured with the real releases; of what is not in the table nothing is claimed."""
    old = Target(name="old", server="nvidia", versions=Versions(onnxruntime=version))
    file = written(tmp_path / "model.onnx", **model)
    if not message:
        require_operators(file, old)
        return
    with pytest.raises(ExportFailed, match=f"{message}") as error:
        require_operators(file, old)
    assert f"target old runs ONNX Runtime {version}" in error.value.what
    assert "serve it with a newer ONNX Runtime" in error.value.do


def test_an_operator_of_an_unknown_domain_is_refused_before_building(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    model = onnx.load(bench.file)
    model.graph.node[0].domain = "my.company"
    model.opset_import.append(onnx.helper.make_opsetid("my.company", 1))
    onnx.save(model, bench.file)
    with pytest.raises(ExportFailed, match=r"operator my\.company::MatMul is in no ONNX Runtime"):
        require_operators(bench.file, Target())


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.ones((50, 3), np.float32), "has shape"),
        (np.ones((50, 4, 1), np.float32), "has shape"),
        (np.array([["a", "b", "c", "d"]] * 50), "has dtype"),
        (np.full((50, 4), np.nan, np.float32), "fewer than 2 samples"),
        (np.ones((0, 4), np.float32), "has no samples"),
        (np.ones((1, 4), np.float32), "fewer than 2 samples"),
    ],
)
def test_calibration_data_that_do_not_fit_are_refused(bench: Bench, samples: Any, message: str) -> None:
    both = bench.datasets().model_copy(
        update={"calibration": bench.logged(input=samples), "calibration_name": "calibration.npz"}
    )
    with pytest.raises(DataInvalid, match=message):
        bench.quantize(both)


# --- samples ---


@pytest.mark.parametrize(
    ("there", "count", "picked"),
    [(10, 3, [0, 4, 9]), (3, 10, [0, 1, 2]), (5, 5, [0, 1, 2, 3, 4]), (1, 4, [0]), (10, 1, [0])],
)
def test_samples_are_picked_from_all_over_the_set(there: int, count: int, picked: list[int]) -> None:
    got = pick({"x": np.arange(there), "y": np.arange(there) * 2}, count)
    assert (got["x"].tolist(), got["y"].tolist()) == (picked, [2 * at for at in picked])
