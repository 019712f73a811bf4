"""Production on a cluster: a promotion writes what should serve into a `TritonService`, and waits for the operator.

The operator starts the pods, moves the traffic share by share, and reports in the status what it saw. If it gives up,
the service is set back to the previous revision. Every method can be killed at any line and called again.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from shiplift.runtime.base.errors import (
    Aborted,
    CanaryFailed,
    GoldenMismatch,
    PromotionConflict,
    ServerFailed,
    ShipliftError,
    Temporary,
)
from shiplift.runtime.base.names import dns_name, serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.records.baking import Baking
from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.records.deployment import Endpoint
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.promotion import Abort, Beside, Moving
from shiplift.runtime.records.retirement import Traffic
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.serving.abort import aborted
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Conflict
from shiplift.runtime.serving.kubernetes.kinds import DEPLOYMENT, TRITON_REVISION, TRITON_SERVICE
from shiplift.runtime.serving.kubernetes.lease import held
from shiplift.runtime.serving.kubernetes.objects.front import hostnames
from shiplift.runtime.serving.kubernetes.objects.names import (
    GRPC,
    HTTP,
    LABEL,
    revision_name,
    revision_of_group,
    version_with_most,
)
from shiplift.runtime.serving.operator import declared
from shiplift.runtime.serving.operator.declared import AT_ONCE, Declared
from shiplift.runtime.serving.operator.deletions import WITHDRAWN
from shiplift.runtime.serving.operator.resources import (
    MODEL,
    SERVICE_KIND,
    Activation,
    ConditionType,
    Reason,
    RolloutSpec,
    ServiceStatus,
    revision_of,
)
from shiplift.runtime.spec.serving_settings import Rollout

_POLL_S, _TRIES = 0.5, 20
_SILENT_S = 60.0  # how long the operator may take to look at a new spec
_STILL_S = 180.0  # how long nothing may change, on top of the time for pods and shares
_RETIRE_S = 120.0
_COUNTED_S = 200.0  # the operator counts once a minute, and needs two readings
_ERRORS: dict[Reason, type[ShipliftError]] = {
    Reason.START_FAILED: ServerFailed,
    Reason.WRONG_ANSWERS: GoldenMismatch,
    Reason.CANARY_FAILED: CanaryFailed,
    Reason.TRAFFIC_NOT_MOVED: Temporary,
}


class ClusterProduction:
    """The production of a cluster. See `runtime.serving.production.Production`."""

    def __init__(self, site: Site, cluster: Cluster, api: KubernetesClient | None = None) -> None:
        self._site = site
        self._cluster = cluster
        self._api = api or KubernetesClient(cluster.serving_namespace)

    @contextmanager
    def lock(self, model: str) -> Iterator[None]:
        """A lock that allows one promotion or rollback of a model at a time, in the whole cluster."""
        with held(self._api, f"shiplift-{dns_name(model)}"):
            yield

    def endpoint(self, model: str) -> Endpoint:
        """The addresses at which a model answers, with its name in the cluster's DNS."""
        host = hostnames(model, self._cluster)[1]
        return Endpoint(http=f"http://{host}:{HTTP}/v2/models/{serving_name(model)}", grpc=f"{host}:{GRPC}")

    def serving(self, model: str) -> int:
        """The version with the largest share of a model's traffic; 0 if none has any."""
        service = declared.find(self._api, model)
        if service is not None:
            return service.version
        return version_with_most(model, declared.weights_before_services(self._api, self._cluster, model))

    def quarantine(self, model: str, version: int) -> str:  # noqa: ARG002 - as everywhere
        """Nothing: a version's pods end with it. While it serves, its `TritonService` says how often they restarted."""
        return ""

    def serves(self, package: Package, others: Sequence[Beside] = ()) -> bool:
        """Whether this package, with the others, was seen to answer every request, captured as it says."""
        service, name = declared.find(self._api, package.model), _revision(package, others)
        return service is not None and service.serves_only(name) and self._captures_as(package, name)

    def move(
        self,
        package: Package,
        rollout: Rollout,
        capacity: Capacity | None = None,
        others: Sequence[Beside] = (),
        requested_at: float | None = None,
    ) -> None:
        """Asks for the traffic to be moved to a package and the others, and waits until it is."""
        name = _revision(package, others)
        current = declared.find(self._api, package.model)
        promotion = None if requested_at is None else self._begun(current, package, name, requested_at)
        replicas = None if current and current.scaled else rollout.replicas
        shares = RolloutSpec(canary_percent=rollout.canary_percent, hold_seconds=rollout.hold_s)
        try:
            revision = revision_of(package, self._site.artifacts_uri, capacity, others)
            declared.declare(
                self._api, package.model, name, revision, replicas=replicas, rollout=shares, promotion=promotion
            )
            self._wait(package.model, name, patience_s=self._cluster.ready_timeout_s + rollout.hold_s + _STILL_S)
        except Aborted:
            raise
        except BaseException:
            with suppress(ShipliftError):  # the first error says more
                self._give_back(package.model, name, current)
            raise

    def moving(self, model: str) -> Moving | None:
        """The promotion whose traffic moves, or that ended and is not concluded; None if there is none."""
        service = declared.find(self._api, model)
        return service.promotion if service else None

    def abort(self, model: str, order: Abort) -> Moving | None:
        """Orders that the traffic of a promotion goes back, and sets the service back in the same write."""
        return declared.abort(self._api, model, order)

    def commit(self, model: str) -> None:
        """Ends the time in which a promotion can be aborted.

        Raises:
            Aborted: it was, or someone set the service back by hand.
        """
        known = declared.commit(self._api, model)
        service = declared.find(self._api, model)
        if known and service:
            self._require_not_aborted(service)

    def bake(self, baking: Baking) -> None:
        """Notes on the service that its revision is watched; the operator keeps the revision before it ready."""
        service = declared.find(self._api, baking.model)
        before = service.promotion.before if service and service.promotion else ""
        if service and before:
            changes = {"package": service.spec.revision, "before": before, "former": None}
            self._tried(lambda: declared.bake(self._api, baking.model, baking.model_copy(update=changes)))

    def baking(self, model: str) -> Baking | None:
        """The last bake of a model, over or not; None if it had none."""
        service = declared.find(self._api, model)
        return service.baking if service else None

    def baked(self, baking: Baking) -> None:
        """Notes how a bake ended, unless another one has taken its place."""
        self._tried(lambda: declared.baked(self._api, baking))

    def settle(self, model: str, version: int) -> None:
        """Forgets the promotion of a version, whose release is concluded."""
        declared.settle(self._api, model, version)

    def withdraw(self, model: str) -> None:
        """Deletes a model's service, and all that it owns. Its pods answer the requests that they have."""
        self._delete(model)
        deadline = time.monotonic() + _RETIRE_S
        while time.monotonic() < deadline and declared.find(self._api, model) is not None:
            time.sleep(_POLL_S)

    def traffic(self, model: str) -> Traffic:
        """The requests that clients sent to a model's pods in the last minute or two, as the operator counted them."""
        deadline = time.monotonic() + _COUNTED_S
        while True:
            service = declared.find(self._api, model)
            if service is None or service.status.activation is Activation.ASLEEP:
                return Traffic()
            per_minute = service.status.client_requests_per_minute
            if per_minute is not None:
                return Traffic(requests=math.ceil(per_minute), window_s=60, last_at=time.time() if per_minute else 0)
            if time.monotonic() >= deadline:
                return Traffic(unknown="the operator, which counts them once a minute, has not counted them yet")
            progress("waiting for the operator to count the requests of clients")
            time.sleep(_POLL_S)

    def drop(self, package: Package) -> None:
        """Deletes the revisions of a version that does not serve, so that none of them can be named again."""
        service = declared.find(self._api, package.model)
        used = service.revisions if service else frozenset()
        for body in self._api.find(TRITON_REVISION, f"{MODEL}={dns_name(package.model)}"):
            name, own = body["metadata"]["name"], (body.get("spec") or {}).get("package") or {}
            if name not in used and own.get("version") == package.version and own.get("model") == package.model:
                self._api.delete(TRITON_REVISION, name)

    def retire(self, model: str) -> None:
        """Waits until the operator has stopped the pods without traffic; after a while it does so on its own."""
        deadline = time.monotonic() + _RETIRE_S
        while time.monotonic() < deadline and (idle := self._idle(model)):
            progress(f"waiting for the last requests of {', '.join(sorted(idle))}")
            time.sleep(_POLL_S)

    def declare(
        self, package: Package, replicas: int, capacity: Capacity | None = None, others: Sequence[Beside] = ()
    ) -> bool:
        """Creates a model's service if it has none: it was promoted before services existed, or someone deleted it.

        Returns whether it was created.
        """
        if declared.find(self._api, package.model) is not None:
            return False
        revision = revision_of(package, self._site.artifacts_uri, capacity, others)
        name = _revision(package, others)
        declared.declare(self._api, package.model, name, revision, replicas=replicas, rollout=AT_ONCE)
        return True

    def _tried(self, write: Callable[[], None]) -> None:
        """Writes, again if someone else did in between.

        Raises:
            Temporary: others write all the time.
        """
        for _ in range(_TRIES):
            try:
                return write()
            except Conflict:
                time.sleep(_POLL_S)
        raise Temporary("a TritonService changes all the time", do="Run the same command again.")

    def _begun(self, current: Declared | None, package: Package, revision: str, requested_at: float) -> Moving:
        """The promotion that begins. One that was killed and begins again keeps what is known of it.

        Raises:
            Aborted: a person has ended it, or set the service back by hand.
        """
        known = current.promotion if current else None
        if current and known and known.is_of(package.version, requested_at) and known.revision == revision:
            self._require_not_aborted(current)
            return known
        before = (current.status.revision or current.spec.revision) if current else ""
        return Moving(
            version=package.version,
            requested_at=requested_at,
            revision=revision,
            before="" if before == revision else before,
        )

    def _require_not_aborted(self, service: Declared) -> None:
        """Raises `Aborted` if a person has ended the promotion of a service, with a command or by setting it back."""
        known = service.promotion
        if known and known.set_back(service.spec.revision):
            why = f"TritonService {dns_name(service.spec.model)} was set back"
            known = declared.abort(self._api, service.spec.model, Abort(by="someone", reason=why, at=time.time()))
        if known and known.abort:
            raise aborted(known.abort, service.spec.model, known.version)

    def _wait(self, model: str, revision: str, *, patience_s: float) -> None:
        watch = _Watch(model=model, patience_s=patience_s)
        while True:
            service = declared.find(self._api, model)
            if service:
                self._require_not_aborted(service)
            if service is None or service.spec.revision != revision:
                now = f"names {service.spec.revision}" if service else "is gone"
                raise PromotionConflict(
                    f"TritonService {dns_name(model)} should name {revision}, but someone changed it: it {now}",
                    do="What it names serves. Rerun the release if the version should serve after all.",
                )
            if service.serves_only(revision):
                return
            watch.look(service)
            time.sleep(_POLL_S)

    def _give_back(self, model: str, revision: str, before: Declared | None) -> None:
        """Sets the service back to the previous revision; without one, deletes the service and all that it owns."""
        service = declared.find(self._api, model)
        if service is None or service.spec.revision != revision:
            return
        candidates = [service.status.revision, *([before.spec.revision, before.status.revision] if before else [])]
        name = next((name for name in candidates if name not in ("", revision)), "")
        if name:
            replicas = None if service.scaled else before.spec.replicas if before else service.spec.replicas
            declared.want(self._api, model, name, replicas=replicas, rollout=AT_ONCE)
        else:
            self._delete(model)

    def _delete(self, model: str) -> None:
        """Deletes a model's service, and says first that this is not a deletion by hand."""
        self._api.merge(TRITON_SERVICE, dns_name(model), {"metadata": {"annotations": {WITHDRAWN: "true"}}})
        self._api.delete(TRITON_SERVICE, dns_name(model))

    def _captures_as(self, package: Package, revision: str) -> bool:
        """Whether a revision says the same of capture as a package: a rerun may change that, and nothing else."""
        body = self._api.get(TRITON_REVISION, revision)
        noted = ((body or {}).get("spec", {}).get("package") or {}).get("capturing")
        return body is None or noted == (
            package.capturing.model_dump(mode="json", exclude_none=True) if package.capturing else None
        )

    def _idle(self, model: str) -> set[str]:
        """The revisions that still run for the model's service but should no longer serve."""
        service = declared.find(self._api, model)
        if service is None:
            return set()
        bodies = self._api.find(DEPLOYMENT, f"{LABEL}model={dns_name(model)}")
        owned = {
            revision_of_group(body["metadata"]["name"])
            for body in bodies
            if any(owner["kind"] == SERVICE_KIND for owner in body["metadata"].get("ownerReferences") or ())
        }
        return (owned | service.revisions) - {service.spec.revision}


