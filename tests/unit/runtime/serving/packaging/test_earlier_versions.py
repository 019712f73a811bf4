from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.base.errors import ArtifactCorrupt
from shiplift.runtime.model.tensors import load_npz
from shiplift.runtime.precision.tensorrt_plans import STAMP, Stamp
from shiplift.runtime.records.kinds.package import Package, PipelinePackage
from shiplift.runtime.records.model import PythonEnvironment
from shiplift.runtime.records.serving import EarlierVersion, EarlierVersions, Padding
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.packaging.earlier_versions import Incumbent, Successor, add_earlier, require_as_promoted
from shiplift.runtime.serving.triton.config import ModelDescription, parse
from shiplift.runtime.serving.triton.repository import GOLDEN, golden_arrays, retire, write_package
from shiplift.runtime.spec.serving_settings import Latest, Lengths, SequenceBatching, Serving, VersionPolicy
from shiplift.runtime.spec.target import Profile, Target, TensorRT, Versions
from shiplift.runtime.store.artifacts import ArtifactStore
from tests.unit.examples import config, package, signature, tensor

EXAMPLE = {"input": np.arange(8, dtype=np.float32).reshape(2, 4)}


def described(version: int, **changes: Any) -> ModelDescription:
    plain: dict[str, Any] = {"signature": signature(), "config": config(8), "serving": Serving(labels=("a", "b"))}
    return ModelDescription(name="digits", version=version, **plain | changes)


def write(to: Path, description: ModelDescription) -> Path:
    """A package of a version, whose golden answers are its number."""
    onnx = to.with_name(f"{to.name}-onnx")
    onnx.mkdir(parents=True, exist_ok=True)
    (onnx / "model.onnx").write_bytes(f"version {description.version}".encode())
    to.mkdir(parents=True, exist_ok=True)
    golden = golden_arrays(EXAMPLE, {"output": np.full(2, description.version)})
    return write_package(to, description, onnx, "bundled", example=EXAMPLE, golden=golden)


class Line:
    """Versions that are promoted one after another."""

    def __init__(self, folder: Path, policy: VersionPolicy) -> None:
        self.folder, self.policy = folder, policy
        self.champion: Incumbent | None = None

    def release(self, description: ModelDescription, **changes: Any) -> EarlierVersions:
        """Packages and promotes a version; returns those that are served beside it."""
        tree = write(self.folder / f"{description.version}", description)
        plain = Successor(
            tree=tree, version=description.version, target=Target(name="local-cpu"), environment=None, endings=("",)
        )
        earlier = add_earlier(replace(plain, **changes), self.champion, self.policy)
        promoted = package(version=description.version, precision=description.precision, earlier=earlier)
        self.champion = Incumbent(package=promoted, tree=tree)
        return earlier

    def refusal(self, description: ModelDescription, **changes: Any) -> str:
        earlier = self.release(description, **changes)
        assert earlier.versions == ()
        return earlier.refused.removeprefix("version 1 can't be served beside it: ")


def numbers(earlier: EarlierVersions) -> list[int]:
    return [each.version for each in earlier.versions]


@pytest.fixture
def line(tmp_path: Path) -> Callable[[VersionPolicy], Line]:
    return lambda policy: Line(tmp_path, policy)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (Latest(latest=1), [[], [], [], []]),
        (Latest(latest=2), [[], [1], [2], [3]]),
        (Latest(latest=3), [[], [1], [1, 2], [2, 3]]),
        ("all", [[], [1], [1, 2], [1, 2, 3]]),
    ],
)
def test_a_policy_keeps_so_many_of_the_versions_that_were_promoted(
    line: Callable[[VersionPolicy], Line], policy: VersionPolicy, kept: list[list[int]]
) -> None:
    promoted = line(policy)
    assert [numbers(promoted.release(described(version))) for version in (1, 2, 3, 4)] == kept
    assert promoted.champion is not None
    tree, versions = promoted.champion.tree, [*kept[-1], 4]
    served = parse((tree / "digits" / "config.pbtxt").read_text())
    assert list(served.version_policy.specific.versions) == versions
    files = {path.parent.name: path.read_text() for path in (tree / "digits").glob("*/model.onnx")}
    assert files == {str(version): f"version {version}" for version in versions}
    golden = load_npz(tree / GOLDEN)
    assert {name: array.tolist() for name, array in golden.items() if name.endswith("output/output")} == {
        f"version/{version}/output/output" if version < 4 else "output/output": [version] * 2 for version in versions
    }
    retire(tree, "digits")
    assert {path.parent.name for path in (tree / "digits").glob("*/model.onnx")} == set(files)


