"""What is served, where, and with which configuration."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from shiplift.runtime.base.names import TENSORS, name_endings
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record, volatile
from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.records.kinds.union import Kinded
from shiplift.runtime.records.model import PythonEnvironment
from shiplift.runtime.records.precision import JpegScore, Precision, Slice, TaskMetricName, Variant
from shiplift.runtime.records.tensor import Signature

ServerKind = Literal["bundled", "nvidia"]
ONE_TARGET = "one target serves per machine, the first in `targets` that can run"


class ServingConfig(Record):
    """The settings that tuning decides: one point of the search space.

    Requests are padded to the smallest of the `buckets` that holds them. Without buckets, only requests of equal length
    share a batch.
    """

    max_batch: int = Field(ge=1)
    queue_delay_us: int = Field(ge=0)
    instances: int = Field(ge=1)
    threads: int = Field(ge=1)
    buckets: tuple[int, ...] = ()


class Padding(Record):
    """How a package pads its requests to common lengths: the value for each input, and the outputs that are cut back.

    Padding to each of `buckets` is proven to change no answer. `refused` says why there are none. `pad` has no inputs
    if the model takes text, since its tokenizer pads; `lengths` are then the example texts', in tokens.
    """

    pad: dict[str, float] = Field(default_factory=dict)
    cut: tuple[str, ...] = ()
    buckets: tuple[int, ...] = ()
    refused: str = ""
    lengths: tuple[int, ...] = ()


class Nodes(Record):
    """The cluster nodes that may serve a package, as its target selects them, in Kubernetes' own terms."""

    selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, str], ...] = ()
    gpus: int = Field(0, ge=0)
    image: str = ""


class ServerNeeds(Record):
    """The settings with which a server must be started for a package's configuration to take effect.

    `request_timeout_s` is the longest that one of its executions may take, and so the minimum wait before a silent
    server counts as stuck.
    """

    rate_limiter: bool = False
    flags: tuple[str, ...] = ()
    request_timeout_s: float = 30


class BundleMember(Record):
    """A member of a pipeline's bundle, by the pipeline's `name` for it; `served` is its name in the server.

    `follows`: it is always the model's current champion.
    """

    name: str
    served: str
    model: str
    version: int
    follows: bool
    signature: Signature | None = None
    precision: Precision = "fp32"


class EarlierVersion(Record):
    """A version that a package serves in addition to its own, and the precision by which its answers may be off."""

    version: int
    precision: Precision


class EarlierVersions(Record):
    """The earlier versions that a package also serves, in ascending order; `refused` says why there are not more."""

    versions: tuple[EarlierVersion, ...] = ()
    refused: str = volatile("")


