"""The two custom resources as records: `TritonService`, what should serve, and `TritonRevision`, an immutable package.

A promotion creates a revision, then writes its name into `spec.revision` of the model's service, and waits for the
status. Everything else (pods, Services, routes) belongs to the operator. The definitions that the cluster validates
against are in `templates/kubernetes/resources.yaml.j2`; a test keeps the fields of both the same.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from shiplift.runtime.base.names import dns_name
from shiplift.runtime.records.baking import Baking
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.promotion import Beside, Moving
from shiplift.runtime.records.shadowing import Mirror
from shiplift.runtime.serving.kubernetes.objects.names import LABEL

MODEL = f"{LABEL}model"  # on everything that belongs to a model's service
PROMOTION = f"{LABEL}promotion"  # an annotation: the promotion whose traffic moves, as JSON
SHADOW = f"{LABEL}shadow"  # an annotation: the challenger that gets copies of requests, as JSON
BAKING = f"{LABEL}bake"  # an annotation: the bake of the version that serves, or the last one, as JSON
GROUP, VERSION = "shiplift.dev", "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
MOST_GROUPS = 16  # of a revision
SERVICE_KIND, REVISION_KIND = "TritonService", "TritonRevision"


class Resource(Record):
    """A record in Kubernetes' spelling: `canary_percent` is `canaryPercent` there.

    Unknown fields are left out. They come from a newer definition that another installation in the cluster has applied:
    the API server refuses or drops fields that no definition has.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")

    def to_object(self) -> dict[str, Any]:
        """The fields as they are in a Kubernetes object."""
        fields: dict[str, Any] = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return fields


class RolloutSpec(Resource):
    """The traffic shares that a new revision gets step by step, each held for `hold_seconds`."""

    canary_percent: tuple[int, ...] = (10, 50)
    hold_seconds: float = Field(10, ge=0, le=86400)


class HeartbeatSpec(Resource):
    """How often each pod gets a golden request whose answer is checked; 0: never."""

    interval_seconds: float = Field(5, ge=0, le=3600)


class ScalingSpec(Resource):
    """The range in which an autoscaler chooses the number of pods; without `max_replicas` there is no autoscaler.

    `min_replicas` counts if it is more than the service's `replicas`. `target_cpu_utilization_percentage` is relative
    to the CPU that a pod requests; it counts only if requests can't be the signal, as on a cluster without KEDA.
    With `to_zero`, all pods stop after `idle_seconds` without a request; the next request is held until a pod is ready.
    """

    to_zero: bool = False
    idle_seconds: float = Field(300, ge=10, le=86400)
    min_replicas: int | None = Field(None, ge=1, le=1000)
    max_replicas: int | None = Field(None, ge=1, le=1000)
    target_cpu_utilization_percentage: int = Field(70, ge=1, le=10000, alias="targetCPUUtilizationPercentage")


class SloSpec(Resource):
    """What clients may rely on: alerts fire when the error budget burns.

    `objective` is the percentage of requests that should be answered without an error. `p99_milliseconds` is the
    servers' limit for the 99th percentile; by default, the limit within which the revision's capacity was measured.
    """

    objective: float = Field(99.9, gt=0, lt=100)
    p99_milliseconds: float | None = Field(None, gt=0)


class ServiceSpec(Resource):
    """What should serve under a model's name.

    `revision` names a `TritonRevision` in the same namespace. `replicas` is the least number of serving pods;
    `production` raises it to three. `placement` says whether its pods may serve other models too; None: the
    installation's default. Of the revisions that no longer serve, the newest `revision_history_limit` are kept.
    """

    model: str = Field(min_length=1)
    revision: str = Field(min_length=1)
    replicas: int = Field(1, ge=1, le=1000)
    production: bool = False
    rollout: RolloutSpec = RolloutSpec()
    heartbeat: HeartbeatSpec = HeartbeatSpec()
    revision_history_limit: int = Field(10, ge=0, le=1000)
    scaling: ScalingSpec = ScalingSpec()
    slo: SloSpec = SloSpec()
    placement: Literal["own", "shared", "auto"] | None = None

    @property
    def least_replicas(self) -> int:
        """The least number of pods that serve."""
        replicas = max(self.replicas, self.scaling.min_replicas or 1) if self.scaling.max_replicas else self.replicas
        return max(replicas, 3) if self.production else replicas

    @model_validator(mode="after")
    def _range(self) -> Self:
        most = self.scaling.max_replicas
        if self.scaling.to_zero and self.production:
            raise ValueError("scaling.toZero leaves a service without pods, which production forbids: leave one out")
        if most is not None and most < self.least_replicas:
            raise ValueError(
                f"scaling.maxReplicas is {most}, less than the {self.least_replicas} pods that serve at least: raise it"
            )
        return self


