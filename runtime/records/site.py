"""Where a release runs: addresses and folders of one machine or a cluster, never a secret."""

from typing import Literal

from shiplift.runtime.records.base import Record, volatile


class GatewayRef(Record):
    """The Gateway whose listeners `http` and `grpc` carry production traffic."""

    name: str
    namespace: str


class Cluster(Record):
    """A Kubernetes cluster as a place to serve: names only; credentials come from the pod or the kubeconfig.

    `namespace` holds the pipeline, `serving_namespace` the models. Without a `gateway`, traffic moves by Service.
    """

    namespace: str
    serving_namespace: str
    server_image: str
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    gateway: GatewayRef | None = None
    ready_timeout_s: int = 180
    server_cpu_request: str = "250m"
    server_memory_limit: str = "2Gi"


class Site(Record):
    """Where a release runs: addresses and folders, never a secret.

    `modelopt` is the Python of the environment that has NVIDIA's modelopt, where there is one.
    All of it is volatile: the same work elsewhere is a hit.
    """

    home: str = volatile()
    registry_uri: str = volatile()
    artifacts_uri: str = volatile()
    server_environment: str = volatile()
    http: str = volatile()
    grpc: str = volatile()
    metrics: str = volatile()
    rate_limiter: bool = volatile(default=False)
    modelopt: str = volatile("")
    cluster: Cluster | None = volatile(default=None)
