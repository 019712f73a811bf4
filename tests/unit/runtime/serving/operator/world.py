"""A cluster in a few dictionaries: applies decisions, starts pods, moves traffic with a delay, and can be broken.

It writes defaults into what is applied, as an API server does, and counts every write.
"""

import copy
import pickle
import random
from dataclasses import replace
from typing import Any

from shiplift.runtime.records.baking import Baking
from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.records.measurement import Counts
from shiplift.runtime.records.promotion import Abort, Moving
from shiplift.runtime.records.shadowing import Mirror
from shiplift.runtime.records.site import Cluster, GatewayRef
from shiplift.runtime.serving.kubernetes import diagnosis
from shiplift.runtime.serving.kubernetes.objects.front import weights_of
from shiplift.runtime.serving.kubernetes.objects.names import PACKAGE, group_name, revision_of_group
from shiplift.runtime.serving.operator import measurements as m
from shiplift.runtime.serving.operator.cluster.seeing import alarm_of, kept_of
from shiplift.runtime.serving.operator.deciding import Decision, next_action
from shiplift.runtime.serving.operator.declared import AT_ONCE
from shiplift.runtime.serving.operator.evidence import Evidence, Key, Protocol, Route, TrafficSample
from shiplift.runtime.serving.operator.observed import (
    GatewaySeen,
    Observed,
    PodSeen,
    RetiredPod,
    RevisionSeen,
    TargetPods,
)
from shiplift.runtime.serving.operator.repair import key_of, remember
from shiplift.runtime.serving.operator.resources import BAKING, PROMOTION, RolloutSpec, ServiceSpec, ServiceStatus
from shiplift.runtime.serving.operator.upkeep.fronts import next_look_s
from shiplift.runtime.serving.scaling.burst import QueueReading
from tests.unit.examples import artifact, package

Object = dict[str, Any]
ROUTES: tuple[Key, ...] = (("GRPCRoute", "digits"), ("HTTPRoute", "digits"), ("HTTPRoute", "digits-path"))
BY_PROTOCOL: dict[Protocol, Key] = {"gRPC": ROUTES[0], "HTTP": ROUTES[1]}
START_S, PROPAGATION_S = 3.0, 2.0
CRASHING = diagnosis.Diagnosis(
    reason="CrashLoopBackOff",
    message="",
    means="container triton keeps exiting",
    do="See the container's log.",
    prospect=diagnosis.Prospect.NOTHING,
)


def cluster(*, gateway: bool = True) -> Cluster:
    where = GatewayRef(name="shiplift", namespace="models") if gateway else None
    return Cluster(namespace="shiplift", serving_namespace="models", server_image="example.org/server:1", gateway=where)


def name_of(version: int) -> str:
    return f"digits-{version}"


class Killed(Exception):
    pass


