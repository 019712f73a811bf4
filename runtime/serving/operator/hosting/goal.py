"""Where a service should be served: on the server that placement wants, unless it had problems there."""

from datetime import datetime

from shiplift.runtime.serving.kubernetes.diagnosis import Prospect
from shiplift.runtime.serving.operator.evidence import Beat, Move
from shiplift.runtime.serving.operator.observed import Observed, PodSeen
from shiplift.runtime.serving.operator.resources import ConditionType
from shiplift.runtime.serving.operator.upkeep.heartbeat import LIMIT

_MISSES = 5  # failed checks on a server whose pods are ready, after which the model does not work there
_FORGIVEN_S = 3600.0  # how long a revision must serve from its own pods before it may share again


def server_goal(observed: Observed, group: str) -> str:
    """The server that a group should be on; empty: its own pods."""
    now = observed.host(group)
    if is_isolated(observed, group):
        return ""
    if group != observed.status.revision or not _is_settled(observed):
        return now
    goal = observed.assigned.get(group, now)
    seen, package = observed.servers.get(goal), observed.package(group)
    right = seen and package and seen.digests.get(group) == package.repository.sha256
    return goal if right else ""


def _is_settled(observed: Observed) -> bool:
    """Whether no rollout is under way: one revision has all traffic, and another was given up if it should have."""
    spec, status = observed.spec, observed.status
    if spec is None or status.observed_generation != observed.generation:
        return False
    shares = [weight.revision for weight in status.weights if weight.percent]
    return len(shares) == 1 and spec.revision in (shares[0], status.failed_revision)


def is_isolated(observed: Observed, group: str) -> bool:
    """Whether a group has to keep away from shared servers, because what went wrong there may go wrong again."""
    if observed.status.isolated_revision == group:
        ready = observed.status.condition(ConditionType.READY)
        since = ready.last_transition_time if ready and ready.status == "True" else ""
        return not since or observed.now - datetime.fromisoformat(since).timestamp() < _FORGIVEN_S
    return bool(group == observed.status.revision and why_isolated(observed, group))


def why_isolated(observed: Observed, group: str) -> str:
    """What is wrong with a group on its present or next server; empty if nothing is."""
    move = observed.evidence.moves.get(group, Move())
    if move.to and move.misses >= _MISSES:
        return f"{move.to} can't serve it: {move.message}"
    server = observed.host(group)
    pods = observed.servers[server].pods.get(group, ()) if server else ()
    beats = [observed.evidence.beats.get(pod.name, Beat()) for pod in pods]
    if failing := next((beat for beat in beats if beat.misses >= LIMIT), None):
        return failing.message
    ends = next((pod for pod in pods if _keeps_ending(pod)), None)
    return f"{ends.name} keeps ending, which any of its models may cause" if ends else ""


def _keeps_ending(pod: PodSeen) -> bool:
    problem = pod.problem
    return not pod.ready and problem is not None and problem.prospect is Prospect.NOTHING
