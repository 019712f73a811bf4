"""The settings of an installation on a cluster: a YAML file of values, checked before anything is applied.

Every default works on a cluster with Argo Workflows and a storage class. The settings of Shiplift's parts (a `Site`,
`TriggerSettings`) are derived here, so that each value is set only once.
"""

from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from shiplift.pipelines.engines.argo.layout import CONFIG, HOME
from shiplift.pipelines.engines.argo.templates import Size, TemplateSettings
from shiplift.pipelines.release import RELEASE, ROLLBACK
from shiplift.pipelines.triggers.settings import (
    Limits,
    Listening,
    Reconciling,
    Repository,
    SecretFiles,
    TriggerSettings,
)
from shiplift.runtime.base.errors import SpecInvalid, UsageError
from shiplift.runtime.precision.modelopt import IMAGE_PYTHON
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.site import Cluster, GatewayRef, Site
from shiplift.runtime.spec.document import load_mapping, problems
from shiplift.runtime.spec.target import Target

SERVER_ENVIRONMENT = "/opt/triton"  # as in the Containerfile
WEBHOOKS, GIT = f"{CONFIG}/webhooks", f"{CONFIG}/git"
MLFLOW_PORT = 5000
GATEWAY = "shiplift"

Label = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
ShortLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,52}[a-z0-9])?$")]  # leaves room for `-serving`
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
Image = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$")]
Quantity = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, int | float) else value),
    Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"),
]
Count = Annotated[int, Field(ge=1, le=100)]


class Images(Record):
    """Shiplift's images, and how nodes pull them. `pull_secrets` are Secrets that the user created.

    `modelopt` is the image of the quantize stage for NVIDIA targets (`Containerfile.modelopt`); empty: `pipeline`.
    """

    pipeline: Image = "localhost/shiplift-pipeline:dev"
    server: Image = "localhost/shiplift-server:dev"
    modelopt: Image | Literal[""] = ""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    pull_secrets: tuple[Name, ...] = ()


class Resources(Record):
    """The requests of a pod and its memory limit. CPU is never limited: a limit would only slow the pod down."""

    cpu: Quantity = "50m"
    memory: Quantity = "256Mi"
    memory_limit: Quantity = "1Gi"


class Storage(Record):
    """Where MLflow stores its files.

    `pvc`: a volume claim, of `storage_class` or the cluster's default class. `hostPath`: the folder `path` on a node,
    which must be writable by user 10001. `emptyDir`: deleted with the pod, for trials.
    """

    kind: Literal["pvc", "hostPath", "emptyDir"] = "pvc"
    size: Quantity = "50Gi"
    storage_class: Name | None = None
    path: str = ""

    @model_validator(mode="after")
    def _check_path(self) -> Self:
        if (self.kind == "hostPath") != bool(self.path):
            raise ValueError("`path` is required for hostPath, and allowed for nothing else")
        if self.path and (not PurePosixPath(self.path).is_absolute() or ".." in PurePosixPath(self.path).parts):
            raise ValueError(f"path {self.path!r} is not absolute")
        return self


class Database(Record):
    """MLflow's database: a file next to its artifacts, or PostgreSQL.

    PostgreSQL's URI (`postgresql://USER:PASSWORD@HOST:PORT/NAME`) is read from the key `key` of the Secret `secret`,
    which the user creates in the pipeline's namespace. `port` is its port, for the network policy.
    """

    kind: Literal["sqlite", "postgresql"] = "sqlite"
    secret: Name = "shiplift-postgresql"  # noqa: S105 - a name
    key: str = Field("uri", pattern=r"^[-._a-zA-Z0-9]{1,253}$")
    port: int = Field(5432, ge=1, le=65535)


class Mlflow(Record):
    """The registry: Shiplift's own or, with `enabled: false`, the external one at `uri`.

    `allowed_hosts` are more host names that its own registry is reached by, through an ingress for example.
    `artifacts` is where its own registry stores artifacts; empty: on its volume. Credentials for that store, or for an
    external registry, are variables (MLFLOW_TRACKING_TOKEN, AWS_ACCESS_KEY_ID ...) in the optional Secret
    `shiplift-artifacts`.
    """

    enabled: bool = True
    uri: str = ""
    storage: Storage = Storage()
    database: Database = Database()
    artifacts: str = ""
    allowed_hosts: tuple[str, ...] = ()
    workers: Count = 1
    resources: Resources = Resources(cpu="100m", memory="512Mi", memory_limit="2Gi")

    @model_validator(mode="after")
    def _check_uri(self) -> Self:
        if self.enabled == bool(self.uri):
            raise ValueError("`uri` is required with `enabled: false`, and allowed only then")
        if self.uri and urlsplit(self.uri).scheme not in ("http", "https"):
            raise ValueError("`uri` must begin with http:// or https://")
        if urlsplit(self.uri).username or urlsplit(self.uri).password:
            raise ValueError("`uri` contains credentials: put them into the Secret `shiplift-artifacts`")
        return self