class Package(Kinded, Variant):
    """A Triton model repository (a tree) with a model version in one precision on one engine, and its golden requests.

    `padding` is set if the spec asks for buckets of lengths. `earlier` are versions that were promoted before, and are
    served to clients that name them.
    """

    target: str
    server: ServerKind
    model: str
    version: int
    config: ServingConfig
    repository: Artifact
    signature: Signature
    score: float | None = None
    resamples: tuple[float, ...] = ()
    samples: int = 0
    metric: TaskMetricName | None = None
    validation: str = ""
    slices: tuple[Slice, ...] = ()
    padding: Padding | None = None
    earlier: EarlierVersions = EarlierVersions()
    nodes: Nodes = volatile(Nodes())
    needs: ServerNeeds = volatile(ServerNeeds())

    @property
    def versions(self) -> list[int]:
        """Every version that it serves, in ascending order. The last one answers clients that name none."""
        return [*(each.version for each in self.earlier.versions), self.version]

    # --- what servers ask of any kind of package ---

    @property
    def stateful(self) -> bool:
        """Whether each request belongs to a sequence. The golden requests are then the steps of one."""
        return False

    @property
    def python_environment(self) -> PythonEnvironment | None:
        """The environment of a model's own Python code: servers need it in addition to their own."""
        return None

    @property
    def member_models(self) -> tuple[str, ...]:
        """The other models in the repository, which the package's main model calls, in the order to load them."""
        return ()

    @property
    def called_endings(self) -> tuple[str, ...]:
        """The suffixes of the served models that the package's main model calls, in the order to load them."""
        return ()

    @property
    def brings_python(self) -> bool:
        """Whether the package runs Python in environments of its own; on a cluster, it contains these as layers."""
        return self.python_environment is not None

    @property
    def graph_tensors(self) -> Signature | None:
        """The tensors of the graph behind a front, if the graph is also served."""
        return None

    @property
    def endings(self) -> tuple[str, ...]:
        """The suffixes of the repository's models, after the name under which the package is served."""
        return name_endings(tensors=self.graph_tensors is not None)

    # --- packages of 0.1, which production keeps ---

    @classmethod
    def _kind_of_old(cls, old: dict[str, Any]) -> str:
        """Recognises the kind by the fields that only one kind used.

        A model of texts that was neither scored by its tokens' lengths nor served with its tensors left no trace of its
        kind. It is served, compared and kept like a graph with the same inputs.
        """
        tensors = old.get("tensors")
        front = _front_of(Signature.model_validate(tensors)) if tensors else ""
        signs = {
            "pipeline": old.get("companions") or old.get("members"),
            "generation": Signature.model_validate(old["signature"]).streamed,
            "python": old.get("environment"),
            "decoder": old.get("engine") == "python",
            "image": front == "image" or old.get("jpegs"),
            "text": front == "text" or (old.get("padding") or {}).get("lengths"),
        }
        return next((kind for kind, sign in signs.items() if sign), "graph")


def _front_of(tensors: Signature) -> str:
    """The kind of front before a graph: a tokenizer gives it integers, and an image's decoding gives it pixels."""
    return "text" if all(spec.datatype == "INT64" for spec in tensors.inputs) else "image"


class GraphPackage(Package):
    """A graph. `sequences`: it has states, so each request belongs to a sequence."""

    kind: Literal["graph"] = "graph"
    sequences: bool = False

    @property
    def stateful(self) -> bool:
        """As the spec says."""
        return self.sequences


class FrontPackage(Package):
    """A graph behind a front. `tensors` are the graph's, if it is also served, as always on NVIDIA's server."""

    tensors: Signature | None = None

    @property
    def called_endings(self) -> tuple[str, ...]:
        """The graph's. The bundled server runs the graph in the front's own process."""
        return (TENSORS,) if self.server == "nvidia" else ()

    @property
    def brings_python(self) -> bool:
        """NVIDIA's server lacks the libraries of fronts."""
        return self.server == "nvidia"

    @property
    def graph_tensors(self) -> Signature | None:
        """The tensors that the front makes of texts or images."""
        return self.tensors


class TextPackage(FrontPackage):
    """A graph behind a tokenizer."""

    kind: Literal["text"] = "text"


class ImagePackage(FrontPackage):
    """A graph behind the decoding of images. `jpegs` are scores on compressed images."""

    kind: Literal["image"] = "image"
    jpegs: tuple[JpegScore, ...] = ()


class PythonPackage(Package):
    """A Python model, and its environment."""

    kind: Literal["python"] = "python"
    environment: PythonEnvironment

    @property
    def python_environment(self) -> PythonEnvironment:
        """The model's own."""
        return self.environment


class GenerationPackage(Package):
    """A model that continues texts."""

    kind: Literal["generation"] = "generation"


class PipelinePackage(Package):
    """A pipeline of models. `members` are its parts, `companions` their names in the repository.

    No other package has models with these names. `environment` is that of the members that are Python models.
    """

    kind: Literal["pipeline"] = "pipeline"
    padding: None = None
    environment: PythonEnvironment | None = None
    companions: tuple[str, ...] = ()
    members: tuple[BundleMember, ...] = ()

    @property
    def python_environment(self) -> PythonEnvironment | None:
        """The environment of its Python members."""
        return self.environment

    @property
    def member_models(self) -> tuple[str, ...]:
        """The names of its members, steps and decoders in the repository."""
        return self.companions

    @property
    def brings_python(self) -> bool:
        """Whether a member does."""
        return super().brings_python or any(name.endswith(TENSORS) for name in self.companions)


