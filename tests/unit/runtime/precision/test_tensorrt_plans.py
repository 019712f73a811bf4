"""Plans up to the library's calls. TensorRT can't be installed here, so a stand-in records the calls."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shiplift.runtime.base.errors import QuantizeFailed
from shiplift.runtime.precision.tensorrt_plans import (
    PLAN,
    Stamp,
    build_plan,
    mismatch,
    profiles_for,
    read_stamp,
    require_match,
)
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.target import Profile, Target, TensorRT, Versions
from tests.unit.examples import perceptron, signature, tensor

H200 = Target(
    name="h200",
    accelerator="nvidia",
    server="nvidia",
    engine="tensorrt",
    compute_capability="9.0",
    memory_mb=141312,
    precisions=("fp32", "fp16"),
    versions=Versions(tensorrt="10.9"),
)


class Library:
    """TensorRT's Python API, as far as it is called; `complaint` makes its parser refuse, `found` its builder fail."""

    __version__ = "10.9.0.34"

    def __init__(self, *, complaint: str = "", found: bool = True, strongly_typed: bool = True) -> None:
        self.calls: list[Any] = []
        self.Logger: Any = SimpleNamespace
        self.Logger = type("Logger", (), {"WARNING": 2, "__init__": lambda _, level: self.calls.append(("log", level))})
        self.MemoryPoolType = SimpleNamespace(WORKSPACE="workspace")
        self.NetworkDefinitionCreationFlag = SimpleNamespace(**{"STRONGLY_TYPED": 1} if strongly_typed else {})
        self.complaint, self.found = complaint, found

    def _note(self, name: str, result: Any = None) -> Any:
        def called(*arguments: Any) -> Any:
            self.calls.append((name, *arguments))
            return result

        return called

    def Builder(self, logger: Any) -> Any:  # noqa: N802 - TensorRT's own name
        self.profile = SimpleNamespace(set_shape=self._note("set_shape"))
        self.cache = SimpleNamespace(serialize=lambda: b"timings")
        self.config = SimpleNamespace(
            set_memory_pool_limit=self._note("set_memory_pool_limit"),
            add_optimization_profile=self._note("add_optimization_profile"),
            create_timing_cache=self._note("create_timing_cache", self.cache),
            set_timing_cache=self._note("set_timing_cache"),
        )
        return SimpleNamespace(
            create_network=self._note("create_network", "network"),
            create_builder_config=lambda: self.config,
            create_optimization_profile=lambda: self.profile,
            build_serialized_network=self._note("build_serialized_network", b"plan" if self.found else None),
        )

    def OnnxParser(self, network: Any, logger: Any) -> Any:  # noqa: N802 - TensorRT's own name
        return SimpleNamespace(
            parse_from_file=self._note("parse_from_file", not self.complaint),
            num_errors=1,
            get_error=lambda at: self.complaint,
        )

    def asked(self, name: str) -> list[Any]:
        return [call[1:] for call in self.calls if call[0] == name]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return perceptron(tmp_path / "model" / "model.onnx")


def test_a_plan_is_strongly_typed_for_its_shapes_and_stamped(model: Path, tmp_path: Path) -> None:
    trt = Library()
    stamp = build_plan(model, signature(), H200, tmp_path / "kept", trt)
    assert (model.parent / PLAN).read_bytes() == b"plan"
    assert read_stamp(model.parent) == stamp
    assert (stamp.tensorrt, stamp.compute_capability) == ("10.9.0.34", "9.0")
    assert trt.asked("create_network") == [(2,)]
    assert trt.asked("parse_from_file") == [(str(model),)]
    assert trt.asked("set_shape") == [("input", (1, 4), (8, 4), (32, 4))]
    assert trt.asked("set_memory_pool_limit") == [("workspace", 70656 << 20)]


def test_a_plan_is_built_within_the_workspace_and_at_the_level_that_the_target_says(
    model: Path, tmp_path: Path
) -> None:
    trt = Library()
    told = H200.model_copy(update={"tensorrt": TensorRT(workspace_mb=4096, optimization_level=5)})
    build_plan(model, signature(), told, tmp_path / "kept", trt)
    assert trt.asked("set_memory_pool_limit") == [("workspace", 4096 << 20)]
    assert trt.config.builder_optimization_level == 5


def test_a_target_that_names_no_gpu_is_stamped_with_the_one_it_was_built_on(model: Path, tmp_path: Path) -> None:
    anything = H200.model_copy(update={"compute_capability": ""})
    stamp = build_plan(model, signature(), anything, tmp_path / "kept", Library(), built_on="8.6")
    assert stamp.compute_capability == "8.6"
    assert (
        build_plan(model, signature(), H200, tmp_path / "kept", Library(), built_on="8.6").compute_capability == "9.0"
    )


def test_before_every_network_was_strongly_typed_a_flag_said_so(model: Path, tmp_path: Path) -> None:
    trt = Library(strongly_typed=False)
    build_plan(model, signature(), H200, tmp_path / "kept", trt)
    assert trt.asked("create_network") == [(0,)]


def test_kernel_timings_are_kept_for_the_next_build(model: Path, tmp_path: Path) -> None:
    first, second = Library(), Library()
    build_plan(model, signature(), H200, tmp_path / "kept", first)
    build_plan(model, signature(), H200, tmp_path / "kept", second)
    assert (first.asked("create_timing_cache"), second.asked("create_timing_cache")) == ([(b"",)], [(b"timings",)])
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["tensorrt-10.9.0.34-sm90.cache"]


@pytest.mark.parametrize(
    ("trt", "message"),
    [
        (Library(complaint="no importer for NonZero"), "can't parse the graph: no importer for NonZero"),
        (Library(found=False), "found no way to run the graph in 141312 MiB"),
    ],
)
def test_what_tensorrt_refuses_says_why_and_leaves_no_plan(model: Path, tmp_path: Path, trt: Any, message: str) -> None:
    with pytest.raises(QuantizeFailed, match=message):
        build_plan(model, signature(), H200, tmp_path / "kept", trt)
    assert not (model.parent / PLAN).exists()


def test_shapes_come_from_the_target_or_are_a_dynamic_batch() -> None:
    text = Signature(inputs=(tensor("ids", -1, -1, datatype="INT64"),), outputs=(tensor("y", -1, 2),))
    profile = Profile(min=(1, 16), opt=(8, 128), max=(32, 512))
    assert profiles_for(text, {"ids": profile}) == {"ids": profile}
    with pytest.raises(QuantizeFailed, match="input 'ids' has dynamic axes besides the batch"):
        profiles_for(text, {})
    with pytest.raises(QuantizeFailed, match=r"the profile of 'input' is \(8, 128\), the model takes \(-1, 4\)"):
        profiles_for(signature(), {"input": profile})


@pytest.mark.parametrize(
    ("version", "pair", "why"),
    [
        ("10.9.0.34", "9.0", ""),
        ("10.9", "9.0", ""),
        ("", "", ""),
        ("10.13", "9.0", "the plan was built by TensorRT 10.9.0.34, but 10.13 would load it"),
        ("10.9", "8.6", "the plan was built for compute capability 9.0, not 8.6"),
    ],
)
def test_a_plan_is_held_against_where_it_would_be_loaded(version: str, pair: str, why: str) -> None:
    stamp = Stamp(tensorrt="10.9.0.34", compute_capability="9.0", profiles={})
    assert mismatch(stamp, tensorrt=version, compute_capability=pair) == why
    target = H200.model_copy(update={"versions": Versions(tensorrt=version), "compute_capability": pair})
    if why:
        with pytest.raises(QuantizeFailed, match="target h200: the plan was built"):
            require_match(stamp, target)
    else:
        require_match(stamp, target)
