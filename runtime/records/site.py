"""Where a release runs: a machine or a cluster, with the folders and addresses that both need. It has no secrets."""

import operator
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlencode

from pydantic import Field, field_validator, model_validator

from shiplift.runtime.records.base import Record, volatile
from shiplift.runtime.records.limits import Limits
from shiplift.runtime.records.serving import ServerKind

Mechanism = Literal["namespaces", "landlock", "seccomp"]


class Machine(Record):
    """A single machine as a place to serve: the addresses of its production server, and how that was started.

    `http` and `grpc` are `host:port`, `metrics` is a URL.
    """

    servers: ClassVar[tuple[ServerKind, ...]] = ("bundled",)
    layers: ClassVar[bool] = False  # environments of Python models stay on the machine that made them
    one_server: ClassVar[bool] = True

    kind: Literal["machine"] = "machine"
    http: str
    grpc: str
    metrics: str
    rate_limiter: bool = False


class GatewayRef(Record):
    """The Gateway whose listeners `http` and `grpc` carry production traffic."""

    name: str
    namespace: str


class ActivatorRef(Record):
    """Holds the requests of services without a pod, each for at most `hold_s` seconds."""

    hold_s: float = 60


class IngressRef(Record):
    """How requests enter the cluster if there is no Gateway API.

    HTTP: `host`, by path; gRPC: `MODEL.host`. `tls_secret` names the Secret with the certificate for both.
    """

    class_name: str
    host: str
    tls_secret: str = ""
    annotations: dict[str, str] = Field(default_factory=dict)


class Sharing(Record):
    """Limits of servers with several models, and the default `placement` of services.

    `memory_mb` is the memory limit of such a server, `models` the most that it may hold.
    """

    placement: Literal["own", "shared", "auto"] = "own"
    memory_mb: int = Field(2048, ge=256)
    models: int = Field(8, ge=2, le=64)


class Cluster(Record):
    """A Kubernetes cluster as a place to serve: names only; credentials come from the pod or the kubeconfig.

    `namespace` holds the pipeline, `serving_namespace` the models. Without a `gateway`, Services move the traffic; an
    `ingress` leads to them from outside. `packages_uri` is an artifact store with a copy of what serves, which pods ask
    first; empty if there is none. `capture_uri` is the address of the process that keeps what pods capture; empty if
    nothing is. `prometheus` is the address at which KEDA reaches the Prometheus that scrapes the
    models; empty if there is none. `monitoring_labels` are those by which the Prometheus operator selects monitors and
    rules. Without an `activator`, no service is scaled to zero. `sharing` is for servers with several models.
    `allow_without` are the mechanisms of confinement that a served model's own processes may lack (`SandboxSettings`);
    these processes need no namespaces.
    """

    servers: ClassVar[tuple[ServerKind, ...]] = ("bundled", "nvidia")
    layers: ClassVar[bool] = True  # environments of Python models are in their packages
    one_server: ClassVar[bool] = False
    rate_limiter: ClassVar[bool] = True  # each package has its own servers, started with what it needs

    kind: Literal["cluster"] = "cluster"
    namespace: str
    serving_namespace: str
    server_image: str
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    gateway: GatewayRef | None = None
    ingress: IngressRef | None = None
    ready_timeout_s: int = 180
    server_cpu_request: str = "250m"
    server_memory_limit: str = "2Gi"
    packages_uri: str = ""
    capture_uri: str = Field("", exclude_if=operator.not_)
    prometheus: str = ""
    monitoring_labels: dict[str, str] = Field(default_factory=dict)
    activator: ActivatorRef | None = None
    sharing: Sharing = Sharing()
    allow_without: tuple[Mechanism, ...] = ()


class SandboxSettings(Record):
    """The mechanisms of confinement whose absence this site accepts if its kernel lacks them; empty: no exception.

    `namespaces`: own network, processes and mounts. `landlock`: which files may be read and written. `seccomp`: which
    system calls may be made.
    """

    allow_without: tuple[Mechanism, ...] = ()


