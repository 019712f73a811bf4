"""Targets: the places a model will serve, and how a spec names them."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from shiplift.runtime.records.base import Record
from shiplift.runtime.records.precision import Precision
from shiplift.runtime.records.serving import Nodes, ServerKind
from shiplift.runtime.spec.fields import Name

Accelerator = Literal["cpu", "cpu-vnni", "cpu-avx2", "cpu-arm64", "nvidia"]
Engine = Literal["onnxruntime", "onnxruntime-tensorrt", "tensorrt", "pytorch"]
VersionText = Annotated[str, Field(pattern=r"^([0-9]+(\.[0-9]+){0,3})?$")]
Dims = tuple[Annotated[int, Field(ge=1, le=2**31 - 1)], ...]


class Toleration(Record):
    """A Kubernetes toleration; an empty `effect` tolerates every effect of the taint."""

    key: str = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""


class Versions(Record):
    """What runs on a target, as `1.23` or `1.23.2`; empty: not known, so nothing is checked against it."""

    onnxruntime: VersionText = ""
    tensorrt: VersionText = ""
    driver: VersionText = ""


class Profile(Record):
    """The shapes of one input, batch included, that a TensorRT engine is built for."""

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


class Target(Record):
    """One place the model will serve: hardware, how a node with it is found, and what runs there.

    `compute_capability` and `memory_mb` describe an NVIDIA GPU. `engine` is what executes the model there: ONNX Runtime
    (on a GPU with its CUDA provider, or TensorRT through it), a TensorRT plan, or PyTorch itself (TorchScript, in
    NVIDIA's server, with its inputs and outputs named by position: `INPUT__0`, `OUTPUT__0`).
    """

    name: Name = "local-cpu"
    accelerator: Accelerator = "cpu"
    compute_capability: str = Field("", pattern=r"^([0-9]{1,2}\.[0-9])?$")
    memory_mb: int = Field(0, ge=0)
    precisions: tuple[Precision, ...] = Field(("fp32", "int8"), min_length=1)
    server: ServerKind = "bundled"
    engine: Engine = "onnxruntime"
    image: str = ""
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    versions: Versions = Versions()
    profiles: dict[str, Profile] = Field(default_factory=dict)

    @property
    def gpu(self) -> bool:
        """Whether it asks for a GPU."""
        return self.accelerator == "nvidia"

    @property
    def nodes(self) -> Nodes:
        """Which nodes of a cluster may serve it."""
        tolerated = tuple(one.model_dump(exclude_defaults=True) for one in self.tolerations)
        return Nodes(selector=self.node_selector, tolerations=tolerated, gpus=int(self.gpu), image=self.image)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        of_gpus = self.engine not in ("onnxruntime", "pytorch")
        if not self.gpu and (self.compute_capability or self.memory_mb or of_gpus):
            raise ValueError("compute_capability, memory_mb and other engines are for `accelerator: nvidia`")
        if self.gpu and self.server != "nvidia":
            raise ValueError("a GPU needs `server: nvidia`: the bundled server runs on the processor alone")
        if self.engine == "pytorch" and (self.server != "nvidia" or self.precisions != ("fp32",)):
            raise ValueError(
                "`engine: pytorch` needs `server: nvidia` and `precisions: [fp32]`: it runs the model as is"
            )
        if "fp8" in self.precisions and not (self.gpu and capability(self.compute_capability) >= (8, 9)):
            raise ValueError("fp8 needs an NVIDIA GPU with `compute_capability: 8.9` or higher")
        return self


def capability(text: str) -> tuple[int, int]:
    """A compute capability such as `9.0` as numbers; (0, 0) where none is given."""
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


class Wanted(Record):
    """The targets a spec asks for: in full, or by their name in the site's catalogue."""

    targets: Targets = (Target(),)


class Fleet(Record):
    """All targets of a release, in full, in the spec's order: the first that can run is the one that serves."""

    targets: tuple[Target, ...] = Field((Target(),), min_length=1)

    def remark(self) -> str:
        """That one target alone will serve, told before time is spent on the others."""
        if len(self.targets) == 1:
            return ""
        names = ", ".join(target.name for target in self.targets)
        return f"of {names} the first that can run serves; the others are prepared and not served"
