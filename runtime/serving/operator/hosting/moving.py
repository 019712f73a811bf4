"""Moves a service's requests between its own pods and a shared server.

A move changes one thing, the selector of the group's Service, and only once the new pods have answered the golden
requests right. The old place stays until no request can still be on its way there. Moves happen only between rollouts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shiplift.runtime.serving.kubernetes.objects.names import Object, hosted_label
from shiplift.runtime.serving.kubernetes.objects.shared import selected_server, selects_own
from shiplift.runtime.serving.operator.conditions import KubernetesEvent
from shiplift.runtime.serving.operator.evidence import Beat, Evidence, Key, Move, Patch
from shiplift.runtime.serving.operator.hosting.goal import is_isolated, server_goal, why_isolated
from shiplift.runtime.serving.operator.measurements import CheckServer
from shiplift.runtime.serving.operator.observed import Observed, PodSeen
from shiplift.runtime.serving.operator.resources import ServiceStatus
from shiplift.runtime.serving.operator.upkeep.heartbeat import LIMIT

_DRAIN_S = 10.0  # for proxies to follow the endpoints
_BUSY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Hosting:
    """Where a group is served: `server` takes its requests now; `own`: it should have pods of its own."""

    server: str = ""
    own: bool = True


@dataclass(frozen=True, kw_only=True)
class MoveOrders:
    """What the moves of a service ask for."""

    evidence: Evidence
    measure: tuple[CheckServer, ...] = ()
    patch: tuple[Patch, ...] = ()
    delete: tuple[Key, ...] = ()
    events: tuple[KubernetesEvent, ...] = ()
    again_s: float = 60.0


def hosting(observed: Observed, group: str) -> Hosting:
    """Where a group should be served after this look."""
    now, goal = observed.host(group), server_goal(observed, group)
    if now == goal:  # its own pods stay until no request can reach them any more
        draining = ("Deployment", group) in observed.live and not _has_left(observed, group)
        return Hosting(server=now, own=not now or draining)
    return Hosting(server=goal if _arrives(observed, group, goal) else now, own=not (now and goal))


def moving(observed: Observed, evidence: Evidence) -> MoveOrders:
    """What to ask and clean up for a move of the serving revision; `evidence` is the rollout's."""
    group = observed.status.revision
    if not observed.package(group) or not (observed.servers or evidence.moves):
        return MoveOrders(evidence=evidence)
    now, goal, after = observed.host(group), server_goal(observed, group), hosting(observed, group)
    evidence = replace(evidence, moves={group: _noted(observed, group, after.server, goal)})
    asks = _asks(observed, group, goal) if after.server != goal else ()
    busy = now != goal or (not after.own and ("Deployment", group) in observed.live)
    return MoveOrders(
        evidence=evidence,
        measure=asks,
        patch=tuple(_leaving(observed, group, now)),
        delete=() if after.own else tuple(_surplus(observed, group)),
        events=tuple(_told(observed, group, now, after.server)),
        again_s=_BUSY_S if busy or asks else 60.0,
    )


def with_server(observed: Observed, status: ServiceStatus) -> ServiceStatus:
    """The status with the server that the service is on, and whether its revision must keep away from shared ones."""
    group = status.revision
    server = hosting(observed, group).server if group and observed.servers else ""
    isolated = group if group and is_isolated(observed, group) else ""
    selector = {"selector": f"{hosted_label(group)}={server}"} if server else {}
    return status.model_copy(update={"server": server, "isolated_revision": isolated} | selector)


def is_move(observed: Observed, body: Object) -> bool:
    """Whether a Service differs from its live one only in the place that it leads to, and both places work."""
    group = body["metadata"]["name"]
    live = observed.live.get(("Service", group))
    if body["kind"] != "Service" or live is None:
        return False
    places = [_place(observed, each, group) for each in (live, body)]
    return None not in places and places[0] != places[1]


def hosted(observed: Observed, group: str) -> bool:
    """Whether a shared server takes a group's requests."""
    return bool(observed.host(group))


# --- the way there ---


def _pods(observed: Observed, group: str, server: str) -> tuple[PodSeen, ...]:
    """The ready pods that serve a group on a server (empty: its own pods)."""
    seen = observed.servers.get(server)
    pods = seen.pods.get(group, ()) if seen else observed.own.get(group, ())
    return tuple(pod for pod in pods if pod.ready and pod.address)


def _is_ready(observed: Observed, group: str, goal: str) -> bool:
    least = observed.spec.least_replicas if observed.spec else 1
    return len(_pods(observed, group, goal)) >= least


def _arrives(observed: Observed, group: str, goal: str) -> bool:
    """Whether requests may go to the place where a group should be: its pods there are ready and answer right."""
    move = observed.evidence.moves.get(group, Move())
    return move.to == goal and move.right and _is_ready(observed, group, goal)


def _asks(observed: Observed, group: str, goal: str) -> tuple[CheckServer, ...]:
    if not _is_ready(observed, group, goal):
        return ()
    addresses = tuple(pod.address for pod in _pods(observed, group, goal))
    return (CheckServer(revision=observed.revision_of(group), group=group, to=goal, addresses=addresses),)


def _noted(observed: Observed, group: str, server: str, goal: str) -> Move:
    """What is known about the move to the present goal."""
    move = observed.evidence.moves.get(group, Move())
    move = move if move.to == goal else Move(to=goal)
    return replace(move, arrived_at=(move.arrived_at or observed.now) if server == goal else 0.0)


def _has_left(observed: Observed, group: str) -> bool:
    """Whether no request can reach a group's own pods any more."""
    move = observed.evidence.moves.get(group, Move())
    if not move.arrived_at or observed.now - move.arrived_at < _DRAIN_S:
        return False
    own = {pod.name for pod in observed.own.get(group, ())}
    return not own & set(_in_endpoints(observed))


def _in_endpoints(observed: Observed) -> Iterator[str]:
    for (kind, _), body in observed.live.items():
        for endpoint in (body.get("endpoints") or []) if kind == "EndpointSlice" else ():
            yield str((endpoint.get("targetRef") or {}).get("name", ""))


def _surplus(observed: Observed, group: str) -> Iterator[Key]:
    """The objects of pods that a group no longer needs."""
    for kind in ("PodDisruptionBudget", "Deployment"):
        if (kind, group) in observed.live:
            yield kind, group


def _leaving(observed: Observed, group: str, server: str) -> Iterator[Patch]:
    """Takes pods of a shared server that answer a model wrongly off its route; they keep serving the other models."""
    for pod in observed.pods.get(group, ()) if server else ():
        beat = observed.evidence.beats.get(pod.name, Beat())
        if pod.ready and beat.wrong and beat.misses >= LIMIT:
            yield ("Pod", pod.name), {"metadata": {"labels": {hosted_label(group): None}}}


def _told(observed: Observed, group: str, now: str, after: str) -> Iterator[KubernetesEvent]:
    if now != after:
        where = f"{after}, a server with other models" if after else "its own pods"
        yield KubernetesEvent(reason="Moved", message=f"{group} is served by {where}")
    if is_isolated(observed, group) and observed.status.isolated_revision != group:
        message = f"{group} gets pods of its own: {why_isolated(observed, group)}"
        yield KubernetesEvent(reason="Isolated", message=message, warning=True)


def _place(observed: Observed, body: Object, group: str) -> str | None:
    """The server that a Service leads to, empty for a group's own pods; None if it leads nowhere."""
    if (server := selected_server(body, group)) in observed.servers:
        return server
    return "" if selects_own(body, group) and not server else None