class DecoderPackage(Package):
    """The decoding of images, as a member of a pipeline."""

    kind: Literal["decoder"] = "decoder"


class Beside(Record):
    """The package of another target that serves with a version's first one, and the capacity of one of its replicas."""

    package: Package
    capacity: Capacity | None = volatile(None)


class Endpoint(Record):
    """A model's addresses: its HTTP URL and the gRPC `host:port`."""

    http: str
    grpc: str


class Process(Record):
    """A process by pid and start time (seconds since the epoch), so a reused pid is not mistaken for it."""

    pid: int
    started_at: float


class Champion(Record):
    """The version that a challenger is compared with; version 0 if there is none yet.

    `own` is the released version's package, if that version is itself the champion and is released again.
    """

    version: int = 0
    package: Package | None = None
    own: Package | None = volatile(None)


class ServerProcess(Record):
    """A staging server on one machine: its process and the folder of its model repository."""

    kind: Literal["process"] = "process"
    process: Process
    repository: str


class ServerPods(Record):
    """Staging servers on a cluster: the Deployment's name, and the MiB that one server used when it was tuned."""

    kind: Literal["pods"] = "pods"
    name: str
    tuned_memory_mb: float


class Deployment(Record):
    """A package loaded on a staging server, warmed up, with correct answers to its golden requests.

    `workload` is what runs the server, which depends on the place. `metrics` is a URL. `others` are the same for the
    release's other targets that serve; `left_out` says, by name, why the remaining ones don't.
    """

    package: Package
    endpoint: Endpoint = volatile()
    metrics: str = volatile("")
    load_seconds: float = volatile(0.0)
    workload: Annotated[ServerProcess | ServerPods, Field(discriminator="kind")] = volatile()
    others: tuple["Deployment", ...] = ()
    left_out: dict[str, str] = Field(default_factory=dict)

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the targets that are deployed."""
        return (self.package.target, *(other.package.target for other in self.others))


class Staged(Record):
    """A model on a staging server: the name under which it is loaded, and its endpoint."""

    model: str
    endpoint: Endpoint


class Promotion(Record):
    """The champion after a promotion or a rollback, stored with its version so that it can be compared and restored.

    It is stored before the traffic moves, with `unfinished` naming what has begun, and again once the aliases have
    moved. `capacity` is what the load test measured of one replica; None if it measured nothing. `others` are the
    packages of other targets that serve with it.
    """

    model: str
    version: int
    alias: str
    endpoint: Endpoint = volatile()
    previous: int = volatile(0)
    package: Package
    replicas: int = volatile(1)
    capacity: Capacity | None = volatile(None)
    others: tuple[Beside, ...] = ()
    unfinished: Literal["", "promotion", "rollback"] = volatile("")


class Drift(Record):
    """An alias that was moved by hand: it names `named` (0: none), but should name `version` (0: none)."""

    model: str
    alias: str
    named: int
    version: int

    @property
    def sentence(self) -> str:
        """What is wrong, for people."""
        named = f"names version {self.named}" if self.named else "was removed"
        should = f"version {self.version}" if self.version else "no version"
        return f"alias {self.alias!r} of {self.model!r} {named}, but production and its signed promotion say {should}"


class Reinstated(Record):
    """The aliases of a model that were moved back to what production serves."""

    moved: tuple[Drift, ...] = ()


def which_targets_serve(serving: Sequence[str], not_served: Iterable[str], left_out: Mapping[str, str]) -> str:
    """A sentence about which of several targets are deployed and judged, and why the others are not.

    `left_out` has a reason for each, except in releases of an earlier Shiplift. Empty if there are no others.
    """
    others = tuple(not_served)
    if not others or not serving:
        return ""
    reasons = dict.fromkeys(left_out.get(name, ONE_TARGET) for name in others)
    verb = "is" if len(others) == 1 else "are"
    deployed = f"target {serving[0]} is" if len(serving) == 1 else f"targets {', '.join(serving)} are"
    return f"{deployed} deployed and judged, {', '.join(others)} {verb} not: {'; '.join(reasons)}"