class RegistryApprovals(Record):
    """Whether a tag or an alias in the registry decides about a version that waits for approval; by default, none does.

    The registry keeps neither who set one nor when. `tags: trusted` says that whoever may set a version's tags may
    decide. If there are `approvers`, the tag has to name one of them, and nobody checks that name. `alias` approves the
    version at which it points (empty: none does); it names nobody, so it counts only without `approvers`.
    """

    tags: Literal["refused", "trusted"] = "refused"
    alias: str = Field("", pattern=r"^([A-Za-z_][A-Za-z0-9_-]{0,99})?$")

    @field_validator("alias")
    @classmethod
    def _free(cls, alias: str) -> str:
        if alias in ("champion", "challenger", "previous", "latest"):
            raise ValueError(f"can't be {alias!r}, which has another meaning")
        return alias

    def trusts(self, via: str) -> bool:
        """Whether a `tag` or an `alias` may decide."""
        return self.tags == "trusted" if via == "tag" else bool(self.alias)

    @property
    def any(self) -> bool:
        """Whether the registry may decide at all."""
        return self.trusts("tag") or self.trusts("alias")


class SitePolicy(Record):
    """Limits for every release on a site, whatever its spec says. The site's owner sets them.

    `pickle` and `python` are the modes of `admission.pickle` and `admission.python`. `package_index` is the URL of the
    only index from which Python models get packages (empty: those that pip is configured with), `packages` the names of
    the permitted packages (empty: any). `max_size_mb` bounds a version's files, `memory_mb` and `timeout_s` the
    sandbox. `unpacked_mb` and `samples` bound a dataset as arrays in memory, `targets` a spec's targets, and `served`
    what a served model may use. `approvers` names who may approve or reject a version (empty: who may release);
    `approvals` says whether tags and aliases in the registry do.
    """

    pickle: tuple[Literal["refuse", "sandbox"], ...] = ("refuse", "sandbox")
    python: tuple[Literal["refuse", "sandbox"], ...] = ("refuse", "sandbox")
    package_index: str = Field("", pattern=r"^(https?://\S+)?$")
    packages: tuple[str, ...] = ()
    max_size_mb: int = Field(16384, ge=1, strict=True)
    memory_mb: int = Field(16384, ge=512, strict=True)
    timeout_s: int = Field(3600, ge=5, strict=True)
    unpacked_mb: int = Field(4096, ge=1, strict=True)
    samples: int = Field(10_000_000, ge=1, strict=True)
    targets: int = Field(16, ge=1, strict=True)
    served: Limits = Limits()
    approvers: tuple[str, ...] = ()
    approvals: RegistryApprovals = Field(
        RegistryApprovals(), exclude_if=lambda approvals: approvals == RegistryApprovals()
    )

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.approvers and self.approvals.alias:
            raise ValueError("approvals.alias: an alias does not say who set it: leave it or `approvers` out")
        return self


class Site(Record):
    """Where a release runs: what every site has, and the `place` that serves. Steps never ask for the place's type.

    `artifacts_uri` is where this process reads artifacts. If that is its own broker, `origin_uri` is where others read
    them. `modelopt` is the Python interpreter of the environment with NVIDIA's modelopt, if there is one. `holder`
    names the installation in the registry's lease. `page` is the live page's address, and `prometheus` that of the
    Prometheus that bakes ask; empty if there is none. Every
    field except the policy is volatile: the same work on another site is a cache hit. A changed policy makes every
    stage run again, so that the new policy judges what an older one admitted.
    """

    home: str = volatile()
    registry_uri: str = volatile()
    artifacts_uri: str = volatile()
    origin_uri: str = volatile("")
    server_environment: str = volatile()
    modelopt: str = volatile("")
    sandbox: SandboxSettings = volatile(SandboxSettings())
    holder: str = volatile("")
    prometheus: str = Field("", exclude_if=operator.not_, json_schema_extra={"volatile": True})
    page: str = Field("", exclude_if=operator.not_, json_schema_extra={"volatile": True})
    policy: SitePolicy = SitePolicy()
    place: Annotated[Machine | Cluster, Field(discriminator="kind")] = volatile()

    def page_of(self, model: str, version: int) -> str:
        """The address of a version's release on the live page; empty if this site knows none."""
        query = urlencode({"model": model, "version": version})
        return f"{self.page}/release?{query}" if self.page else ""

    @property
    def environments(self) -> Path:
        """The folder of the environments of Python models.

        On one machine it is next to the server's environment, so that all stacks of an installation share it.
        """
        beside = Path(self.home) if self.place.layers else Path(self.server_environment).parent
        return beside / "environments"

    @property
    def artifacts_for_pods(self) -> str:
        """Where the pods that this process creates fetch artifacts: they can't reach its broker."""
        return self.origin_uri or self.artifacts_uri
