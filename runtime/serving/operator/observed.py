"""What the operator sees when it looks at a service: the only input of `deciding.next_action`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shiplift.runtime.records.baking import Baking
from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.shadowing import Mirror
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes.diagnosis import Diagnosis
from shiplift.runtime.serving.kubernetes.objects.names import Object, revision_of_group
from shiplift.runtime.serving.kubernetes.objects.shared import selected_server, selects_own
from shiplift.runtime.serving.operator.evidence import Evidence, Key
from shiplift.runtime.serving.operator.resources import Activation, ServiceSpec, ServiceStatus


@dataclass(frozen=True, kw_only=True)
class PodSeen:
    """A pod of a revision; `address` is its IP, `problem` why it does not run.

    `runs`: its containers have started, ready or not. `cordoned`: its node takes no more pods.
    """

    name: str
    ready: bool
    runs: bool = False
    address: str = ""
    problem: Diagnosis | None = None
    cordoned: bool = False


@dataclass(frozen=True, kw_only=True)
class RetiredPod:
    """A pod that was taken off the route at `since` (seconds since the epoch), and will be deleted."""

    name: str
    since: float


@dataclass(frozen=True, kw_only=True)
class TargetPods:
    """The pods of a revision that serve one target's package under a name of their own, and one pod's capacity."""

    name: str
    package: Package
    artifacts_uri: str
    capacity: Capacity | None = None


@dataclass(frozen=True, kw_only=True)
class RevisionSeen:
    """A `TritonRevision`: its package and the capacity of a pod with it, or why it can't be used.

    `others` are its groups besides the first, which serves `package`. `history_of` is the service whose promotion wrote
    it; empty if no promotion did. `created_at` is in seconds since the epoch.
    """

    package: Package | None = None
    artifacts_uri: str = ""
    capacity: Capacity | None = None
    others: tuple[TargetPods, ...] = ()
    problem: str = ""
    history_of: str = ""
    created_at: float = 0


@dataclass(frozen=True, kw_only=True)
class HeldRequests:
    """The activator's report on a service: how many of its requests it holds, and when the last one came.

    `answered_at` is when the activator last answered. Both times are in seconds since the epoch; 0: never.
    """

    held: int = 0
    came_at: float = 0
    answered_at: float = 0


@dataclass(frozen=True, kw_only=True)
class GatewaySeen:
    """Whether the gateway takes connections, and since when (seconds since the epoch; 0: it always did)."""

    accepts: bool = True
    changed_at: float = 0


@dataclass(frozen=True, kw_only=True)
class ServerSeen:
    """A shared server: the digests of its packages by group, and the pods that take each group's requests.

    `made_at` is in seconds since the epoch.
    """

    name: str
    digests: Mapping[str, str] = field(default_factory=dict)
    made_at: float = 0
    pods: Mapping[str, tuple[PodSeen, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One look at a service.

    `spec` is None if it is invalid, which `problem` explains. `live` are all objects with the model's label, of the
    kinds that the operator writes. `pods` are the pods that take requests of its revisions, by group, and `own` those
    that serve nothing else. `servers` are the shared servers that hold a group of it, and `assigned` the server that
    placement wants for a group (empty: none; no entry: not known yet). `ending` are the groups with a pod that is
    ending and still answers, `stopping` the groups of pods whose server is shutting down, by pod. `address` is the
    gateway's, empty if it has none, and `gateway` says whether it takes connections; `policies`: the cluster knows
    `BackendTrafficPolicy`. `optional` are the kinds of autoscaling and monitoring that the cluster knows. `activation`
    is decided, not seen. `kept` is the revision to which the traffic of a promotion may go back, so that it has to stay
    ready (empty: none). `alarm` says why it goes back from the wanted revision after all (empty: it stays),
    and `baking` is the last bake. `mirror` says who gets copies of the requests (None: nobody). `now` is in seconds
    since the epoch.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    cluster: Cluster
    spec: ServiceSpec | None
    problem: str = ""
    status: ServiceStatus = field(default_factory=ServiceStatus)
    revisions: Mapping[str, RevisionSeen] = field(default_factory=dict)
    live: Mapping[Key, Object] = field(default_factory=dict)
    pods: Mapping[str, tuple[PodSeen, ...]] = field(default_factory=dict)
    own: Mapping[str, tuple[PodSeen, ...]] = field(default_factory=dict)
    servers: Mapping[str, ServerSeen] = field(default_factory=dict)
    assigned: Mapping[str, str] = field(default_factory=dict)
    retired: tuple[RetiredPod, ...] = ()
    ending: frozenset[str] = frozenset()
    stopping: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    gateway: GatewaySeen = GatewaySeen()
    policies: bool = False
    optional: frozenset[str] = frozenset()
    arrivals: HeldRequests = HeldRequests()
    activation: Activation = Activation.AWAKE
    evidence: Evidence = field(default_factory=Evidence)
    kept: str = ""
    alarm: str = ""
    baking: Baking | None = None
    mirror: Mirror | None = None
    now: float = 0

    def pods_of(self, revision: str) -> tuple[PodSeen, ...]:
        """The pods of all groups of a revision."""
        return tuple(pod for name in self.names(revision) for pod in self.pods.get(name, ()))

    def ready(self, revision: str) -> tuple[PodSeen, ...]:
        """A revision's pods that take requests, in all of its groups."""
        return tuple(pod for pod in self.pods_of(revision) if pod.ready)

    def ready_in(self, group: str) -> tuple[PodSeen, ...]:
        """A group's pods that take requests."""
        return tuple(pod for pod in self.pods.get(group, ()) if pod.ready)

    def groups(self, revision: str) -> tuple[TargetPods, ...]:
        """A revision's groups, the first of which has its name; none if it can't be used."""
        seen = self.revisions.get(revision)
        if seen is None or seen.package is None:
            return ()
        first = TargetPods(
            name=revision, package=seen.package, artifacts_uri=seen.artifacts_uri, capacity=seen.capacity
        )
        return (first, *seen.others)

    def names(self, revision: str) -> tuple[str, ...]:
        """The names of a revision's groups; of the running ones, if the revision was deleted."""
        if groups := self.groups(revision):
            return tuple(group.name for group in groups)
        running = (name for kind, name in self.live if kind == "Deployment" and self.revision_of(name) == revision)
        return (revision, *sorted(set(running) - {revision}))

    def several(self, revision: str) -> bool:
        """Whether a revision has more than one group."""
        return len(self.names(revision)) > 1

    def runs(self, revision: str) -> bool:
        """Whether a group of a revision has a Deployment, or is on a shared server."""
        return any(("Deployment", name) in self.live or self.host(name) for name in self.names(revision))

    def host(self, group: str) -> str:
        """The shared server that takes a group's requests; empty if its own pods do.

        Its Service says so. If that leads nowhere, for example after an edit by hand, the status remembers.
        """
        body = self.live.get(("Service", group)) or {}
        if (server := selected_server(body, group)) in self.servers:
            return server
        if selects_own(body, group) and ("Deployment", group) in self.live:
            return ""
        remembered = self.status.server if group == self.status.revision else ""
        seen = self.servers.get(remembered)
        return remembered if seen and group in seen.digests else ""

    def revision_of(self, group: str) -> str:
        """The revision that a group belongs to, by its name."""
        return group if group in self.revisions else revision_of_group(group)

    def package(self, revision: str) -> Package | None:
        """A revision's package; None if the revision does not exist or can't be used."""
        seen = self.revisions.get(revision)
        return seen.package if seen else None

    def exists(self, revision: str) -> bool:
        """Whether a revision can serve: its package is known, or it runs already."""
        return self.package(revision) is not None or self.runs(revision)
