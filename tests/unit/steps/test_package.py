from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.base.errors import QuantizeFailed, SpecInvalid
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import dump_npz, load_npz
from shiplift.runtime.precision.tensorrt_plans import PLAN, STAMP, Stamp
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.model import ModelVersion, ParityCase
from shiplift.runtime.records.precision import Candidate, Candidates, Slice
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.serving import ServerNeeds
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.verdict import Outcome, Packages
from shiplift.runtime.search.space import batches, first_config
from shiplift.runtime.serving.triton.config import parse
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.spec.measurement import SearchSpace
from shiplift.runtime.spec.model import Quality
from shiplift.runtime.spec.serving_settings import HostPolicy, Latest, Priorities, Queue, RateLimiter, Serving
from shiplift.runtime.spec.target import Target, Versions
from shiplift.runtime.store.artifacts import ArtifactStore
from tests.packages import packaged
from tests.unit import examples
from tests.unit.examples import artifact, case, config, exported, perceptron, signature, site, tensor

MODEL = ModelVersion(name="My Digits", version=7, digest="d", flavor="onnx", files=artifact(kind="tree"))


def candidates(
    model: Any, *scores: float | None, dropped: str = "", samples: int = 500, engine: Any = "onnxruntime"
) -> Candidates:
    precisions: Any = ("fp32", "int8")
    return Candidates(
        target="local-cpu",
        metric="accuracy",
        validation="v" * 64,
        candidates=tuple(
            Candidate(engine=engine, precision=precision, model=model, score=score, samples=samples, dropped=dropped)
            for precision, score in zip(precisions, scores, strict=False)
        ),
    )


class Bench:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.store = ArtifactStore(site(home).artifacts_uri)
        self.file = perceptron(home / "onnx" / "model.onnx")
        self.inputs = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
        self.model = self.store.put_tree(self.file.parent)

    def exported(self, *parity: ParityCase) -> Exported:
        reference = self.store.put_bytes(dump_npz({"input/input": self.inputs}))
        return exported(*parity, model=self.model, reference=reference)

    def package(self, offered: Candidates | None = None, *parity: ParityCase, **changes: Any) -> Packages:
        target, made = changes.pop("target", Target()), changes.pop("exported", None) or self.exported(*parity)
        offered = offered or candidates(self.model, 0.95, 0.94)
        return packaged(site(self.home), target, changes.pop("model_version", MODEL), made, offered, **changes)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_each_kept_candidate_becomes_a_package_in_its_order(bench: Bench) -> None:
    offered = candidates(bench.model, 0.95, 0.94)
    offered = offered.model_copy(update={"candidates": offered.candidates[::-1]})
    result = bench.package(offered)
    assert [(entry.precision, entry.score) for entry in result.packages] == [("int8", 0.94), ("fp32", 0.95)]
    assert {(entry.model, entry.version, entry.metric, entry.validation) for entry in result.packages} == {
        ("My Digits", 7, "accuracy", "v" * 64)
    }
    assert result.objection() is None


@pytest.mark.usefixtures("confined")
def test_a_package_is_a_repository_that_proves_itself(bench: Bench, tmp_path: Path) -> None:
    first = bench.package().packages[0]
    tree = bench.store.fetch(first.repository, tmp_path / "tree")
    (name,) = (path.name for path in tree.iterdir() if path.is_dir())
    assert name.startswith("my-digits-")
    config_ = parse((tree / name / "config.pbtxt").read_text())
    assert (config_.name, list(config_.version_policy.specific.versions)) == (name, [7])
    assert (tree / name / "7" / "model.onnx").read_bytes() == bench.file.read_bytes()
    golden = load_npz(tree / GOLDEN)
    assert len(golden["input/input"]) == 8
    running = onnx_models.session(tree / name / "7" / "model.onnx")
    for at in range(8):
        got = onnx_models.answer(running, {"input": golden["input/input"][at : at + 1]})["output"]
        np.testing.assert_allclose(got, golden["output/output"][at : at + 1], rtol=1e-6)


def test_a_package_carries_the_slices_that_rules_are_about(bench: Bench) -> None:
    parts = (Slice(name="label=1", score=0.9, error=0.02, samples=200),)
    offered = candidates(bench.model, 0.95)
    sliced = tuple(entry.model_copy(update={"slices": parts}) for entry in offered.candidates)
    (built,) = bench.package(offered.model_copy(update={"candidates": sliced})).packages
    assert built.slices == parts


