from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import onnx_models
from runtime.artifacts import ArtifactStore
from runtime.errors import DataInvalid, QuantizeFailed
from runtime.quantization import pick, quantize_int8
from runtime.records import Candidate, Candidates, Datasets, Exported, Site
from runtime.spec import Data, Quantization, Target
from runtime.tensors import dump_npz
from steps.quantize import _judged, quantize

from .examples import artifact, exported, perceptron, site

BOTH, INT8_ONLY = Target(), Target(precisions=("int8",))


# --- the rules ---


def candidate(precision: Any, latency_ms: float, score: float | None = 0.95, dropped: str = "") -> Candidate:
    return Candidate(precision=precision, model=artifact(), score=score, latency_ms=latency_ms, dropped=dropped)


def judged(*candidates: Candidate, target: Target = BOTH, metric: Any = "accuracy", drop: float = 0.01) -> Any:
    found = _judged(candidates, target, Data(metric=metric), drop)
    return [(one.precision, one.dropped) for one in found]


def test_each_part_of_the_data_has_a_score_of_its_own(tmp_path: Path) -> None:
    store = ArtifactStore(site(tmp_path).artifacts_uri)
    model = perceptron(tmp_path / "model" / "model.onnx")
    inputs = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    answers = onnx_models.answer(onnx_models.session(model), {"input": inputs})["output"].argmax(axis=1)
    labels = np.where(np.arange(40) < 30, answers, (answers + 1) % 3)  # the last ten are all wrong
    parts = np.where(np.arange(40) < 30, "north", "south")
    body = dump_npz({"input": inputs, "label": labels, "region": parts})
    given = exported(
        model=store.put_tree(model.parent),
        reference=store.put_bytes(dump_npz({"input/input": inputs[:8]})),
    )
    datasets = Datasets(validation=store.put_bytes(body), validation_name="validation.npz")

    def scored(data: Data) -> Candidates:
        return quantize(site(tmp_path), Target(precisions=("fp32",)), given, datasets, data, Quantization())

    (found,) = scored(Data(slice="region")).candidates
    assert [(one.name, one.score, one.samples) for one in found.slices] == [("north", 1.0, 30), ("south", 0.0, 10)]
    assert scored(Data()).candidates[0].slices == ()
    with pytest.raises(DataInvalid, match=r"no array or column 'colour' for 40 samples.*data\.slice"):
        scored(Data(slice="colour"))


def test_a_faster_candidate_that_is_as_good_comes_first() -> None:
    assert judged(candidate("fp32", 2.0), candidate("int8", 1.0)) == [("int8", ""), ("fp32", "")]


def test_a_slower_candidate_is_dropped_with_both_times() -> None:
    (kept, (precision, why)) = judged(candidate("fp32", 1.0), candidate("int8", 1.0))
    assert (kept, precision) == (("fp32", ""), "int8")
    assert why == "1.000 ms a batch of 8 is not faster than fp32's 1.000 ms"


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
    found = judged(candidate("fp32", 2.0, before), candidate("int8", 1.0, now), metric=metric)
    why = dict(found)["int8"]
    assert (why == "") is kept
    assert kept or "the budget is 0.01" in why


@pytest.mark.parametrize(("before", "now"), [(None, 0.9), (0.9, None), (None, None)])
def test_accuracy_that_nobody_knows_is_not_given_away(before: float | None, now: float | None) -> None:
    found = judged(candidate("fp32", 2.0, before), candidate("int8", 1.0, now))
    assert found == [
        ("fp32", ""),
        ("int8", "its accuracy is unknown: there are no labels to score it with"),
    ]


def test_a_target_that_allows_int8_alone_gets_no_fp32() -> None:
    found = judged(candidate("fp32", 2.0), candidate("int8", 1.0), target=INT8_ONLY)
    assert found == [("int8", ""), ("fp32", "target local-cpu does not allow fp32")]


def test_a_target_that_allows_int8_alone_may_end_with_nothing() -> None:
    found = judged(candidate("fp32", 1.0), candidate("int8", 2.0), target=INT8_ONLY)
    assert all(why for _, why in found)


def test_a_candidate_that_gave_no_numbers_stays_dropped_for_that() -> None:
    found = judged(candidate("fp32", 2.0), candidate("int8", 1.0, None, "output holds NaN"))
    assert found == [("fp32", ""), ("int8", "output holds NaN")]
    broken = judged(candidate("fp32", 2.0, None, "output holds NaN"))
    assert broken == [("fp32", "output holds NaN")]


# --- the step, on a real model ---


