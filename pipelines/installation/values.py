"""The settings of an installation on a cluster: a YAML file of values, checked before anything is applied.

The defaults work on any cluster with Argo Workflows and a storage class. The settings of Shiplift's parts (a `Site`,
`TriggerSettings`) are derived here, so that users set each value only once.
"""

from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from shiplift.pipelines.engines.argo.layout import CONFIG, HOME
from shiplift.pipelines.engines.argo.template_settings import Size, TemplateSettings
from shiplift.pipelines.offline import PREDICT
from shiplift.pipelines.release import RELEASE, SINGLE
from shiplift.pipelines.triggers.settings import (
    DeliveryLimits,
    Listening,
    Reconciling,
    Repository,
    SecretFiles,
    TriggerSettings,
)
from shiplift.runtime.base.errors import SpecInvalid, UsageError
from shiplift.runtime.events.targets import EventSettings
from shiplift.runtime.precision.modelopt import IMAGE_PYTHON
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.site import (
    ActivatorRef,
    Cluster,
    GatewayRef,
    IngressRef,
    SandboxSettings,
    Sharing,
    Site,
    SitePolicy,
)
from shiplift.runtime.spec.document import load_mapping, problems
from shiplift.runtime.spec.target import Target

SERVER_ENVIRONMENT = "/opt/triton"  # as in the Containerfile
WEBHOOKS, GIT, EVENTS = f"{CONFIG}/webhooks", f"{CONFIG}/git", f"{CONFIG}/events"
MLFLOW_PORT = 5000
OPERATOR_PORT, PACKAGES_PORT, SCORING_PORT, PAGE_PORT, CAPTURE_PORT = 8080, 8090, 8005, 8007, 8009
PUBLISHED = f"{CONFIG}/published"  # where the scoring server finds what the operator publishes
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
    """Shiplift's images, and how nodes pull them. `pull_secrets` names Secrets that the user created.

    `gpu` is the image that quantizes and tunes models for NVIDIA targets (`make image-gpu`). If it is empty, `pipeline`
    is used, which has neither TensorRT nor modelopt.
    """

    pipeline: Image = "localhost/shiplift-pipeline:dev"
    server: Image = "localhost/shiplift-server:dev"
    gpu: Image | Literal[""] = "localhost/shiplift-gpu:dev"
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    pull_secrets: tuple[Name, ...] = ()


class Resources(Record):
    """A pod's requests and its memory limit. CPU is never limited: a limit would only slow the pod down."""

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
            raise ValueError("`path` is required for hostPath, and not allowed otherwise")
        if self.path and (not PurePosixPath(self.path).is_absolute() or ".." in PurePosixPath(self.path).parts):
            raise ValueError(f"path {self.path!r} is not absolute")
        return self


class Database(Record):
    """MLflow's database: a file next to its artifacts, or PostgreSQL.

    PostgreSQL's URI (`postgresql://USER:PASSWORD@HOST:PORT/NAME`) is read from the key `key` of the Secret `secret`,
    which the user creates in the pipeline's namespace. `port` is PostgreSQL's port, for the network policy.
    """

    kind: Literal["sqlite", "postgresql"] = "sqlite"
    secret: Name = "shiplift-postgresql"  # noqa: S105 - a name
    key: str = Field("uri", pattern=r"^[-._a-zA-Z0-9]{1,253}$")
    port: int = Field(5432, ge=1, le=65535)


class Labels(Record):
    """Labels that select pods or namespaces; without labels, all of them."""

    matchLabels: dict[str, str] = Field(default_factory=dict)  # noqa: N815 - as Kubernetes names it


class IpBlock(Record):
    """A network, such as 10.0.0.0/8."""

    cidr: Annotated[str, Field(pattern=r"^[0-9a-fA-F:.]+/[0-9]{1,3}$")]


class Client(Record):
    """A client that may reach the registry's port, as in a NetworkPolicy: pods or namespaces by labels, or a network.

    Without `namespaceSelector`, pods are those of the pipeline's own namespace.
    """

    namespaceSelector: Labels | None = None  # noqa: N815 - as Kubernetes names it
    podSelector: Labels | None = None  # noqa: N815
    ipBlock: IpBlock | None = None  # noqa: N815

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if (self.ipBlock is None) == (self.namespaceSelector is None and self.podSelector is None):
            raise ValueError("set `ipBlock`, or `namespaceSelector` and `podSelector`, or one of these two")
        return self

    @property
    def peer(self) -> dict[str, Any]:
        """The client in a NetworkPolicy."""
        return self.model_dump(mode="json", exclude_none=True)