class Receiver(Record):
    """The receiver of webhooks. `deliveries_per_minute` is per replica and source address; see `triggers.settings`."""

    replicas: Count = 2
    deliveries_per_minute: int = Field(600, ge=1)
    trusted_proxies: tuple[str, ...] = ()
    resources: Resources = Resources(cpu="50m", memory="128Mi", memory_limit="512Mi")


class Reconciler(Record):
    """The reconciler: every `every_s` seconds it starts releases whose webhook was lost; see `triggers.settings`."""

    every_s: float = Field(60, ge=1)
    stuck_s: float = Field(120, ge=0)
    unschedulable_s: float = Field(120, ge=0)
    full_s: float = Field(3600, ge=0)
    resources: Resources = Resources(cpu="20m", memory="128Mi", memory_limit="512Mi")


class GitRepository(Record):
    """A repository whose pushes release models.

    `credentials_secret` has the key `credentials` (git's credential-store format, for https); `ssh_secret` has the keys
    `key` and `known_hosts`. The user creates these Secrets in the pipeline's namespace.
    """

    name: str
    host: Literal["github", "gitlab"]
    url: str
    branch: str = "main"
    credentials_secret: Name | None = None
    ssh_secret: Name | None = None

    @property
    def repository(self) -> Repository:
        """The repository in the triggers' settings, where Secrets are mounted files."""
        folder = PurePosixPath(GIT)
        credentials, ssh = self.credentials_secret, self.ssh_secret
        return Repository(
            name=self.name,
            host=self.host,
            url=self.url,
            branch=self.branch,
            credentials=Path(folder / credentials / "credentials") if credentials else None,
            ssh_key=Path(folder / ssh / "key") if ssh else None,
            known_hosts=Path(folder / ssh / "known_hosts") if ssh else None,
        )


def _checked(repository: GitRepository) -> GitRepository:
    try:
        _ = repository.repository
    except ValidationError as error:
        raise ValueError("; ".join(problems(error))) from error
    return repository


class Gateway(Record):
    """The Gateway that routes production traffic by weight (Gateway API v1): Istio, Envoy Gateway or any other."""

    class_name: Name
    http_port: int = Field(8000, ge=1, le=65535)
    grpc_port: int = Field(8001, ge=1, le=65535)
    annotations: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        if self.http_port == self.grpc_port:
            raise ValueError("http_port and grpc_port are the same")
        return self


class Serving(Record):
    """The pods that serve models: their resources, and how long a pod may take to become ready."""

    cpu: Quantity = "250m"
    memory_limit: Quantity = "2Gi"
    ready_timeout_s: int = Field(180, ge=10, le=3600)
    quota: dict[str, Quantity] = Field(default_factory=dict)


class StageSize(Record):
    """The resources of a stage's pods, in place of those in `pipelines.release`; None keeps those."""

    cpu: Quantity | None = None
    memory: Quantity | None = None


class Keep(Record):
    """How long Workflows and finished pods are kept, in seconds; the registry keeps the results for good."""

    workflows_s: int = Field(7 * 86400, ge=60)
    pods_s: int = Field(300, ge=0)


class Network(Record):
    """Network policies, for clusters whose network enforces them.

    `api_server` are the networks (CIDR) of the API server's addresses: `kubectl get endpoints kubernetes`. If it is
    empty, `install` asks the cluster; rendered files then let pods that load models reach ports 443 and 6443 anywhere.
    `store_ports` are the ports of an object store, if there is one.
    """

    policies: bool = True
    store_ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = (443,)
    api_server: tuple[Annotated[str, Field(pattern=r"^[0-9a-fA-F:.]+/[0-9]{1,3}$")], ...] = ()


_STAGES = {stage.name: stage for stage in (*RELEASE.flat(), ROLLBACK, RELEASE.on_exit) if stage is not None}


def _known(sizes: dict[str, StageSize]) -> dict[str, StageSize]:
    for name in sizes:
        if name not in _STAGES:
            raise ValueError(f"there is no stage {name!r}; the stages are: {', '.join(_STAGES)}")
    return sizes


