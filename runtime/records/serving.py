"""What is served, where, and with which configuration."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record, volatile
from shiplift.runtime.records.precision import Metric, Precision, Slice
from shiplift.runtime.records.tensor import Signature

ServerKind = Literal["bundled", "nvidia"]


class ServingConfig(Record):
    """What tuning decides: one point of the search space."""

    max_batch: int = Field(ge=1)
    queue_delay_us: int = Field(ge=0)
    instances: int = Field(ge=1)
    threads: int = Field(ge=1)


class Nodes(Record):
    """Which nodes of a cluster may serve a package: its target's choice, in Kubernetes' own terms."""

    selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, str], ...] = ()
    gpus: int = Field(0, ge=0)
    image: str = ""


class ServerNeeds(Record):
    """What a server must be started with for a package's configuration to take effect."""

    rate_limiter: bool = False
    flags: tuple[str, ...] = ()


class Package(Record):
    """A Triton model repository (a tree) with one model version in one precision, and its golden requests.

    `sequences`: the model is stateful, so each request belongs to a sequence; the golden ones are the steps of one.
    """

    target: str
    server: ServerKind
    model: str
    version: int
    precision: Precision
    config: ServingConfig
    repository: Artifact
    signature: Signature
    score: float | None = None
    samples: int = 0
    metric: Metric | None = None
    validation: str = ""
    slices: tuple[Slice, ...] = ()
    sequences: bool = False
    nodes: Nodes = volatile(Nodes())
    needs: ServerNeeds = volatile(ServerNeeds())


class Endpoint(Record):
    """Where a model answers: its HTTP URL and the gRPC `host:port`."""

    http: str
    grpc: str


class Process(Record):
    """A process by pid and start time (seconds since the epoch), so a reused pid is not mistaken for it."""

    pid: int
    started_at: float


class Champion(Record):
    """The version that a challenger is compared with; version 0: there is none yet."""

    version: int = 0
    package: Package | None = None


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
    """A package loaded on a staging server, warmed up, and answering its golden requests correctly.

    `workload` is what runs the server, which depends on the place. `metrics` is a URL.
    """

    package: Package
    endpoint: Endpoint = volatile()
    metrics: str = volatile("")
    load_seconds: float = volatile(0.0)
    workload: Annotated[ServerProcess | ServerPods, Field(discriminator="kind")] = volatile()


class Staged(Record):
    """A model on a staging server: the name it is loaded under, and its endpoint."""

    model: str
    endpoint: Endpoint


class Promotion(Record):
    """The champion after a promotion or a rollback, stored with its version so that it can be compared and restored."""

    model: str
    version: int
    alias: str
    endpoint: Endpoint = volatile()
    previous: int = volatile(0)
    package: Package
    replicas: int = volatile(1)


def which_target_serves(serving: str, not_served: Iterable[str]) -> str:
    """A sentence on which of several targets is deployed and judged, and why the others are not.

    Empty if there are no others.
    """
    others = tuple(not_served)
    if not others:
        return ""
    verb = "is" if len(others) == 1 else "are"
    return (
        f"target {serving} is deployed and judged, {', '.join(others)} {verb} not: one target serves per release, "
        "the first in `targets` that can run"
    )