class Mlflow(Record):
    """The registry: Shiplift's own or, with `enabled: false`, an external one at `uri`.

    For Shiplift's own registry, `allowed_hosts` lists further host names under which it is reached, for example through
    an ingress. `clients` may reach its port in addition to Shiplift's pods: pods of people who log models, or an
    ingress. `artifacts` is where it stores artifacts; empty means its volume.

    Credentials for that store, or for an external registry, are variables (MLFLOW_TRACKING_TOKEN, AWS_ACCESS_KEY_ID
    ...) in the optional Secret `shiplift-artifacts`.
    """

    enabled: bool = True
    uri: str = ""
    storage: Storage = Storage()
    database: Database = Database()
    artifacts: str = ""
    allowed_hosts: tuple[str, ...] = ()
    clients: tuple[Client, ...] = ()
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
    """The receiver of webhooks. `deliveries_per_minute` applies per replica and source address: `triggers.settings`."""

    replicas: Count = 2
    deliveries_per_minute: int = Field(600, ge=1)
    trusted_proxies: tuple[str, ...] = ()
    resources: Resources = Resources(cpu="50m", memory="128Mi", memory_limit="512Mi")


class ReconcilerValues(Record):
    """The reconciler: every `every_s` seconds it starts releases whose webhook was lost; see `triggers.settings`.

    It asks git hosts every `git_every_s`, and waits `git_grace_s` for a push's webhook.
    """

    every_s: float = Field(60, ge=1)
    stuck_s: float = Field(120, ge=0)
    unschedulable_s: float = Field(120, ge=0)
    full_s: float = Field(3600, ge=0)
    git_every_s: float = Field(60, ge=1)
    git_grace_s: float = Field(60, ge=0)
    resources: Resources = Resources(cpu="20m", memory="128Mi", memory_limit="512Mi")


class Operator(Record):
    """The operator, which makes production match the TritonServices.

    With `read_nodes`, a ClusterRole lets it list the cluster's nodes. If a service has a single pod on a cordoned node,
    the operator can then start another before that one is evicted. Without it, the eviction waits until the service is
    scaled.

    The operator keeps copies of the packages in production, of at most `packages_gb`, so that pods can start while the
    registry is down. They are in an emptyDir or, with `storage_class`, on a volume that outlives the operator's pod.
    """

    read_nodes: bool = False
    packages_gb: int = Field(20, ge=1, le=10000)
    storage_class: Name | None = None
    resources: Resources = Resources(cpu="50m", memory="128Mi", memory_limit="512Mi")


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
    """The Gateway that splits production traffic by weight (Gateway API v1): Istio, Envoy Gateway or any other."""

    class_name: Name
    http_port: int = Field(8000, ge=1, le=65535)
    grpc_port: int = Field(8001, ge=1, le=65535)
    annotations: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        if self.http_port == self.grpc_port:
            raise ValueError("http_port and grpc_port must differ")
        return self


class Activator(Record):
    """The activator, which holds requests to services that are scaled to zero (`spec.scaling.toZero`).

    It runs in the serving namespace. Each of its pods holds at most `requests` per service, and `held_mb` MiB in total.
    A request waits for at most `hold_s`.
    """

    replicas: Count = 2
    requests: int = Field(100, ge=1, le=900)
    held_mb: int = Field(64, ge=1, le=4096)
    hold_s: float = Field(60, ge=1, le=240)
    resources: Resources = Resources(cpu="20m", memory="96Mi", memory_limit="512Mi")


class ScoringValues(Record):
    """The server of MLflow's scoring protocol (`/models/NAME/invocations`), in the serving namespace.

    `key_secret` names a Secret there, whose `key` clients must send as their bearer token; None: who can reach it may
    use the models. With `gateway`, it answers there, too.
    """

    replicas: Count = 2
    key_secret: Name | None = None
    resources: Resources = Resources(cpu="50m", memory="192Mi", memory_limit="1Gi")