class CapacitySpec(Resource):
    """The measured capacity of one pod, in requests per second.

    `peak_per_second` is its throughput when it always has work. `within_slo_per_second` is the highest rate of random
    arrivals that it answers within `p99_milliseconds` (absent: without a limit). `memory_mebibytes` is the most memory
    that its server used.
    """

    peak_per_second: float = Field(gt=0)
    within_slo_per_second: float = Field(gt=0)
    p99_milliseconds: float | None = Field(None, gt=0)
    memory_mebibytes: float | None = Field(None, gt=0)

    @property
    def record(self) -> Capacity:
        """The same as the record that the autoscaler's rule uses."""
        return Capacity(
            peak_per_s=max(self.peak_per_second, self.within_slo_per_second),
            within_slo_per_s=self.within_slo_per_second,
            p99_ms=self.p99_milliseconds,
            memory_mb=self.memory_mebibytes,
        )


class GroupSpec(Resource):
    """The package of another target, served by its own group of pods; `artifacts_uri` defaults to the revision's."""

    package: dict[str, Any]
    artifacts_uri: str | None = Field(None, min_length=1)
    capacity: CapacitySpec | None = None


class RevisionSpec(Resource):
    """An immutable package, the artifact store that has it, and the measured capacity of a pod with it.

    `other_groups` are the same for the other targets that serve the version; None if there are none.
    """

    artifacts_uri: str = Field(min_length=1)
    package: dict[str, Any]
    capacity: CapacitySpec | None = None
    other_groups: tuple[GroupSpec, ...] | None = Field(None, max_length=MOST_GROUPS - 1)

    def parsed(self) -> Package:
        """The package.

        Raises:
            pydantic.ValidationError: this version of Shiplift can't read it.
        """
        return Package.model_validate(self.package)

    @model_validator(mode="after")
    def _same_answers(self) -> Self:
        """Checks that clients can't notice which group answers them."""
        first = self.parsed() if self.other_groups else None
        targets = [first.target] if first else []
        for group in self.other_groups or ():
            package = Package.model_validate(group.package)
            targets.append(package.target)
            if first and (why := unlike(first, package)):
                raise ValueError(f"otherGroups: the package of target {package.target} {why}")
        if len(set(targets)) < len(targets):
            raise ValueError(f"otherGroups: each target may have one group, but they are {', '.join(targets)}")
        return self


def unlike(first: Package, other: Package) -> str:
    """Why a package can't serve as a group beside another one; empty if it can."""
    if (first.model, first.version) != (other.model, other.version):
        return f"is of {other.model}/{other.version}, not of {first.model}/{first.version}"
    if first.signature != other.signature:
        return "has inputs or outputs of other names, types or shapes, so clients would need to know who answers"
    if first.stateful or other.stateful:
        return "serves sequences, whose state is on one server"
    return ""


class ConditionType(StrEnum):
    """Conditions of a service; the first three are kstatus'.

    `READY`: the spec is fulfilled, which is verified. `RECONCILING`: the operator is working on it. `STALLED`: only a
    change of the spec or of the cluster can help. `AVAILABLE`: a revision serves. `VERIFIED`: the last golden requests
    were answered correctly. `SCALING_ACTIVE`: the autoscaler sees its signal; absent without an autoscaler.
    """

    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    AVAILABLE = "Available"
    VERIFIED = "Verified"
    SCALING_ACTIVE = "ScalingActive"


class Activation(StrEnum):
    """Whether a service that may be scaled to zero has pods.

    `AWAKE`: like any other service. `DRAINING`: new requests go to the activator, and the pods finish theirs.
    `ASLEEP`: it has no pods. `WAKING`: pods start, and requests wait.
    """

    AWAKE = ""
    DRAINING = "Draining"
    ASLEEP = "ScaledToZero"
    WAKING = "Waking"


class Reason(StrEnum):
    """The reasons that the operator gives for conditions."""

    SERVING = "Serving"
    STARTING = "Starting"
    CANARY = "Canary"
    HOLDING = "Holding"
    MOVING = "Moving"
    DRAINING = "Draining"
    REPAIRING = "Repairing"
    IDLE = "Idle"
    NO_PODS = "NoPods"
    NO_REVISION = "RevisionMissing"
    INVALID_REVISION = "RevisionInvalid"
    INVALID_SPEC = "SpecInvalid"
    START_FAILED = "StartFailed"
    WRONG_ANSWERS = "WrongAnswers"
    BAKE_ALARM = "BakeAlarm"
    ROUTE_FAILED = "RouteFailed"
    CANARY_FAILED = "CanaryFailed"
    TRAFFIC_NOT_MOVED = "TrafficNotMoved"
    ANSWERS_CHECKED = "AnswersChecked"
    NOT_CHECKED = "NotChecked"
    SCALING = "Scaling"
    SCALING_ON_CPU = "ScalingOnCpu"
    AT_MAXIMUM = "AtMaximum"
    NO_METRICS = "MetricsMissing"
    NO_AUTOSCALER = "AutoscalerSilent"
    SCALED_TO_ZERO = "ScaledToZero"
    WAKING = "Waking"
    NO_ACTIVATOR = "ActivatorMissing"


class StatusCondition(Resource):
    """A condition in Kubernetes' form; `last_transition_time` is RFC 3339."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: Reason
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str = ""


class Weight(Resource):
    """A revision's share of the traffic, in percent."""

    revision: str
    percent: int = Field(ge=0, le=100)