def test_a_higher_version_is_not_kept_because_it_would_answer_requests_that_name_none(
    line: Callable[[VersionPolicy], Line],
) -> None:
    promoted = line("all")
    for version in (1, 3):
        promoted.release(described(version))
    earlier = promoted.release(described(2))
    assert numbers(earlier) == [1]
    assert earlier.refused == (
        "version 3 can't be served beside it: its number is higher, so it would answer requests that name no version"
    )


def test_a_version_that_is_released_again_keeps_those_that_it_had(line: Callable[[VersionPolicy], Line]) -> None:
    promoted = line(Latest(latest=2))
    promoted.release(described(1))
    assert numbers(promoted.release(described(2))) == [1]
    promoted.folder = promoted.folder / "again"
    assert numbers(promoted.release(described(2))) == [1]


def test_the_answers_of_each_version_may_be_off_by_what_its_own_precision_allows(
    line: Callable[[VersionPolicy], Line],
) -> None:
    promoted = line("all")
    promoted.release(described(1, precision="int8"))
    assert promoted.release(described(2)).versions == (EarlierVersion(version=1, precision="int8"),)


def test_what_tuning_and_the_spec_set_may_differ(line: Callable[[VersionPolicy], Line]) -> None:
    promoted = line(Latest(latest=2))
    promoted.release(described(1))
    other = Serving(labels=("a", "b"), request_timeout_s=5, graph_optimization="off", response_cache=True, warmup=False)
    assert numbers(promoted.release(described(2, config=config(32, 100, 2, 2), serving=other))) == [1]


def test_states_may_wait_as_long_as_tuning_says(line: Callable[[VersionPolicy], Line]) -> None:
    tensors = Signature(inputs=signature().inputs, outputs=signature().outputs)
    states = {"hidden": tensor("next_hidden", -1, 4)}
    plain = {"signature": tensors, "states": states}
    promoted = line(Latest(latest=2))
    batching = SequenceBatching(states={"hidden": "next_hidden"})
    promoted.release(described(1, serving=Serving(sequence_batching=batching), **plain))
    later = Serving(sequence_batching=batching.model_copy(update={"max_candidate_sequences": 8}))
    tuned = described(2, serving=later, config=config(8, queue_delay_us=100), **plain)
    assert numbers(promoted.release(tuned)) == [1]
    assert promoted.release(described(3, **plain)).versions == ()


OTHER = Signature(inputs=signature().inputs, outputs=(tensor("scores", -1, 3),))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"engine": "openvino"}, "it runs in the backend onnxruntime, this one in openvino"),
        ({"signature": OTHER}, "its inputs or outputs are not the same"),
        ({"serving": Serving(labels=("a", "c"))}, "its labels are not the same"),
        (
            {"engine": "onnxruntime-tensorrt", "gpu": True, "tensorrt": TensorRT(engine_cache=False)},
            "its accelerators are not the same",
        ),
    ],
)
def test_a_version_that_needs_another_configuration_is_not_kept(
    line: Callable[[VersionPolicy], Line], changes: dict[str, Any], reason: str
) -> None:
    promoted = line(Latest(latest=2))
    promoted.release(described(1))
    assert promoted.refusal(described(2, **changes)) == reason
    assert promoted.champion is not None
    served = parse((promoted.champion.tree / "digits" / "config.pbtxt").read_text())
    assert list(served.version_policy.specific.versions) == [2]


def test_a_cache_of_engines_is_for_one_version(line: Callable[[VersionPolicy], Line]) -> None:
    promoted = line("all")
    promoted.release(described(1, engine="onnxruntime-tensorrt", gpu=True))
    assert "TensorRT's cache of engines is for one version" in promoted.refusal(
        described(2, engine="onnxruntime-tensorrt", gpu=True)
    )
    promoted = Line(promoted.folder / "without", "all")
    cached = {"engine": "onnxruntime-tensorrt", "gpu": True, "tensorrt": TensorRT(engine_cache=False)}
    promoted.folder.mkdir()
    promoted.release(described(1, **cached))
    assert numbers(promoted.release(described(2, **cached))) == [1]


def test_a_version_in_bf16_shares_no_configuration_with_one_in_fp32(line: Callable[[VersionPolicy], Line]) -> None:
    promoted = line(Latest(latest=2))
    promoted.release(described(1, engine="openvino"))
    later = described(2, engine="openvino", precision="bf16")
    assert promoted.refusal(later) == "its backend needs other parameters (HINT_BF16)"