def test_a_package_says_which_nodes_and_which_server_it_needs(bench: Bench) -> None:
    target = Target(server="nvidia", image="example.org/triton:1", node_selector={"disk": "fast"})
    serving = Serving(host_policy=HostPolicy(cpu_cores="0-3"), rate_limiter=RateLimiter())
    built = bench.package(target=target, serving=serving).packages[0]
    assert (built.server, built.nodes) == ("nvidia", target.nodes)
    assert built.needs == ServerNeeds(rate_limiter=True, flags=("--host-policy=numa_any_cores_0-3,cpu-cores=0-3",))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"versions": Versions(tensorrt="10.13")}, "the plan was built by TensorRT 10.9.0.34, but 10.13 would load it"),
        ({"compute_capability": "8.6"}, "the plan was built for compute capability 9.0, not 8.6"),
    ],
)
def test_a_plan_for_another_place_is_refused_before_anything_is_scheduled(bench: Bench, changes: Any, why: str) -> None:
    stamp = Stamp(tensorrt="10.9.0.34", compute_capability="9.0", profiles={})
    (bench.file.parent / STAMP).write_text(stamp.model_dump_json())
    (bench.file.parent / PLAN).write_bytes(b"plan")
    offered = candidates(bench.store.put_tree(bench.file.parent), 0.95)
    fits = {"accelerator": "nvidia", "server": "nvidia", "engine": "tensorrt", "compute_capability": "9.0"}
    with pytest.raises(QuantizeFailed, match=f"target local-cpu: {why}"):
        bench.package(offered, target=Target(**{**fits, **changes}))
    assert len(bench.package(offered, target=Target(**fits)).packages) == 1


NATIVE = Target(server="nvidia", engine="pytorch", precisions=("fp32",))


def test_torchscript_is_packaged_for_pytorch_itself_with_names_by_position(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "model.pt").write_bytes(b"script")
    native = bench.exported().model_copy(update={"torchscript": bench.store.put_tree(tmp_path / "script")})
    (built,) = bench.package(candidates(bench.model, 0.95, engine="pytorch"), target=NATIVE, exported=native).packages
    tree = bench.store.fetch(built.repository, tmp_path / "tree")
    (name,) = (path.name for path in tree.iterdir() if path.is_dir())
    assert sorted(path.name for path in (tree / name / "7").iterdir()) == ["model.pt"]
    config = parse((tree / name / "config.pbtxt").read_text())
    assert (config.backend, config.platform, config.input[0].name) == ("pytorch", "pytorch_libtorch", "INPUT__0")
    assert set(config.model_warmup[0].inputs) == {"INPUT__0"}
    assert [spec.name for spec in (*built.signature.inputs, *built.signature.outputs)] == ["INPUT__0", "OUTPUT__0"]
    golden = load_npz(tree / GOLDEN)
    expected = onnx_models.answer(onnx_models.session(bench.file), {"input": golden["input/INPUT__0"]})["output"]
    np.testing.assert_allclose(golden["output/OUTPUT__0"], expected, rtol=1e-5)


def test_without_a_torchscript_form_pytorch_has_nothing_to_serve(bench: Bench) -> None:
    with pytest.raises(SpecInvalid, match="exported only to ONNX"):
        bench.package(candidates(bench.model, 0.95, engine="pytorch"), target=NATIVE)


def test_the_same_candidate_makes_the_same_package(bench: Bench) -> None:
    assert bench.package() == bench.package()


@pytest.mark.parametrize(
    ("scores", "parity", "change", "failing"),
    [
        ((0.95,), case(1, 1), {}, "parity"),
        ((0.5,), case(), {"quality": Quality(min_score=0.9)}, "accuracy"),
    ],
)
def test_a_version_without_a_chance_ends_here_with_the_reason(
    bench: Bench, scores: tuple[float, ...], parity: ParityCase, change: dict[str, Any], failing: str
) -> None:
    result = bench.package(candidates(bench.model, *scores), parity, **change)
    assert result.packages == ()
    objection = result.objection()
    assert objection is not None
    assert (objection.outcome, objection.reasons[0].split(":")[0]) == (Outcome.FAIL, failing)


def test_a_version_nobody_can_score_ends_here_undecided(bench: Bench) -> None:
    objection = bench.package(candidates(bench.model, None), quality=Quality(min_score=0.9)).objection()
    assert objection is not None
    assert objection.outcome is Outcome.INCONCLUSIVE


def test_the_most_accurate_candidate_is_judged(bench: Bench) -> None:
    result = bench.package(candidates(bench.model, 0.95, 0.8), quality=Quality(min_score=0.9))
    assert [check.measured for check in result.checks if check.name == "accuracy"] == [0.95]


def champion_of(score: float, **changes: Any) -> Champion:
    return Champion(version=3, package=examples.package(version=3, score=score, **changes))


def test_a_version_less_accurate_than_the_champion_ends_here(bench: Bench) -> None:
    result = bench.package(candidates(bench.model, 0.95, 0.94), champion=champion_of(0.97))
    assert result.packages == ()
    objection = result.objection()
    assert objection is not None
    assert objection.outcome is Outcome.FAIL
    assert objection.reasons == (
        "accuracy against the champion: accuracy 0.9500 is 0.0200 worse than version 3's 0.9700, the limit is 0.01",
    )