class GroupStatus(Resource):
    """A group of the revision that serves most: its pods, and how much of the revision's traffic it gets, in percent.

    `capacity_per_second` is one pod's measured capacity within the limit; None: not measured.
    """

    name: str
    target: str = ""
    replicas: int = 0
    ready_replicas: int = 0
    percent: float = Field(0, ge=0, le=100)
    capacity_per_second: float | None = None


class ServiceStatus(Resource):
    """What the operator last saw.

    `revision` serves most of the traffic (empty: none does), `version` is its model version; `previous_revision` served
    before it. `groups` are the groups of `revision` if it has several, `targets` the same for `kubectl get`. `server`
    is the shared server that its requests go to (empty: its own pods). `isolated_revision` failed on a shared server
    and so has its own pods. `failed_revision` is the revision that this generation of the spec wanted and the operator
    gave up; `Stalled` has the reason. `activation` says whether a service that may be scaled to zero has pods.
    `p99_milliseconds` is the latency of clients' requests in the servers over the last minutes; None: too few requests.
    `client_requests_per_minute` counts the requests that were certainly not the operator's own; None: not counted yet.
    """

    observed_generation: int = 0
    revision: str = ""
    version: int = 0
    weights: tuple[Weight, ...] = ()
    weight: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    selector: str = ""
    previous_revision: str = ""
    failed_revision: str = ""
    heartbeat_time: str = ""
    server: str = ""
    isolated_revision: str = ""
    groups: tuple[GroupStatus, ...] = ()
    targets: str = ""
    activation: Activation = Activation.AWAKE
    p99_milliseconds: float | None = None
    client_requests_per_minute: float | None = None
    conditions: tuple[StatusCondition, ...] = ()

    def condition(self, kind: ConditionType) -> StatusCondition | None:
        """The condition of a type; None if it does not exist yet."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def holds(self, kind: ConditionType) -> bool:
        """Whether a condition is true."""
        condition = self.condition(kind)
        return condition is not None and condition.status == "True"


def service_object(name: str, namespace: str, spec: ServiceSpec) -> dict[str, Any]:
    """A `TritonService`."""
    return _object(SERVICE_KIND, name, namespace, spec)


def revision_object(name: str, namespace: str, spec: RevisionSpec) -> dict[str, Any]:
    """A `TritonRevision` that belongs to the history of its model's service."""
    body = _object(REVISION_KIND, name, namespace, spec)
    body["metadata"]["labels"][MODEL] = dns_name(str(spec.package.get("model", "")))
    return body


def revision_of(
    package: Package, artifacts_uri: str, capacity: Capacity | None = None, others: Sequence[Beside] = ()
) -> RevisionSpec:
    """The revision of a package, with the packages of other targets (`others`) as its other groups."""
    groups = [GroupSpec(package=_fields(each.package), capacity=_measured(each.capacity)) for each in others]
    return RevisionSpec(
        artifacts_uri=artifacts_uri,
        package=_fields(package),
        capacity=_measured(capacity),
        other_groups=tuple(groups) or None,
    )


def _fields(package: Package) -> dict[str, Any]:
    return package.model_dump(mode="json", exclude_none=True)


def _measured(capacity: Capacity | None) -> CapacitySpec | None:
    if capacity is None:
        return None
    return CapacitySpec(
        peak_per_second=round(capacity.peak_per_s, 3),
        within_slo_per_second=round(capacity.within_slo_per_s, 3),
        p99_milliseconds=capacity.p99_ms,
        memory_mebibytes=round(capacity.memory_mb, 1) if capacity.memory_mb else None,
    )


def status_of(body: dict[str, Any]) -> ServiceStatus:
    """The status of a `TritonService`; empty if it has none yet."""
    return ServiceStatus.model_validate(body.get("status") or {})


def promotion_of(body: dict[str, Any]) -> Moving | None:
    """The promotion whose traffic a `TritonService` moves; None if there is none, or if someone wrote nonsense."""
    text = (body["metadata"].get("annotations") or {}).get(PROMOTION, "")
    try:
        return Moving.model_validate_json(text) if text else None
    except ValidationError:
        return None


def mirror_of(body: dict[str, Any]) -> Mirror | None:
    """Who gets copies of a `TritonService`'s requests; None if nobody does, or if someone wrote nonsense."""
    text = (body["metadata"].get("annotations") or {}).get(SHADOW, "")
    try:
        return Mirror.model_validate_json(text) if text else None
    except ValidationError:
        return None


def baking_of(body: dict[str, Any]) -> Baking | None:
    """The last bake that a `TritonService` notes, over or not; None if there is none, or if someone wrote nonsense."""
    text = (body["metadata"].get("annotations") or {}).get(BAKING, "")
    try:
        return Baking.model_validate_json(text) if text else None
    except ValidationError:
        return None


def percent_by_revision(weights: Sequence[Weight]) -> dict[str, int]:
    """The shares by revision."""
    return {weight.revision: weight.percent for weight in weights}


def _object(kind: str, name: str, namespace: str, spec: Resource) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": "shiplift"}}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec.to_object()}