def test_what_pads_requests_is_proven_for_one_version(line: Callable[[VersionPolicy], Line]) -> None:
    padded = {
        "serving": Serving(lengths=Lengths(pad={"input": 0})),
        "padding": Padding(pad={"input": 0}, buckets=(4,)),
        "config": config(8).model_copy(update={"buckets": (4,)}),
        "signature": Signature(inputs=(tensor("input", -1, -1),), outputs=signature().outputs),
    }
    promoted = line(Latest(latest=2))
    promoted.release(described(1, **padded))
    assert "requests are padded to common lengths" in promoted.refusal(described(2, **padded))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target": Target(name="other")}, "it was made for target local-cpu and server bundled"),
        ({"environment": PythonEnvironment(python="3.11", machine="x86_64", wheels=())}, "another environment"),
        ({"endings": ("", "--tensors")}, "only one of the two is also served as `MODEL--tensors`"),
    ],
)
def test_a_package_of_another_kind_is_not_kept(
    line: Callable[[VersionPolicy], Line], changes: dict[str, Any], reason: str
) -> None:
    promoted = line(Latest(latest=2))
    promoted.release(described(1))
    assert reason in promoted.refusal(described(2), **changes)


def test_a_model_that_was_a_pipeline_is_not_kept(line: Callable[[VersionPolicy], Line]) -> None:
    promoted = line("all")
    promoted.release(described(1))
    assert promoted.champion is not None
    common = {name: getattr(promoted.champion.package, name) for name in Package.model_fields if name != "kind"}
    bundle = PipelinePackage(**common, companions=("encoder-1--x",))
    promoted.champion = replace(promoted.champion, package=bundle)
    assert promoted.refusal(described(2)) == "it is a pipeline"


def test_a_front_is_kept_while_it_runs_in_the_same_environment(line: Callable[[VersionPolicy], Line]) -> None:
    for names, kept in ((("a", "a"), [1]), (("a", "b"), []), (("a", ""), [])):
        promoted = line("all")
        promoted.folder /= "-".join(names)
        for version, name in enumerate(names, 1):
            layer = promoted.folder / f"{version}" / "environments" / f"{name}.tar.gz"
            if name:
                layer.parent.mkdir(parents=True)
                layer.touch()
            earlier = promoted.release(described(version))
        assert numbers(earlier) == kept
        assert kept or "its Python code runs in another environment" in earlier.refused


@pytest.mark.parametrize(("capability", "opt", "kept"), [("8.0", 8, [1]), ("9.0", 8, []), ("8.0", 4, [])])
def test_a_plan_is_kept_while_the_target_loads_it_and_takes_the_same_shapes(
    line: Callable[[VersionPolicy], Line], capability: str, opt: int, kept: list[int]
) -> None:
    def stamp(opt: int) -> str:
        profile = Profile(min=(1, 4), opt=(opt, 4), max=(8, 4))
        return Stamp(tensorrt="10.3.0", compute_capability="8.0", profiles={"input": profile}).model_dump_json()

    promoted = line("all")
    promoted.release(described(1))
    assert promoted.champion is not None
    (promoted.champion.tree / "digits" / "1" / STAMP).write_text(stamp(8))
    target = Target(name="local-cpu").model_copy(
        update={"compute_capability": capability, "versions": Versions(tensorrt="10.3")}
    )
    onnx = promoted.folder / "2-onnx"
    onnx.mkdir()
    (onnx / STAMP).write_text(stamp(opt))
    earlier = promoted.release(described(2), target=target)
    assert numbers(earlier) == kept
    assert bool(earlier.refused) == (not kept)


def test_files_of_earlier_versions_are_those_that_were_promoted(tmp_path: Path) -> None:
    """What packages a version handles its author's files: it must not change those of others."""
    store, promoted = ArtifactStore((tmp_path / "artifacts").as_uri()), Line(tmp_path, "all")
    packages = []
    for version in (1, 2, 3):
        promoted.release(described(version))
        assert promoted.champion is not None
        stored = store.put_tree(promoted.champion.tree)
        packages.append(promoted.champion.package.model_copy(update={"repository": stored}))
    first, second, third = packages
    require_as_promoted(store, first, ())
    require_as_promoted(store, second, (first,))
    require_as_promoted(store, third, (second,))
    require_as_promoted(store, third, (first, third))
    with pytest.raises(ArtifactCorrupt, match="files of version 2 are not the ones that were promoted"):
        require_as_promoted(store, third, (first,))
    (promoted.champion.tree / "digits" / "1" / "model.onnx").write_bytes(b"another")  # type: ignore[union-attr]
    altered = third.model_copy(update={"repository": store.put_tree(tmp_path / "3")})
    with pytest.raises(ArtifactCorrupt, match="files of version 1 are"):
        require_as_promoted(store, altered, (second,))
    (tmp_path / "3" / "digits" / "1" / "model.onnx").write_bytes(b"version 1")
    (tmp_path / "3" / "digits" / "1" / "model.py").write_text("print()")
    added = third.model_copy(update={"repository": store.put_tree(tmp_path / "3")})
    with pytest.raises(ArtifactCorrupt, match="files of version 1 are"):
        require_as_promoted(store, added, (second,))