class Page(Record):
    """The live page, as Service `page` in Shiplift's namespace: everybody who can reach it sees releases and reports.

    It only shows. People act with `shiplift open --engine argo`, which uses their own kubeconfig. `hosts` are the names
    under which browsers open it, such as that of an Ingress or a route of yours; it answers under no others. `url` is
    the address to which events, descriptions in MLflow and reports link; its host is one of those names.
    """

    hosts: tuple[Name, ...] = ()
    url: str = Field("", pattern=r"^(https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._/-]*)?)?$")

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts, and that of the address."""
        host = urlsplit(self.url).hostname
        return tuple(dict.fromkeys((*self.hosts, *([host] if host else []))))

    resources: Resources = Resources(cpu="20m", memory="192Mi", memory_limit="1Gi")


class Capture(Record):
    """What keeps the requests and answers that specs ask to capture: one pod, with rows of at most `size_gb` together.

    They are on a volume of `storage_class`, which outlives the pod. Without one, in an emptyDir, they go with it.
    """

    size_gb: int = Field(20, ge=1, le=10000)
    storage_class: Name | None = None
    resources: Resources = Resources(cpu="50m", memory="192Mi", memory_limit="2Gi")


class Ingress(Record):
    """Access from outside on clusters without the Gateway API: HTTP at `host`, gRPC at `MODEL.host`, without weights.

    `tls_secret` names a Secret in the serving namespace with the certificate: many controllers need TLS for gRPC.
    """

    class_name: Name
    host: Name
    tls_secret: Name | None = None
    annotations: dict[str, str] = Field(default_factory=dict)


class ServingValues(Record):
    """The pods that serve models: their resources, and how long a pod may take to become ready.

    `images` lists further images that may run there, beside `images.server` and those of `targets`: a spec that defines
    a target itself may name one. `sharing` configures servers with several models.
    """

    cpu: Quantity = "250m"
    memory_limit: Quantity = "2Gi"
    ready_timeout_s: int = Field(180, ge=10, le=3600)
    images: tuple[Image, ...] = ()
    quota: dict[str, Quantity] = Field(default_factory=dict)
    sharing: Sharing = Sharing()


class Monitoring(Record):
    """Monitoring. `prometheus` is the address at which KEDA reaches the Prometheus that scrapes the models.

    `labels` are those by which the Prometheus operator selects monitors and rules, if it does not select all.
    `pod_monitors` adds PodMonitors for Shiplift's own pods, which needs the Prometheus operator. Monitors, alerts and
    dashboards of models need no setting: they are created if the cluster has their kinds.
    """

    prometheus: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    pod_monitors: bool = False

    @model_validator(mode="after")
    def _check_address(self) -> Self:
        parts = urlsplit(self.prometheus)
        if self.prometheus and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("`prometheus` must begin with http:// or https:// and include a host")
        if parts.username or parts.password:
            raise ValueError("`prometheus` contains credentials: use an address inside the cluster that needs none")
        return self


class StageSize(Record):
    """The resources of a stage's pods. They replace those in `pipelines.release`; None keeps these."""

    cpu: Quantity | None = None
    memory: Quantity | None = None


class Keep(Record):
    """How long Workflows and finished pods are kept, in seconds. The registry keeps the results permanently."""

    workflows_s: int = Field(7 * 86400, ge=60)
    pods_s: int = Field(300, ge=0)


class AdmissionPolicies(Record):
    """Admission policies: the API server checks what the pipeline's accounts create (Kubernetes 1.30 or newer)."""

    policies: bool = True


class Network(Record):
    """Network policies, for clusters whose network enforces them.

    `api_server` lists the API server's addresses as networks (CIDR): `kubectl get endpoints kubernetes`. If it is
    empty, `install` asks the cluster, while rendered files let pods that load models reach ports 443 and 6443 anywhere.
    `store_ports` lists the ports of an external object store.
    """

    policies: bool = True
    store_ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = (443,)
    api_server: tuple[Annotated[str, Field(pattern=r"^[0-9a-fA-F:.]+/[0-9]{1,3}$")], ...] = ()