class Values(Record):
    """Every value of an installation."""

    namespace: ShortLabel = "shiplift"
    serving_namespace: Label = ""
    images: Images = Images()
    mlflow: Mlflow = Mlflow()
    artifacts_uri: str = ""
    receiver: Receiver = Receiver()
    reconciler: Reconciler = Reconciler()
    repositories: tuple[Annotated[GitRepository, AfterValidator(_checked)], ...] = ()
    gateway: Gateway | None = None
    serving: Serving = Serving()
    targets: tuple[Target, ...] = ()
    stages: Annotated[dict[str, StageSize], AfterValidator(_known)] = Field(default_factory=dict)
    parallel_releases: Count = 10
    keep: Keep = Keep()
    network: Network = Network()

    @model_validator(mode="before")
    @classmethod
    def _default_serving_namespace(cls, body: Any) -> Any:
        if isinstance(body, dict) and not body.get("serving_namespace"):
            return {**body, "serving_namespace": f"{body.get('namespace', 'shiplift')}-serving"}
        return body

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.namespace == self.serving_namespace:
            raise ValueError("`serving_namespace` must differ from `namespace`: their pods have different permissions")
        if urlsplit(self.artifacts_uri).scheme in ("file", "memory") or (
            self.artifacts_uri and "://" not in self.artifacts_uri
        ):
            raise ValueError("`artifacts_uri` must be reachable from every pod, such as s3://BUCKET/shiplift")
        self.triggers  # noqa: B018 - checks the repositories against each other
        return self

    @property
    def registry_uri(self) -> str:
        """The address at which pods reach MLflow."""
        return self.mlflow.uri.rstrip("/") or f"http://mlflow.{self.namespace}.svc:{MLFLOW_PORT}"

    @property
    def artifacts(self) -> str:
        """Where artifacts are stored: through MLflow's proxy, unless the user has a store."""
        if self.artifacts_uri:
            return self.artifacts_uri
        parts = urlsplit(self.registry_uri)
        scheme = "mlflow-artifacts+https" if parts.scheme == "https" else "mlflow-artifacts"
        return f"{scheme}://{parts.netloc}/shiplift"

    @property
    def site(self) -> Site:
        """The cluster as the place where releases run."""
        gateway = GatewayRef(name=GATEWAY, namespace=self.serving_namespace) if self.gateway else None
        cluster = Cluster(
            namespace=self.namespace,
            serving_namespace=self.serving_namespace,
            server_image=self.images.server,
            pull_policy=self.images.pull_policy,
            gateway=gateway,
            ready_timeout_s=self.serving.ready_timeout_s,
            server_cpu_request=self.serving.cpu,
            server_memory_limit=self.serving.memory_limit,
        )
        return Site(
            home=HOME,
            registry_uri=self.registry_uri,
            artifacts_uri=self.artifacts,
            server_environment=SERVER_ENVIRONMENT,
            modelopt=IMAGE_PYTHON if self.images.modelopt else "",
            place=cluster,
        )

    @property
    def triggers(self) -> TriggerSettings:
        """The settings of the receiver, the reconciler and the pod that processes a git push."""

        def files(name: str) -> tuple[Path, ...]:
            return (Path(WEBHOOKS) / name, Path(WEBHOOKS) / f"{name}-previous")

        return TriggerSettings(
            namespace=self.namespace,
            registry_uri=self.registry_uri,
            secrets=SecretFiles(mlflow=files("mlflow"), github=files("github"), gitlab=files("gitlab")),
            repositories=tuple(repository.repository for repository in self.repositories),
            limits=Limits(deliveries_per_minute=self.receiver.deliveries_per_minute),
            receiver=Listening(trusted_proxies=self.receiver.trusted_proxies),
            reconciler=Reconciling(
                every_s=self.reconciler.every_s,
                stuck_s=self.reconciler.stuck_s,
                unschedulable_s=self.reconciler.unschedulable_s,
                full_s=self.reconciler.full_s,
                webhook_url=f"http://receiver.{self.namespace}.svc/webhooks/mlflow",
            ),
        )

    @property
    def template_settings(self) -> TemplateSettings:
        """What the WorkflowTemplates depend on."""
        placements = {name: _STAGES[name].at for name in self.stages}
        sizes = {
            name: Size(cpu=size.cpu or placements[name].cpu, memory=size.memory or placements[name].memory)
            for name, size in self.stages.items()
        }
        return TemplateSettings(
            namespace=self.namespace,
            image=self.images.pipeline,
            site=self.site,
            pull_policy=self.images.pull_policy,
            sizes=sizes,
            keep_s=self.keep.workflows_s,
            keep_pods_s=self.keep.pods_s,
            git_secrets=self.git_secrets,
            modelopt_image=self.images.modelopt,
        )

    @property
    def git_secrets(self) -> tuple[str, ...]:
        """The Secrets of the repositories, mounted below `/etc/shiplift/git` in the pod that processes a push."""
        secrets = [
            name
            for repository in self.repositories
            for name in (repository.credentials_secret, repository.ssh_secret)
            if name
        ]
        return tuple(dict.fromkeys(secrets))


def parse(text: str, *, namespace: str = "") -> Values:
    """Values from YAML text; `namespace`, if not empty, overrides the text's.

    Raises:
        SpecInvalid: the text is not a YAML mapping, or a field is wrong; the message names every wrong field.
    """
    body = load_mapping(text, "the values file")
    if namespace:
        body = {**body, "namespace": namespace}
    try:
        return Values.model_validate(body)
    except ValidationError as error:
        raise SpecInvalid(
            "; ".join(problems(error, Values)), do="`shiplift values` prints a commented file with every field."
        ) from error


def read(file: Path | None, *, namespace: str = "") -> Values:
    """Values from a file, or the defaults; see `parse`.

    Raises:
        UsageError: the file can't be read.
    """
    try:
        return parse(file.read_text() if file else "", namespace=namespace)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} can't be read: {error}", do="Pass the path of a YAML file.") from error


def commented() -> str:
    """A values file with every field, its default, and what it is for."""
    return files("shiplift.templates").joinpath("kubernetes", "values.yaml").read_text()