@pytest.mark.parametrize(
    "champion",
    [champion_of(0.96), champion_of(0.99, validation="w" * 64), champion_of(0.99, metric="f1"), Champion(version=3)],
    ids=["within the limit", "other data", "another metric", "no package"],
)
def test_a_champion_no_better_or_not_comparable_stops_nothing(bench: Bench, champion: Champion) -> None:
    assert len(bench.package(candidates(bench.model, 0.95, 0.95), champion=champion).packages) == 2


def test_a_precision_that_can_t_pass_is_neither_packaged_nor_the_version_s_judge(bench: Bench) -> None:
    result = bench.package(candidates(bench.model, 0.94, 0.96), champion=champion_of(0.965))
    assert [entry.precision for entry in result.packages] == ["int8"]
    assert result.objection() is None
    assert result.remark() == (
        "fp32 on ONNX Runtime can't pass: accuracy 0.9400 is 0.0250 worse than version 3's 0.9650, the limit is 0.01"
    )


def test_versions_that_were_promoted_before_are_served_beside_the_new_one_if_the_spec_asks(
    bench: Bench, tmp_path: Path
) -> None:
    serving = Serving(version_policy=Latest(latest=2))
    before = MODEL.model_copy(update={"version": 6})
    (first,) = bench.package(candidates(bench.model, 0.95), serving=serving, model_version=before).packages
    champion = Champion(version=6, package=first)
    assert bench.package(candidates(bench.model, 0.95), champion=champion).packages[0].versions == [7]
    result = bench.package(candidates(bench.model, 0.95), champion=champion, serving=serving)
    (built,) = result.packages
    assert (built.versions, result.remark()) == ([6, 7], "")
    tree = bench.store.fetch(built.repository, tmp_path / "tree")
    assert sorted(path.parent.name for path in tree.glob("*/*/model.onnx")) == ["6", "7"]
    again = bench.package(candidates(bench.model, 0.95), champion=champion, serving=serving).packages[0]
    assert again.repository.sha256 == built.repository.sha256
    labelled = serving.model_copy(update={"labels": ("a", "b", "c")})
    result = bench.package(candidates(bench.model, 0.95, 0.95), champion=champion, serving=labelled)
    assert [entry.versions for entry in result.packages] == [[7], [7]]
    assert result.remark() == (
        "fp32 on ONNX Runtime, int8 on ONNX Runtime: version 6 can't be served beside it: its labels are not the same"
    )


def test_a_target_left_without_a_candidate_says_why_each_was_dropped(bench: Bench) -> None:
    result = bench.package(candidates(bench.model, 0.95, 0.8, dropped="too slow"))
    objection = result.objection()
    assert objection is not None
    assert objection.reasons == ("precision: fp32 on ONNX Runtime: too slow; int8 on ONNX Runtime: too slow",)


@pytest.mark.usefixtures("confined")
def test_nothing_is_left_behind_in_the_home(bench: Bench) -> None:
    before = {*bench.home.iterdir()}
    bench.package()
    assert {*bench.home.iterdir()} == before


def test_tuning_starts_where_triton_s_documentation_says() -> None:
    space = SearchSpace(max_batch=(32, 1, 8), queue_delay_us=(500, 0), instances=(2, 1), threads=(4, 2))
    assert first_config(space, Serving(), "bundled", signature()) == config(8, 0, 1, 2)


def test_a_graph_that_takes_one_sample_at_a_time_is_never_batched() -> None:
    single = Signature(inputs=(tensor("x", 1, 4), tensor("rate", 1)), outputs=(tensor("y", 1, 3),))
    assert first_config(SearchSpace(max_batch=(32, 8)), Serving(), "bundled", single).max_batch == 1


def test_preferred_batches_win_over_the_search() -> None:
    serving = Serving(preferred_batch_size=(4, 8))
    assert batches(SearchSpace(max_batch=(32, 1, 8)), serving, signature()) == (8, 32)
    assert first_config(SearchSpace(max_batch=(1, 8)), serving, "bundled", signature()).max_batch == 8
    with pytest.raises(SpecInvalid, match=r"has 8, more than the largest search\.max_batch"):
        batches(SearchSpace(max_batch=(1, 4)), serving, signature())
    single = Signature(inputs=(tensor("x", 1, 4),), outputs=(tensor("y", 1, 3),))
    with pytest.raises(SpecInvalid, match="the model takes one sample at a time"):
        batches(SearchSpace(), serving, single)


@pytest.mark.parametrize(
    "serving", [Serving(queue=Queue(timeout_ms=5)), Serving(priorities=Priorities(levels=2, default=1))]
)
def test_a_policed_queue_starts_with_the_instances_it_needs(serving: Serving) -> None:
    assert first_config(SearchSpace(instances=(1,)), serving, "bundled", signature()).instances == 2
    assert first_config(SearchSpace(instances=(1,)), serving, "nvidia", signature()).instances == 1
    assert first_config(SearchSpace(instances=(3, 4)), serving, "bundled", signature()).instances == 3
