"""The `TritonService`s of a namespace, as a promotion writes them and all others read them.

Their answer to "what serves?" is what the operator saw on the data plane, not what a route says.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shiplift.runtime.base.names import dns_name
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes.client import MANAGER, KubernetesClient, managers
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.kinds import GRPC_ROUTE, SERVICE, TRITON_SERVICE
from shiplift.runtime.serving.kubernetes.objects.front import weights_of
from shiplift.runtime.serving.operator.resources import (
    ConditionType,
    RevisionSpec,
    RolloutSpec,
    ServiceSpec,
    ServiceStatus,
    revision_object,
    service_object,
    status_of,
)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A `TritonService`: what should serve, and what the operator last saw.

    `generation` counts the changes of the spec. `scaled`: another field manager owns the number of replicas.
    """

    spec: ServiceSpec
    status: ServiceStatus
    generation: int
    scaled: bool

    @property
    def current(self) -> bool:
        """Whether the status is about the current spec."""
        return self.status.observed_generation >= self.generation

    @property
    def version(self) -> int:
        """The model version that serves most of the traffic; 0 if none does."""
        return self.status.version if self.status.revision else 0

    @property
    def revisions(self) -> frozenset[str]:
        """The revisions that should serve or have a share of the traffic, even one of 0."""
        names = {self.spec.revision, self.status.revision, *(weight.revision for weight in self.status.weights)}
        return frozenset(names - {""})

    def serves_only(self, revision: str) -> bool:
        """Whether a revision was seen to answer every request."""
        shares = {weight.revision: weight.percent for weight in self.status.weights if weight.percent}
        wanted = self.current and self.spec.revision == revision and self.status.holds(ConditionType.READY)
        return wanted and shares == {revision: 100}


def of_object(body: Object) -> Declared:
    """A `TritonService` as Kubernetes returns it."""
    meta = body["metadata"]
    return Declared(
        spec=ServiceSpec.model_validate(body["spec"]),
        status=status_of(body),
        generation=int(meta.get("generation", 1)),
        scaled=bool(managers(body, "replicas") - {MANAGER}),
    )


def find(api: KubernetesClient, model: str) -> Declared | None:
    """A model's service in the client's namespace; None if it does not exist."""
    body = api.get(TRITON_SERVICE, dns_name(model))
    return of_object(body) if body else None


def everything(api: KubernetesClient) -> Iterator[Declared]:
    """Every service in the client's namespace; none if the cluster doesn't have the kind."""
    if api.serves(TRITON_SERVICE):
        yield from (of_object(body) for body in api.each(TRITON_SERVICE))


def versions(services: Iterable[Declared]) -> dict[str, int]:
    """The version with the largest share of each model's traffic; 0 if none has any."""
    return {service.spec.model: service.version for service in services}


def weights_before_services(api: KubernetesClient, cluster: Cluster, model: str) -> dict[str, int]:
    """The traffic shares that a Shiplift without `TritonService`s gave a model's packages, in percent."""
    front = api.get(GRPC_ROUTE if cluster.gateway else SERVICE, dns_name(model))
    return weights_of(front) if front else {}


def in_use(api: KubernetesClient, cluster: Cluster, model: str) -> frozenset[str]:
    """The names of all packages that production serves or should serve, whatever their shares."""
    service = find(api, model)
    return service.revisions if service else frozenset(weights_before_services(api, cluster, model))


def declare(
    api: KubernetesClient, model: str, name: str, revision: RevisionSpec, *, replicas: int | None, rollout: RolloutSpec
) -> Declared:
    """Writes what should serve: first the revision of this name, then the name into the model's service.

    Fields that are not written here (`production`, `scaling`, `slo`, `heartbeat`) keep the values that users set, and
    so does the number of replicas if it is None: server-side apply leaves the fields of other managers alone.
    """
    api.apply(revision_object(name, api.namespace, revision))
    return want(api, model, name, replicas=replicas, rollout=rollout)


def want(api: KubernetesClient, model: str, revision: str, *, replicas: int | None, rollout: RolloutSpec) -> Declared:
    """Writes the name of a revision into a model's service."""
    spec = ServiceSpec(model=model, revision=revision, replicas=replicas or 1, rollout=rollout)
    body = service_object(dns_name(model), api.namespace, spec)
    kept = {"model", "revision", "rollout", *(["replicas"] if replicas else [])}
    return of_object(api.apply({**body, "spec": {name: body["spec"][name] for name in body["spec"] if name in kept}}))