class World:
    """`broken` revisions never start, `wrong` ones answer wrongly, `failing` ones fail requests.

    `stuck` keeps the data plane where it is. `crash_after`: so many operations later, the operator is killed.
    """

    def __init__(self, *, gateway: bool = True, seed: int = 0, **spec: Any) -> None:
        self.cluster = cluster(gateway=gateway)
        self.spec = ServiceSpec(model="digits", revision=name_of(1), **spec)
        self.generation, self.now = 1, 1000.0
        self.status = ServiceStatus()
        self.evidence = Evidence()
        self.live: dict[Key, Object] = {}
        self.revisions = {name_of(1): self.revision(1), name_of(2): self.revision(2), name_of(3): self.revision(3)}
        self.pods: dict[str, dict[str, float]] = {}  # revision: pod: ready since
        self.counts: dict[str, dict[str, Counts]] = {}
        self.plane: dict[Key, list[tuple[float, dict[str, int]]]] = {}
        self.broken: set[str] = set()
        self.wrong: set[str] = set()
        self.failing: set[str] = set()
        self.silent: set[str] = set()  # pods that answer no heartbeat
        self.frozen: set[str] = set()  # pods that run and are no longer ready
        self.cordoned: set[str] = set()  # pods whose node takes no more
        self.retired: dict[str, float] = {}
        self.routed: set[str] = set()  # pods that stay in endpoints whatever happens
        self.answers: dict[str, str] = {}  # what is wrong with each route that does not answer right
        self.stuck: float | None = None  # since when the data plane does not follow
        self.crash_after: int | None = None
        self.writes: list[str] = []
        self.events: list[str] = []
        self.last: Decision | None = None
        self.random = random.Random(seed)
        self.checks: list[Any] = []
        self.gateway = GatewaySeen()
        self.ending: frozenset[str] = frozenset()
        self.stopping: dict[str, str] = {}
        self.optional: frozenset[str] = frozenset()
        self.arriving = 0.0  # requests per second, of which each ready pod ends 100
        self.queue = QueueReading(at=self.now, ended=0, waiting=0, ready=0)
        self.desired: dict[str, int] = {}  # what an autoscaler that sees its signal wants
        self.promotion: Moving | None = None
        self.baking: Baking | None = None
        self.mirror: Mirror | None = None

    def add_groups(self, version: int, **capacities: float) -> None:
        """Gives a revision these targets, each with the requests per second that one of its pods takes."""
        seen, name = self.revisions[name_of(version)], name_of(version)
        assert seen.package is not None
        groups = [
            TargetPods(
                name=group_name(name, target),
                package=seen.package.model_copy(update={"target": target}),
                artifacts_uri=seen.artifacts_uri,
                capacity=Capacity(peak_per_s=1.2 * rate, within_slo_per_s=rate),
            )
            for target, rate in capacities.items()
        ]
        first, *others = groups
        self.revisions[name] = replace(seen, package=first.package, capacity=first.capacity, others=tuple(others))

    def names(self, revision: str) -> list[str]:
        return [name for name in self.pods if revision_of_group(name) == revision]

    def revision(self, version: int, **changes: Any) -> RevisionSeen:
        made = package(version=version, repository=artifact(f"{version:x}", kind="tree"), **changes)
        return RevisionSeen(package=made, artifacts_uri="s3://models")

    def want(self, version: int | None = None, **changes: Any) -> None:
        revision = {"revision": name_of(version)} if version else {}
        self.spec = self.spec.model_copy(update=revision | changes)
        self.generation += 1

    def promote(self, version: int) -> None:
        """What a release writes that promotes a version."""
        before = self.status.revision
        self.promotion = Moving(version=version, revision=name_of(version), before=before)
        self.want(version, rollout=RolloutSpec())

    def abort(self) -> None:
        """What `shiplift abort` writes, unless the promotion is committed."""
        if self.promotion and not (self.promotion.committed or self.promotion.abort):
            self.promotion = self.promotion.model_copy(update={"abort": Abort(by="ana")})
            self.spec = self.spec.model_copy(update={"revision": self.promotion.before, "rollout": AT_ONCE})
            self.generation += 1

    def commit(self) -> None:
        """What a release writes once all traffic has moved, unless it was aborted."""
        if self.promotion and not self.promotion.abort and self.status.weight == 100:
            self.promotion = self.promotion.model_copy(update={"committed": True})

    def bake(self) -> None:
        """What a release writes before it commits, if its version should bake."""
        if self.promotion:
            names = {"package": self.promotion.revision, "before": self.promotion.before}
            self.baking = Baking(model="digits", version=self.promotion.version, for_s=3600, **names)

    def alarm(self) -> None:
        """What the watch over bakes writes."""
        if self.baking:
            self.baking = self.baking.model_copy(update={"state": "alarmed", "reason": "too slow"})

    # --- what the operator sees and does ---

    def look(self) -> Observed:
        notes = {PROMOTION: self.promotion, BAKING: self.baking}
        meta = {"annotations": {name: each.model_dump_json() for name, each in notes.items() if each}}
        return Observed(
            name="digits",
            namespace="models",
            uid="u1",
            generation=self.generation,
            cluster=self.cluster,
            spec=self.spec,
            status=self.status,
            revisions=self.revisions,
            live=pickle.loads(pickle.dumps(self.live)),  # a copy, five times as fast as copy.deepcopy
            pods={name: tuple(self.seen(name, pod) for pod in pods) for name, pods in self.pods.items()},
            retired=tuple(RetiredPod(name=name, since=since) for name, since in self.retired.items()),
            address="10.0.0.1",
            gateway=self.gateway,
            ending=self.ending,
            stopping=self.stopping,
            policies=True,
            optional=self.optional,
            evidence=self.evidence,
            kept=kept_of({"metadata": meta}, self.spec),
            alarm=alarm_of({"metadata": meta}, self.spec),
            baking=self.baking,
            mirror=self.mirror,
            now=self.now,
        )

    def seen(self, name: str, pod: str) -> PodSeen:
        ready = self.is_ready(name, pod)
        return PodSeen(
            name=pod,
            ready=ready,
            runs=ready or pod in self.frozen,
            address=f"ip-{pod}",
            cordoned=pod in self.cordoned,
            problem=CRASHING if name in self.broken and not ready else None,
        )

    def is_ready(self, name: str, pod: str) -> bool:
        return name not in self.broken and pod not in self.frozen and self.now >= self.pods[name][pod]

    def ready(self, name: str) -> list[str]:
        return [pod for pod in self.pods.get(name, {}) if self.is_ready(name, pod)]

    def turn(self) -> Decision:
        """One look and what follows; killed in between, the operator forgets what it has measured."""
        self.controllers()
        observed = self.look()
        decision = self.last = next_action(observed)
        try:
            self.act(decision)
        except Killed:
            self.evidence, self.crash_after = Evidence(), None
        again_s = next_look_s(decision.again_s, observed, decision.status or observed.status, self.evidence)
        self.now += max(0.2, min(again_s, 5.0))
        return decision

    def operate(self, what: str) -> None:
        if self.crash_after is not None:
            if self.crash_after == 0:
                raise Killed
            self.crash_after -= 1
        if what:
            self.writes.append(what)
        self.controllers()
        for check in self.checks:
            check(self)

    def act(self, decision: Decision) -> None:
        self.evidence = decision.evidence
        for body in decision.apply:
            self.operate(f"apply {body['kind']} {body['metadata']['name']}")
            self.apply(body)
            applied = {**self.evidence.applied, key_of(body): remember(body, self.live[key_of(body)])}
            self.evidence = replace(self.evidence, applied=applied)
        for (kind, name), patch in decision.patch:
            self.operate(f"patch {kind} {name}")
            self.patch((kind, name), patch)
        for kind, name in decision.delete:
            self.operate(f"delete {kind} {name}")
            self.delete((kind, name))
        if decision.status is not None:
            self.operate("status")
            self.status = ServiceStatus.model_validate(decision.status.to_object())
        self.events += [event.message for event in decision.events]
        for measurement in decision.measure:
            self.operate("")
            self.measure(measurement)

    def apply(self, wanted: Object) -> None:
        before = self.live.get(key_of(wanted))
        body = merge(before or {"metadata": {"generation": 0, "uid": "x"}}, wanted)
        if wanted["kind"] == "Deployment":
            body["spec"].setdefault("replicas", 1)
            body["spec"]["progressDeadlineSeconds"] = 600
            for container in body["spec"]["template"]["spec"]["containers"]:
                container["resources"]["limits"]["memory"] = "2048Mi"  # as it was wanted, in another spelling
        if before is None or before.get("spec") != body.get("spec"):
            body["metadata"]["generation"] += 1
        self.live[key_of(wanted)] = body

    def patch(self, key: Key, patch: Object) -> None:
        assert key[0] == "Pod"
        assert patch["metadata"]["labels"][PACKAGE] is None
        for pods in self.pods.values():
            if pods.pop(key[1], None) is not None:
                self.retired[key[1]] = self.now
        self.controllers()

    def delete(self, key: Key) -> None:
        self.revisions.pop(key[1], None) if key[0] == "TritonRevision" else None
        self.retired.pop(key[1], None)
        if key[0] == "Pod":
            for pods in self.pods.values():
                pods.pop(key[1], None)
        self.live.pop(key, None)

    def measure(self, measurement: m.Measurement) -> None:
        if isinstance(measurement, m.ReadDemand):
            self.serve(len(self.ready(measurement.revision)))
            self.evidence = m.with_demand(self.evidence, self.queue)
        else:
            self._ask(measurement)

    def _ask(self, measurement: m.Measurement) -> None:
        if isinstance(measurement, m.CheckAnswers):
            wrong = f"{measurement.revision} answers wrongly." if measurement.revision in self.wrong else ""
            self.evidence = m.with_answers(self.evidence, measurement.revision, wrong)
        elif isinstance(measurement, m.AskFront):
            before = {name: self.total(name) for name in measurement.weights}
            samples = {protocol: self.ask(key, measurement) for protocol, key in BY_PROTOCOL.items()}
            grew = {name: self.total(name) - before[name] for name in measurement.weights}
            self.evidence = m.with_share(self.evidence, measurement, samples, grew, self.now)
        elif isinstance(measurement, m.ReadCounters):
            self.evidence = m.with_counters(self.evidence, measurement, self._read(measurement), self.now)
        elif isinstance(measurement, m.AskRoutes):
            routes: tuple[Route, ...] = ("gRPC", "HTTP", "HTTP by path")
            self.evidence = m.with_routes(self.evidence, {route: self.answers.get(route, "") for route in routes})
        elif isinstance(measurement, m.CheckServer):
            problem = f"{measurement.group} is broken" if measurement.to in self.wrong else ""
            self.evidence = m.with_move(self.evidence, measurement, problem)
        elif isinstance(measurement, m.AskPods):
            for pod, _ in measurement.pods:
                bad, silent = measurement.revision in self.wrong, pod in self.silent
                message = f"{pod} is broken" if bad or silent else ""
                self.evidence = m.with_beat(self.evidence, pod, bad, message)

    def serve(self, ready: int) -> None:
        """Lets requests arrive, wait and end since the last reading."""
        seconds, before = self.now - self.queue.at, self.queue
        there = before.waiting + self.arriving * seconds
        ended = min(there, 100 * ready * seconds)
        self.queue = QueueReading(at=self.now, ended=before.ended + ended, waiting=there - ended, ready=ready)

    def _read(self, measurement: m.ReadCounters) -> dict[str, Any]:
        for name in self.failing & set(measurement.revisions):
            self.count(name, failed=5)
        return {
            name: {pod: counts for group in self.names(name) for pod, counts in self.counts.get(group, {}).items()}
            for name in measurement.revisions
        }

    def ask(self, key: Key, ask: m.AskFront) -> TrafficSample:
        weights = self.effective(key)
        answered = 0
        for number in range(ask.requests):
            name = self.random.choices(list(weights), list(weights.values()))[0] if any(weights.values()) else ""
            if not self.ready(name) or (("Service", name) not in self.live and self.cluster.gateway):
                return TrafficSample(asked=number + 1, answered=answered, failure="UNAVAILABLE", unreachable=True)
            self.count(name, answered=1)
            answered += revision_of_group(name) == ask.target
        return TrafficSample(asked=ask.requests, answered=answered)

    # --- what the cluster does ---

    def controllers(self) -> None:
        self.scale_automatically()
        for (kind, name), body in list(self.live.items()):
            if kind == "Deployment":
                self.scale(self.pods.setdefault(name, {}), name, body["spec"]["replicas"])
        for name in list(self.pods):
            if ("Deployment", name) not in self.live:
                del self.pods[name]
        for key in (*ROUTES, ("Service", "digits")):
            history = self.plane.setdefault(key, [])
            now = weights_of(self.live[key]) if key in self.live else {}
            if not history or history[-1][1] != now:
                history.append((self.now, now))

    def scale_automatically(self) -> None:
        """What KEDA and the controller of HPAs do."""
        for (kind, name), body in list(self.live.items()):
            if kind == "ScaledObject":
                bounds = {
                    "minReplicas": body["spec"]["minReplicaCount"],
                    "maxReplicas": body["spec"]["maxReplicaCount"],
                }
                hpa = {"metadata": {"name": f"keda-hpa-{name}"}, "spec": bounds | {"scaleTargetRef": {"name": name}}}
                self.live.setdefault(("HorizontalPodAutoscaler", f"keda-hpa-{name}"), hpa)["spec"] |= bounds
        for (kind, name), body in list(self.live.items()):
            if kind != "HorizontalPodAutoscaler":
                continue
            target = body["spec"]["scaleTargetRef"]["name"]
            if name != target and ("ScaledObject", target) not in self.live:
                del self.live[kind, name]
            elif ("Deployment", target) in self.live:
                spec, now = self.live["Deployment", target]["spec"], self.live["Deployment", target]["spec"]["replicas"]
                wanted = self.desired.get(target, now)
                spec["replicas"] = max(body["spec"]["minReplicas"], min(wanted, body["spec"]["maxReplicas"]))
                self.live["Deployment", target]["metadata"]["generation"] += spec["replicas"] != now
                seen = {"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound"}
                body["status"] = {"desiredReplicas": spec["replicas"], "conditions": [seen]}

    def scale(self, pods: dict[str, float], name: str, replicas: int) -> None:
        while len(pods) < replicas:
            pods[f"{name}-{self.random.randrange(10**9)}"] = self.now + START_S
        for pod in list(pods)[replicas:]:
            del pods[pod]

    def effective(self, key: Key) -> dict[str, int]:
        """The weights that the data plane has."""
        key = key if self.cluster.gateway else ("Service", "digits")
        history = self.plane.get(key, [])
        now = self.now if self.stuck is None else self.stuck
        old = [weights for at, weights in history if now - at >= PROPAGATION_S]
        return old[-1] if old else {}

    def count(self, name: str, *, answered: int = 0, failed: int = 0) -> None:
        pods = self.counts.setdefault(name, {})
        pod = self.ready(name)[0] if self.ready(name) else "none"
        now = pods.get(pod, Counts())
        pods[pod] = Counts(answered=now.answered + answered, failed=now.failed + failed)

    def total(self, name: str) -> int:
        groups = (group for group in self.counts if revision_of_group(group) == name)
        return sum(counts.total for group in groups for counts in self.counts[group].values())

    # --- what tests ask ---

    def run(self, seconds: float = 300, *, until: Any = None) -> None:
        end = self.now + seconds
        while self.now < end and not (until and until(self)):
            self.turn()

    def settled(self) -> bool:
        current = self.status.observed_generation == self.generation
        return current and self.status.holds("Ready") and not self.status.holds("Reconciling") and self.is_clean()  # type: ignore[arg-type]

    def is_clean(self) -> bool:
        names = {revision_of_group(name) for kind, name in self.live if kind == "Deployment"}
        return names == {weight.revision for weight in self.status.weights}

    def served(self) -> dict[str, dict[str, int]]:
        """The weights of each live route, without zeros."""
        keys = ROUTES if self.cluster.gateway else (("Service", "digits"),)
        return {
            f"{kind} {name}": {k: v for k, v in weights_of(self.live[kind, name]).items() if v}
            for kind, name in keys
            if (kind, name) in self.live
        }


def merge(old: Object, new: Object) -> Object:
    """What server-side apply makes of two objects: maps are merged, lists replaced."""
    merged = copy.deepcopy(old)
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict) and key != "selector":
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged
