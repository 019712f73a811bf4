"""Targets: the hardware on which a model will serve, and how a spec names it."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from shiplift.runtime.records.precision import TEXT_ENGINES, AllowedPrecision, GraphEngine, TextEngine
from shiplift.runtime.records.serving import Nodes, ServerKind
from shiplift.runtime.spec.fields import Name, Section

Accelerator = Literal["cpu", "cpu-vnni", "cpu-avx2", "cpu-arm64", "nvidia"]
CpuFeature = Literal["AMXBF16", "AMXINT8", "AVX512BF16"]  # named as in Node Feature Discovery
VersionText = Annotated[str, Field(pattern=r"^([0-9]+(\.[0-9]+){0,3})?$")]
MAX_GPUS = 16
Dims = tuple[Annotated[int, Field(ge=1, le=2**31 - 1)], ...]


def _distinct(indexes: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(indexes)) != len(indexes):
        raise ValueError(f"names a GPU twice: {list(indexes)}")
    return indexes


GpuIndexes = Annotated[tuple[Annotated[int, Field(ge=0, lt=MAX_GPUS)], ...], AfterValidator(_distinct)]


class Toleration(Section):
    """A Kubernetes toleration; an empty `effect` tolerates every effect of the taint."""

    key: str = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""


class Versions(Section):
    """The software versions of a target, as `1.23` or `1.23.2`; unknown ones are empty and not checked."""

    onnxruntime: VersionText = ""
    tensorrt: VersionText = ""
    driver: VersionText = ""


class Profile(Section):
    """The shapes of one input, batch included, for which a TensorRT engine is built."""

    min: Dims
    opt: Dims
    max: Dims

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if not len(self.min) == len(self.opt) == len(self.max):
            raise ValueError("min, opt and max have different ranks")
        if any(not low <= best <= high for low, best, high in zip(self.min, self.opt, self.max, strict=True)):
            raise ValueError(f"must rise from min to opt to max: {self.min}, {self.opt}, {self.max}")
        return self


class TensorRT(Section):
    """What TensorRT may use to build and run engines, under ONNX Runtime or as a plan.

    `workspace_mb` bounds the GPU memory that a kernel may use while it runs; 0 means half of the target's `memory_mb`
    for a plan, and NVIDIA's default of 1 GiB under ONNX Runtime. `optimization_level` trades build time for the speed
    of the engine (0 to 5, TensorRT's default is 3). With the caches, a server that restarts need not build again.
    `min_subgraph_size` is the smallest number of nodes that ONNX Runtime hands over to TensorRT. Names and values are
    those of NVIDIA's onnxruntime_backend.
    """

    workspace_mb: int = Field(0, ge=0, le=1 << 20)
    optimization_level: int | None = Field(None, ge=0, le=5)
    min_subgraph_size: int | None = Field(None, ge=1, le=10_000)
    engine_cache: bool = True
    timing_cache: bool = True


class InstanceGroup(Section):
    """Instances in addition to those that tuning decides on: `count` on each of the `gpus`, or on the CPU."""

    kind: Literal["gpu", "cpu"] = "gpu"
    count: int = Field(1, ge=1, le=128)
    gpus: GpuIndexes = ()

    @model_validator(mode="after")
    def _on_its_kind(self) -> Self:
        if self.kind == "cpu" and self.gpus:
            raise ValueError("an instance group with `kind: cpu` has no `gpus`")
        return self


class Target(Section):
    """Hardware on which the model will serve, how to select nodes that have it, and what runs there.

    `cpu_features` are those that the CPU has beyond its `accelerator`: OpenVINO's bf16 needs AVX512BF16 or AMXBF16.
    `compute_capability` and `memory_mb` describe an NVIDIA GPU. `engine` executes the model: ONNX Runtime (on a GPU
    with its CUDA provider, or with TensorRT through it), OpenVINO (on x86 CPUs), a TensorRT plan, or PyTorch itself
    (TorchScript in NVIDIA's server, with inputs and outputs named by position: `INPUT__0`, `OUTPUT__0`), or treelite
    (`trees`: ensembles of decision trees as they were trained, in NVIDIA's server from `input__0` to `output__0`). With
    `auto`, tuning chooses between ONNX Runtime, OpenVINO and, for such ensembles, treelite, on the bundled server's
    CPUs; elsewhere it is ONNX Runtime. Models that generate text run on a GPU with vLLM or TensorRT-LLM, in the one
    precision that `precisions` names.

    `gpus` are the indexes of a server's GPUs that get the tuned number of instances each; without it, all GPUs that the
    server sees. `instance_groups` adds fixed ones, such as some on the CPU. A pod on a cluster asks for as many GPUs as
    these indexes need.
    """

    name: Name = "local-cpu"
    accelerator: Accelerator = "cpu"
    cpu_features: tuple[CpuFeature, ...] = ()
    compute_capability: str = Field("", pattern=r"^([0-9]{1,2}\.[0-9])?$")
    memory_mb: int = Field(0, ge=0)
    precisions: tuple[AllowedPrecision, ...] = Field(("fp32", "bf16", "int8"), min_length=1)
    server: ServerKind = "bundled"
    engine: GraphEngine | TextEngine | Literal["auto"] = "auto"
    image: str = ""
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    versions: Versions = Versions()
    profiles: dict[str, Profile] = Field(default_factory=dict)
    tensorrt: TensorRT = TensorRT()
    gpus: GpuIndexes = ()
    instance_groups: tuple[InstanceGroup, ...] = Field((), max_length=16)

    @property
    def gpu(self) -> bool:
        """Whether the target is a GPU."""
        return self.accelerator == "nvidia"

    @property
    def engines(self) -> tuple[GraphEngine | TextEngine, ...]:
        """The engines to choose from."""
        if self.engine != "auto":
            return (self.engine,)
        measured = not self.gpu and self.server == "bundled" and self.accelerator != "cpu-arm64"
        return ("onnxruntime", "openvino", "trees") if measured else ("onnxruntime",)

    @property
    def nodes(self) -> Nodes:
        """The cluster nodes that the target selects."""
        tolerations = tuple(t.model_dump(exclude_defaults=True) for t in self.tolerations)
        return Nodes(selector=self.node_selector, tolerations=tolerations, gpus=self.gpu_count, image=self.image)

    @property
    def gpu_count(self) -> int:
        """How many GPUs a server of the target must see; 0 for a CPU."""
        indexes = [*self.gpus, *(index for group in self.instance_groups for index in group.gpus)]
        return max((index + 1 for index in indexes), default=1) if self.gpu else 0

    @property
    def writes(self) -> bool:
        """Whether the target's engine is for models that generate text, and for no others."""
        return self.engine in TEXT_ENGINES

    @model_validator(mode="after")
    def _possible(self) -> Self:
        gpu_engine = self.writes or self.engine in ("onnxruntime-tensorrt", "tensorrt")
        if self.writes and not (len(self.precisions) == 1 and self.precisions[0] in ("fp32", "fp16", "bf16")):
            raise ValueError(f"`engine: {self.engine}` needs `precisions` with one of fp32, fp16 and bf16")
        if not self.gpu and (self.compute_capability or self.memory_mb or gpu_engine):
            raise ValueError("compute_capability, memory_mb and other engines are for `accelerator: nvidia`")
        self._possible_on_gpus()
        self._possible_as_trees()
        if self.cpu_features and (self.gpu or self.accelerator == "cpu-arm64"):
            raise ValueError("`cpu_features` are for x86 CPUs")
        if self.engine == "openvino" and (self.gpu or self.accelerator == "cpu-arm64"):
            raise ValueError("`engine: openvino` is for x86 CPUs")
        if self.gpu and self.server != "nvidia":
            raise ValueError("a GPU needs `server: nvidia`: the bundled server runs only on CPUs")
        if self.engine == "pytorch" and (self.server != "nvidia" or self.precisions != ("fp32",)):
            raise ValueError(
                "`engine: pytorch` needs `server: nvidia` and `precisions: [fp32]`: it runs the model as is"
            )
        if "fp8" in self.precisions and not (self.gpu and capability(self.compute_capability) >= (8, 9)):
            raise ValueError("fp8 needs an NVIDIA GPU with `compute_capability: 8.9` or higher")
        return self

    def _possible_as_trees(self) -> None:
        if self.engine == "trees" and (self.accelerator == "cpu-arm64" or "fp32" not in self.precisions):
            raise ValueError("`engine: trees` is for x86 CPUs and GPUs, and for `precisions` with fp32")

    def _possible_on_gpus(self) -> None:
        if self.gpu:
            return
        if self.gpus or any(group.kind == "gpu" for group in self.instance_groups) or self.tensorrt != TensorRT():
            raise ValueError("`gpus`, `tensorrt` and instance groups on GPUs are for `accelerator: nvidia`")
        if self.instance_groups:
            raise ValueError("on a CPU tuning decides the number of instances: `instance_groups` are for GPUs")


def capability(text: str) -> tuple[int, int]:
    """A compute capability such as `9.0` as two numbers; (0, 0) for empty text."""
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major else (0, 0)


def _names_differ(targets: tuple[Target | str, ...]) -> tuple[Target | str, ...]:
    names = [target if isinstance(target, str) else target.name for target in targets]
    if len(set(names)) != len(names):
        raise ValueError(f"two targets have the same name: {', '.join(names)}")
    return targets


def _form(value: Any) -> str:
    return "by name" if isinstance(value, str) else "in full"


TargetOrName = Annotated[Annotated[Target, Tag("in full")] | Annotated[Name, Tag("by name")], Discriminator(_form)]
Targets = Annotated[tuple[TargetOrName, ...], Field(min_length=1), AfterValidator(_names_differ)]


class Wanted(Section):
    """The targets that a spec asks for: in full, or by name in the site's catalogue."""

    targets: Targets = (Target(),)


class Fleet(Section):
    """All targets of a release, in full, in the spec's order: on one machine the first that can run serves."""

    targets: tuple[Target, ...] = Field((Target(),), min_length=1)

    def remark(self) -> str:
        """A note on how several targets are used, shown before time is spent on them."""
        if len(self.targets) == 1:
            return ""
        names = ", ".join(target.name for target in self.targets)
        return f"of {names} the first that can run serves on one machine; on a cluster each does, on its own nodes"