def _revision(package: Package, others: Sequence[Beside]) -> str:
    return revision_name([package, *(other.package for other in others)])


@dataclass(kw_only=True)
class _Watch:
    """Tracks how long the operator has been silent about a service, or at the same point of a rollout."""

    model: str
    patience_s: float
    changed_at: float = field(default_factory=time.monotonic)
    last: ServiceStatus | None = None

    def look(self, service: Declared) -> None:
        """Reports the progress of a rollout.

        Raises:
            ServerFailed, GoldenMismatch, CanaryFailed, Temporary: it failed, or the operator makes no progress.
        """
        status = service.status.model_copy(update={"heartbeat_time": ""})
        if status != self.last:
            self.last, self.changed_at = status, time.monotonic()
        waited = time.monotonic() - self.changed_at
        if not service.current:
            progress(f"waiting for the operator to see TritonService {dns_name(self.model)}")
            if waited > _SILENT_S:
                raise self._silent(f"has not looked at it for {waited:.0f} s")
            return
        stalled, working = (status.condition(kind) for kind in (ConditionType.STALLED, ConditionType.RECONCILING))
        if stalled and stalled.status == "True":
            raise _ERRORS.get(stalled.reason, ServerFailed)(
                stalled.message or str(stalled.reason),
                do="The previous version has the traffic. Fix the problem, then rerun the release.",
            )
        if waited > self.patience_s:
            raise self._silent(f"has reported nothing new for {waited:.0f} s")
        percent = next((each.percent for each in status.weights if each.revision == service.spec.revision), 0)
        progress(working.message if working and working.message else "waiting for the operator", percent / 100)

    def _silent(self, what: str) -> Temporary:
        return Temporary(
            f"TritonService {dns_name(self.model)} should change, but the operator {what}",
            do="Check that Deployment `operator` runs in the pipeline's namespace, read its logs, rerun the release.",
        )
