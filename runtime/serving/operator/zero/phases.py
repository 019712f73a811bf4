"""When a service goes to sleep, and when it wakes up.

It goes to sleep only if fresh counters of all its pods, the activator and the routes agree that it may. It wakes up
when a request has come, and also when the activator is silent, because then nothing would hold a request.

    AWAKE -> DRAINING   no request for `idleSeconds`: the routes lead to the activator, the pods finish their requests
    DRAINING -> ASLEEP  the pods' counters stand still: the pods stop
    DRAINING -> AWAKE   a request came after all
    ASLEEP -> WAKING    a request came: pods start
    WAKING -> AWAKE     a pod is ready: the routes lead to the pods, and the activator passes on what it holds
"""

from dataclasses import replace

from shiplift.runtime.serving.kubernetes.objects.activator import leads_to_activator
from shiplift.runtime.serving.operator import shares
from shiplift.runtime.serving.operator.evidence import TrafficReading, Weights
from shiplift.runtime.serving.operator.measurements import AskPods, Measurement, ReadTraffic
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.resources import Activation, ServiceSpec
from shiplift.runtime.serving.operator.step import RolloutStep

FRESH_S = 15.0  # how old readings of the activator and the counters may be
SILENT_S = 15.0  # after so long without an answer, the activator holds nothing
READ_S = 5.0  # between two readings of the counters without a heartbeat
ROUTES = 3  # the operator sends a request of its own through each of them
_QUIET_S, _DRAIN_S, _LONGEST_DRAIN_S = 3.0, 6.0, 60.0


def seen(observed: Observed) -> Activation:
    """The activation that a look shows: the status says it. If the status is lost, routes to the activator show it."""
    if observed.status.activation:
        return observed.status.activation
    routes = shares.fronts(observed)
    asleep = bool(routes) and all(map(leads_to_activator, routes))
    return Activation.WAKING if asleep else Activation.AWAKE


def obstacle(observed: Observed, spec: ServiceSpec) -> str:
    """Why a service can't be scaled to zero; empty if it can."""
    if observed.cluster.gateway is None:
        return "requests can only be held behind a gateway: set `gateway` in the installation's values"
    if observed.cluster.activator is None:
        return "nothing holds requests: set `activator` in the installation's values"
    if observed.now - observed.arrivals.answered_at > SILENT_S:
        return "the activator does not answer: see its Deployment's pods in this namespace"
    return "" if spec.scaling.to_zero else "spec.scaling.toZero is off"


def after(observed: Observed, spec: ServiceSpec, step: RolloutStep) -> Activation:
    """The activation from now on."""
    phase, may_sleep = observed.activation, not obstacle(observed, spec)
    awake = Activation.AWAKE if observed.ready(serving(step.weights)) else Activation.WAKING
    if phase is not Activation.AWAKE and serving(step.weights) != serving(shares.current(observed)):
        return awake  # another revision takes over
    if phase is Activation.AWAKE:
        return Activation.DRAINING if may_sleep and step.settled and _is_idle(observed, spec) else phase
    if phase is Activation.DRAINING:
        return _drained(observed, awake) if may_sleep and step.settled and not called(observed) else awake
    if phase is Activation.ASLEEP and may_sleep and not called(observed):
        return phase
    if phase is Activation.ASLEEP and spec.scaling.to_zero and _only_just_looked(observed):
        return phase
    return awake


def called(observed: Observed) -> bool:
    """Whether a request came to the activator since the activation changed."""
    return observed.arrivals.held > 0 or observed.arrivals.came_at > observed.evidence.traffic.since


def begun(observed: Observed) -> Observed:
    """The look with the activation that it shows."""
    evidence = observed.evidence
    if not evidence.traffic.since:
        evidence = replace(evidence, traffic=TrafficReading(seen_at=observed.now, since=observed.now))
    return replace(observed, activation=seen(observed), evidence=evidence)


def changed(observed: Observed, activation: Activation) -> Observed:
    """The look with a new activation. The routes are asked later, since they need a moment to follow."""
    traffic = TrafficReading(seen_at=observed.now, since=observed.now)
    evidence = replace(observed.evidence, traffic=traffic, routes={}, routes_at=observed.now)
    return replace(observed, activation=activation, evidence=evidence)


def readings(
    observed: Observed, spec: ServiceSpec, step: RolloutStep, own: tuple[Measurement, ...]
) -> tuple[Measurement, ...]:
    """The operator's `own` requests, between two readings of the counters, so that they don't count as traffic."""
    if not spec.scaling.to_zero or observed.activation in (Activation.ASLEEP, Activation.WAKING):
        return own
    revision, due = serving(step.weights), observed.now - observed.evidence.traffic.read_at >= READ_S
    pods = observed.ready(revision)
    if not pods or not (own or due or observed.activation is Activation.DRAINING):
        return own
    read = ReadTraffic(revision=revision, pods=len(pods))
    if not own:
        return (read,)
    asked = sum(len(each.pods) for each in own if isinstance(each, AskPods)) + ROUTES
    return (read, *own, replace(read, own=asked))


def serving(weights: Weights) -> str:
    """The revision with the traffic."""
    return max(weights, key=lambda name: (weights[name], name), default="")


def sleeps(observed: Observed, revision: str) -> bool:
    """Whether this revision is the one that is scaled to zero."""
    return observed.activation is Activation.ASLEEP and bool(shares.current(observed).get(revision))


def leaves_autoscaler(observed: Observed, revision: str) -> bool:
    """Whether a revision must lose its autoscaler first: autoscalers can't choose 0, so it would start pods again."""
    resting = observed.activation in (Activation.DRAINING, Activation.ASLEEP)
    return resting and bool(shares.current(observed).get(revision))


def stays_asleep(observed: Observed, spec: ServiceSpec, name: str) -> bool:
    """Whether a group without pods stays without them, because another revision takes over from it."""
    body = observed.live.get(("Deployment", name))
    none = body is not None and not body.get("spec", {}).get("replicas")
    replaced = observed.revision_of(name) != spec.revision and bool(observed.ready(spec.revision))
    return spec.scaling.to_zero and none and replaced


def _is_idle(observed: Observed, spec: ServiceSpec) -> bool:
    traffic = observed.evidence.traffic
    fresh = traffic.counters is not None and observed.now - traffic.read_at <= max(
        FRESH_S, 3 * spec.heartbeat.interval_seconds
    )
    quiet_s = observed.now - max(traffic.seen_at, traffic.since, observed.arrivals.came_at)
    return fresh and quiet_s >= spec.scaling.idle_seconds


def _drained(observed: Observed, awake: Activation) -> Activation:
    traffic, now = observed.evidence.traffic, observed.now
    if now - traffic.since > _LONGEST_DRAIN_S:
        return awake  # requests still reach the pods, past the routes or because those don't lead to the activator
    quiet = traffic.counters is not None and now - traffic.read_at <= _QUIET_S and now - traffic.seen_at >= _QUIET_S
    routed = bool(observed.evidence.routes) and not any(beat.misses for beat in observed.evidence.routes.values())
    routed = routed or not (observed.spec and observed.spec.heartbeat.interval_seconds)
    return Activation.ASLEEP if quiet and routed and now - traffic.since >= _DRAIN_S else Activation.DRAINING


def _only_just_looked(observed: Observed) -> bool:
    """Whether the operator has just started and could not ask the activator yet."""
    told = observed.arrivals.answered_at or observed.cluster.activator is None
    return not told and observed.now - observed.evidence.traffic.since < SILENT_S