class Bench:
    """A site with an exported perceptron, and data on which its own answers are right."""

    def __init__(self, home: Path, *, hidden: int = 256) -> None:
        self.home = home
        self.store = ArtifactStore(site(home).artifacts_uri)
        self.file = perceptron(home / "onnx" / "model.onnx", inputs=4, hidden=hidden)
        self.inputs = np.random.default_rng(1).normal(size=(400, 4)).astype(np.float32)
        running = onnx_models.session(self.file)
        self.labels = onnx_models.answer(running, {"input": self.inputs})["output"].argmax(axis=1)
        example = {"input/input": self.inputs[:4], "output/output": np.zeros((4, 3), np.float32)}
        self.exported: Exported = exported(
            model=self.store.put_tree(self.file.parent), reference=self.store.put_bytes(dump_npz(example))
        )

    @property
    def site(self) -> Site:
        return site(self.home)

    def logged(self, **arrays: Any) -> Any:
        return self.store.put_bytes(dump_npz(arrays))

    def datasets(self, **arrays: Any) -> Datasets:
        validation = self.logged(**arrays or {"input": self.inputs, "label": self.labels})
        return Datasets(validation=validation, validation_name="validation.npz")

    def quantize(self, datasets: Datasets, target: Target = BOTH, **how: Any) -> Candidates:
        return quantize(self.site, target, self.exported, datasets, Data(), Quantization(**how))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_every_precision_is_built_scored_and_timed(bench: Bench) -> None:
    datasets = bench.datasets()
    found = bench.quantize(datasets, max_score_drop=1)
    assert datasets.validation is not None
    assert (found.target, found.metric, found.validation) == ("local-cpu", "accuracy", datasets.validation.sha256)
    by = {one.precision: one for one in found.candidates}
    assert by["fp32"].score == 1.0
    assert by["int8"].score is not None
    assert by["int8"].score > 0.9
    assert all(one.latency_ms > 0 and one.samples == 400 and one.score_error is not None for one in by.values())
    assert by["int8"].size_bytes < by["fp32"].size_bytes
    assert by["fp32"].model == bench.exported.model
    assert bench.store.holds(by["int8"].model)


def test_int8_is_calibrated_on_its_own_data_where_they_were_logged(bench: Bench) -> None:
    both = bench.datasets().model_copy(
        update={"calibration": bench.logged(input=bench.inputs[:50]), "calibration_name": "calibration.npz"}
    )
    assert bench.quantize(both).notes == ()
    assert "calibrated on samples of the validation set" in bench.quantize(bench.datasets()).notes[0]


def test_without_data_there_is_fp32_alone_and_the_reason(bench: Bench) -> None:
    found = bench.quantize(Datasets())
    assert [one.precision for one in found.kept] == ["fp32"]
    assert (found.metric, found.candidates[0].score) == (None, None)
    assert any("no validation data were logged" in note for note in found.notes)
    assert any("int8 was not built" in note for note in found.notes)


def test_a_target_that_allows_fp32_alone_builds_nothing_else(bench: Bench) -> None:
    found = bench.quantize(bench.datasets(), Target(precisions=("fp32",)))
    assert [one.precision for one in found.candidates] == ["fp32"]


def test_data_without_labels_score_nothing_and_keep_fp32(bench: Bench) -> None:
    found = bench.quantize(bench.datasets(input=bench.inputs))
    assert [one.precision for one in found.kept] == ["fp32"]
    assert any("has no 'label'" in note for note in found.notes)


def test_calibration_needs_two_samples(bench: Bench) -> None:
    with pytest.raises(DataInvalid, match="fewer than 2 samples"):
        bench.quantize(bench.datasets(input=bench.inputs[:1], label=bench.labels[:1]))


def test_data_that_do_not_fit_are_refused(bench: Bench) -> None:
    with pytest.raises(DataInvalid, match="has shape"):
        bench.quantize(bench.datasets(input=bench.inputs[:, :3], label=bench.labels))


def test_nothing_is_left_behind_in_the_home(bench: Bench) -> None:
    before = set(bench.home.iterdir())
    bench.quantize(bench.datasets())
    assert set(bench.home.iterdir()) == before


# --- int8 itself ---


@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile"])
def test_each_way_of_calibration_gives_a_model_close_to_the_original(bench: Bench, method: Any, tmp_path: Path) -> None:
    out = quantize_int8(bench.file, {"input": bench.inputs}, Quantization(method=method), tmp_path / "int8.onnx")
    got = onnx_models.answer(onnx_models.session(out), {"input": bench.inputs})["output"]
    assert (got.argmax(axis=1) == bench.labels).mean() > 0.9
    assert sorted(path.name for path in tmp_path.glob("*.onnx")) == ["int8.onnx"]


def test_a_model_that_cannot_be_quantized_says_why(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(QuantizeFailed, match="int8 can't be built") as error:
        quantize_int8(
            tmp_path / "model.onnx", {"input": np.zeros((4, 4), np.float32)}, Quantization(), tmp_path / "int8.onnx"
        )
    assert "precisions" in error.value.do
    assert not (tmp_path / "prepared.onnx").exists()


@pytest.mark.parametrize(
    ("there", "wanted", "picked"),
    [(10, 3, [0, 4, 9]), (3, 10, [0, 1, 2]), (5, 5, [0, 1, 2, 3, 4]), (1, 4, [0]), (10, 1, [0])],
)
def test_samples_are_picked_from_all_over_the_set(there: int, wanted: int, picked: list[int]) -> None:
    got = pick({"x": np.arange(there), "y": np.arange(there) * 2}, wanted)
    assert (got["x"].tolist(), got["y"].tolist()) == (picked, [2 * at for at in picked])
