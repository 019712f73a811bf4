"""Where a release runs: a machine or a cluster, with the folders and addresses that both need. Never a secret."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from shiplift.runtime.records.base import Record, volatile
from shiplift.runtime.records.serving import ServerKind


class Machine(Record):
    """A single machine as a place to serve: where its production server listens, and how that was started.

    `http` and `grpc` are `host:port`, `metrics` is a URL.
    """

    servers: ClassVar[tuple[ServerKind, ...]] = ("bundled",)

    kind: Literal["machine"] = "machine"
    http: str
    grpc: str
    metrics: str
    rate_limiter: bool = False


class GatewayRef(Record):
    """The Gateway whose listeners `http` and `grpc` carry production traffic."""

    name: str
    namespace: str


class Cluster(Record):
    """A Kubernetes cluster as a place to serve: names only; credentials come from the pod or the kubeconfig.

    `namespace` holds the pipeline, `serving_namespace` the models. Without a `gateway`, Services move the traffic.
    """

    servers: ClassVar[tuple[ServerKind, ...]] = ("bundled", "nvidia")
    rate_limiter: ClassVar[bool] = True  # each package has its own servers, started with what it needs

    kind: Literal["cluster"] = "cluster"
    namespace: str
    serving_namespace: str
    server_image: str
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    gateway: GatewayRef | None = None
    ready_timeout_s: int = 180
    server_cpu_request: str = "250m"
    server_memory_limit: str = "2Gi"


class Site(Record):
    """Where a release runs: what every site has, and the `place` that serves. Steps never ask for the place's type.

    `modelopt` is the Python interpreter of the environment that has NVIDIA's modelopt, if there is one. Every field is
    volatile: the same work on another site is a cache hit.
    """

    home: str = volatile()
    registry_uri: str = volatile()
    artifacts_uri: str = volatile()
    server_environment: str = volatile()
    modelopt: str = volatile("")
    place: Annotated[Machine | Cluster, Field(discriminator="kind")] = volatile()
