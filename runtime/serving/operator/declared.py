"""The `TritonService`s of a namespace, as a promotion writes them and all others read them.

Their answer to "what serves?" is what the operator saw on the data plane, not what a route says.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from shiplift.runtime.base.errors import Temporary
from shiplift.runtime.base.names import dns_name
from shiplift.runtime.records.baking import Baking
from shiplift.runtime.records.promotion import Abort, Moving
from shiplift.runtime.records.shadowing import Mirror
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes.client import MANAGER, KubernetesClient, managers
from shiplift.runtime.serving.kubernetes.connection import Conflict, Object
from shiplift.runtime.serving.kubernetes.kinds import GRPC_ROUTE, SERVICE, TRITON_SERVICE
from shiplift.runtime.serving.kubernetes.objects.front import weights_of
from shiplift.runtime.serving.operator.resources import (
    BAKING,
    PROMOTION,
    SHADOW,
    ConditionType,
    RevisionSpec,
    RolloutSpec,
    ServiceSpec,
    ServiceStatus,
    baking_of,
    promotion_of,
    revision_object,
    service_object,
    status_of,
)

AT_ONCE = RolloutSpec(canary_percent=(), hold_seconds=0)
_TRIES = 20


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A `TritonService`: what should serve, and what the operator last saw.

    `generation` counts the changes of the spec. `scaled`: another field manager owns the number of replicas.
    `promotion` is the promotion whose traffic moves, or that ended and is not concluded. `baking` is the last bake.
    `resource_version` changes with every write.
    """

    spec: ServiceSpec
    status: ServiceStatus
    generation: int
    scaled: bool
    promotion: Moving | None = None
    baking: Baking | None = None
    resource_version: str = ""

    @property
    def current(self) -> bool:
        """Whether the status is about the current spec."""
        return self.status.observed_generation >= self.generation

    @property
    def bakes(self) -> bool:
        """Whether the revision that should serve bakes."""
        return self.baking is not None and self.baking.active and self.baking.package == self.spec.revision

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
        promotion=promotion_of(body),
        baking=baking_of(body),
        resource_version=str(meta.get("resourceVersion", "")),
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
    api: KubernetesClient,
    model: str,
    name: str,
    revision: RevisionSpec,
    *,
    replicas: int | None,
    rollout: RolloutSpec,
    promotion: Moving | None = None,
) -> Declared:
    """Writes what should serve: first the revision of this name, then the name into the model's service.

    Fields that are not written here (`production`, `scaling`, `slo`, `heartbeat`) keep the values that users set, and
    so does the number of replicas if it is None: server-side apply leaves the fields of other managers alone.
    """
    api.apply(revision_object(name, api.namespace, revision))
    return want(api, model, name, replicas=replicas, rollout=rollout, promotion=promotion)


def want(
    api: KubernetesClient,
    model: str,
    revision: str,
    *,
    replicas: int | None,
    rollout: RolloutSpec,
    promotion: Moving | None = None,
) -> Declared:
    """Writes the name of a revision into a model's service, and which promotion moves its traffic."""
    spec = ServiceSpec(model=model, revision=revision, replicas=replicas or 1, rollout=rollout)
    body = service_object(dns_name(model), api.namespace, spec)
    if promotion:
        body["metadata"]["annotations"] = {PROMOTION: promotion.model_dump_json()}
    kept = {"model", "revision", "rollout", *(["replicas"] if replicas else [])}
    return of_object(api.apply({**body, "spec": {name: body["spec"][name] for name in body["spec"] if name in kept}}))


# --- the promotion that moves the traffic ---


def abort(api: KubernetesClient, model: str, order: Abort) -> Moving | None:
    """Orders an abort, and sets the service back to what served before, in one write. The first order counts.

    Returns the promotion as it is then: with an `abort`, or `committed` if it is too late. None: none is under way.

    Raises:
        Temporary: among other reasons, others write the service all the time.
    """

    def change(known: Moving) -> Moving | None:
        return None if known.committed or known.abort else known.model_copy(update={"abort": order})

    return _note(api, model, change)


def commit(api: KubernetesClient, model: str) -> Moving | None:
    """Notes that a promotion can't be aborted any more, unless it was; returns the promotion as it is then."""

    def change(known: Moving) -> Moving | None:
        return None if known.committed or known.abort else known.model_copy(update={"committed": True})

    return _note(api, model, change)


def settle(api: KubernetesClient, model: str, version: int) -> None:
    """Removes what a service notes about the promotion of a version."""
    service = find(api, model)
    if service and service.promotion and service.promotion.version == version:
        api.merge(TRITON_SERVICE, dns_name(model), {"metadata": {"annotations": {PROMOTION: None}}})


# --- the shadow of what serves ---


def mirror(api: KubernetesClient, model: str, mirror: Mirror | None) -> None:
    """Notes who gets copies of a service's requests; None: nobody. Without a service, it does nothing."""
    if find(api, model) is not None:
        text = mirror.model_dump_json() if mirror else None
        api.merge(TRITON_SERVICE, dns_name(model), {"metadata": {"annotations": {SHADOW: text}}})


# --- the bake of what serves ---


def bake(api: KubernetesClient, model: str, baking: Baking) -> None:
    """Notes that a version bakes. A promotion that was killed and runs again keeps what is known of its bake."""
    service = find(api, model)
    known = service.baking if service else None
    if service and not (known and known.is_of(baking.package, baking.requested_at)):
        _write_baking(api, service, baking)


def baked(api: KubernetesClient, baking: Baking) -> None:
    """Notes what became of a bake, unless another one has taken its place.

    Raises:
        Conflict: someone else wrote the service in between.
    """
    service = find(api, baking.model)
    known = service.baking if service else None
    if service and known and known != baking and known.is_of(baking.package, baking.requested_at):
        _write_baking(api, service, baking)


def _write_baking(api: KubernetesClient, service: Declared, baking: Baking) -> None:
    meta = {"resourceVersion": service.resource_version, "annotations": {BAKING: baking.model_dump_json()}}
    api.merge(TRITON_SERVICE, dns_name(baking.model), {"metadata": meta})


def _note(api: KubernetesClient, model: str, change: Callable[[Moving], Moving | None]) -> Moving | None:
    """Changes what a service notes about its promotion, unless someone else writes the service in between."""
    for _ in range(_TRIES):
        service = find(api, model)
        if service is None or service.promotion is None:
            return None
        changed = change(service.promotion)
        if changed is None:
            return service.promotion
        try:
            api.merge(TRITON_SERVICE, dns_name(model), _patch(service, changed))
        except Conflict:
            continue
        return changed
    raise Temporary(
        f"TritonService {dns_name(model)} changed {_TRIES} times while it was written", do="Run the same command again."
    )


def _patch(service: Declared, promotion: Moving) -> Object:
    meta = {"resourceVersion": service.resource_version, "annotations": {PROMOTION: promotion.model_dump_json()}}
    if not (promotion.abort and promotion.before and service.spec.revision == promotion.revision):
        return {"metadata": meta}
    return {"metadata": meta, "spec": {"revision": promotion.before, "rollout": AT_ONCE.to_object()}}