class Events(EventSettings):
    """Who is told of releases.

    The keys of the Secret `secret`, which the user creates in the pipeline's namespace, are files in
    `/etc/shiplift/events`: `url_file` and `secret_file` of a target may name them.
    """

    secret: Name | None = None

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        for target in self.targets:
            if target.url_env or target.secret_env:
                raise ValueError(f"target {target.name!r}: on a cluster use url_file and secret_file in {EVENTS}")
            if target.hook:
                raise ValueError(f"target {target.name!r}: a cluster tells no hooks yet")
        return self

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports of the targets, for the network policy; 443 where the address is in a file."""
        urls = (urlsplit(target.url or "https://") for target in self.targets)
        return tuple(sorted({url.port or (80 if url.scheme == "http" else 443) for url in urls}))


_STAGES = {
    stage.name: stage for stage in (*RELEASE.flat(), *PREDICT.flat(), *SINGLE, RELEASE.on_exit) if stage is not None
}


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
    data_claim: Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$")] = ""
    receiver: Receiver = Receiver()
    reconciler: ReconcilerValues = ReconcilerValues()
    operator: Operator = Operator()
    events: Events = Events()
    repositories: tuple[Annotated[GitRepository, AfterValidator(_checked)], ...] = ()
    gateway: Gateway | None = None
    ingress: Ingress | None = None
    activator: Activator | None = None
    scoring: ScoringValues | None = None
    page: Page | None = None
    capture: Capture | None = None
    serving: ServingValues = ServingValues()
    monitoring: Monitoring = Monitoring()
    targets: tuple[Target, ...] = ()
    policy: SitePolicy = SitePolicy()
    stages: Annotated[dict[str, StageSize], AfterValidator(_known)] = Field(default_factory=dict)
    parallel_releases: Count = 10
    keep: Keep = Keep()
    network: Network = Network()
    # Our namespaces' Pod Security level requires the runtime's default seccomp profile, and that forbids containers to
    # make namespaces. A stage runs in a container of its own anyway, and what it could steal is in another.
    sandbox: SandboxSettings = SandboxSettings(allow_without=("namespaces",))
    admission: AdmissionPolicies = AdmissionPolicies()

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
        if self.gateway and self.ingress:
            raise ValueError("`gateway` and `ingress` exclude each other: a gateway splits traffic, an Ingress can't")
        if self.activator and not self.gateway:
            raise ValueError("`activator` needs `gateway`, whose routes lead to it while a service has no pods")
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
        # In our own MLflow, artifacts go below the default experiment, which only releases may write to. A path outside
        # of experiments would be open to MLflow's administrator alone.
        folder = "0/shiplift" if self.mlflow.enabled else "shiplift"
        return f"{scheme}://{parts.netloc}/{folder}"

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
            ingress=self._ingress,
            ready_timeout_s=self.serving.ready_timeout_s,
            server_cpu_request=self.serving.cpu,
            server_memory_limit=self.serving.memory_limit,
            packages_uri=f"mlflow-artifacts://packages.{self.namespace}.svc:{PACKAGES_PORT}",
            capture_uri=f"http://capture.{self.namespace}.svc:{CAPTURE_PORT}" if self.capture else "",
            prometheus=self.monitoring.prometheus,
            monitoring_labels=self.monitoring.labels,
            activator=ActivatorRef(hold_s=self.activator.hold_s) if self.activator else None,
            sharing=self.serving.sharing,
            allow_without=tuple(name for name in self.sandbox.allow_without if name != "namespaces"),
        )
        return Site(
            home=HOME,
            registry_uri=self.registry_uri,
            artifacts_uri=self.artifacts,
            server_environment=SERVER_ENVIRONMENT,
            modelopt=IMAGE_PYTHON if self.images.gpu else "",
            sandbox=self.sandbox,
            holder=self.holder,
            page=self.page.url.rstrip("/") if self.page else "",
            policy=self.policy,
            prometheus=self.monitoring.prometheus,
            place=cluster,
        )

    @property
    def _ingress(self) -> IngressRef | None:
        if self.ingress is None:
            return None
        return IngressRef(
            class_name=self.ingress.class_name,
            host=self.ingress.host,
            tls_secret=self.ingress.tls_secret or "",
            annotations=self.ingress.annotations,
        )

    @property
    def holder(self) -> str:
        """The name of this installation in the registry's lease."""
        return f"cluster-{self.namespace}-{self.serving_namespace}"

    @property
    def triggers(self) -> TriggerSettings:
        """The settings of the receiver, the reconciler and the pod that processes a git push."""

        def files(name: str) -> tuple[Path, ...]:
            return (Path(WEBHOOKS) / name, Path(WEBHOOKS) / f"{name}-previous")

        return TriggerSettings(
            namespace=self.namespace,
            registry_uri=self.registry_uri,
            holder=self.holder,
            secrets=SecretFiles(mlflow=files("mlflow"), github=files("github"), gitlab=files("gitlab")),
            repositories=tuple(repository.repository for repository in self.repositories),
            events=EventSettings.model_validate(self.events.model_dump(exclude={"secret"})),
            limits=DeliveryLimits(deliveries_per_minute=self.receiver.deliveries_per_minute),
            receiver=Listening(trusted_proxies=self.receiver.trusted_proxies),
            reconciler=Reconciling(
                every_s=self.reconciler.every_s,
                stuck_s=self.reconciler.stuck_s,
                unschedulable_s=self.reconciler.unschedulable_s,
                full_s=self.reconciler.full_s,
                git_every_s=self.reconciler.git_every_s,
                git_grace_s=self.reconciler.git_grace_s,
                webhook_url=f"http://receiver.{self.namespace}.svc/webhooks/mlflow",
            ),
        )

    @property
    def template_settings(self) -> TemplateSettings:
        """The settings of the WorkflowTemplates."""
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
            gpu_image=self.images.gpu,
            data_claim=self.data_claim,
        )

    @property
    def git_secrets(self) -> tuple[str, ...]:
        """The Secrets of the repositories, mounted below `/etc/shiplift/git` in the pods that read them."""
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
    body = load_mapping(text, "the values file", by_owner=True)
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
