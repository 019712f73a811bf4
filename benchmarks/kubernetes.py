"""`make bench-kubernetes`: what production on Kubernetes does under load, with the Shiplift of KUBECONFIG's cluster.

Three parts. Promotions: two versions of a model take turns, and every third change is taken back halfway, while gRPC
and HTTP requests arrive through the gateway without pause; it counts requests and failures. Idle: the memory of the
control plane, and what the operator writes in a minute in which nothing happens. Services: how long an operator that
just started needs for many TritonServices; a quota keeps their pods from being made, so only this figure is about
pods that never start. Everything that it makes is removed again.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.cluster import Installation, memory, one_release, stamp
from benchmarks.machine import until
from shiplift.pipelines.installation.values import Values
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.kinds import DEPLOYMENT, POD, SERVICE, TRITON_REVISION, TRITON_SERVICE
from shiplift.runtime.serving.operator.resources import (
    RevisionSpec,
    RolloutSpec,
    ServiceSpec,
    revision_object,
    service_object,
    status_of,
)
from tests.cluster.traffic import Traffic, row

RESULTS = Path(__file__).parent / "results" / "kubernetes.json"
_CHANGE_S = 300.0
_IDLE_S = 60.0
_QUIET_S = 20.0
_OPERATOR = "app.kubernetes.io/name=operator"
_ACTS = "shiplift_operator_acts_total"
_ROLLOUT = RolloutSpec(canary_percent=(50,), hold_seconds=0)
_SCALING = {"maxReplicas": 2}
_QUOTA = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "bench-no-pods"}}


@dataclass(frozen=True)
class Production:
    """The serving namespace of an installation."""

    installation: Installation
    api: KubernetesClient

    def gateway(self) -> str:
        """The gateway's address."""
        kind, name, namespace = self.api.locate(
            {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "shiplift"}}
        )
        body = self.api.get(kind, name, namespace) or {}
        return str(body["status"]["addresses"][0]["value"])

    def select(self, model: str, revision: str) -> None:
        """Asks for a revision, as a promotion does."""
        self.api.merge(TRITON_SERVICE, model, {"spec": {"revision": revision}})

    def shares(self, model: str) -> dict[str, int]:
        """The revisions that have a share of the traffic."""
        weights = status_of(self.api.get(TRITON_SERVICE, model) or {}).weights
        return {weight.revision: weight.percent for weight in weights if weight.percent}

    def serves(self, model: str, revision: str) -> bool:
        """Whether the operator says that a revision serves everything, and that nothing else is under way."""
        body = self.api.get(TRITON_SERVICE, model) or {}
        current = status_of(body).observed_generation >= body["metadata"]["generation"]
        return current and is_true(body, "Ready") and self.shares(model) == {revision: 100}

    def scales(self, model: str) -> bool:
        """Whether an autoscaler owns the model's replicas."""
        return is_true(self.api.get(TRITON_SERVICE, model) or {}, "ScalingActive")

    def metrics(self) -> dict[str, float]:
        """The operator's metrics."""
        (pod,) = self.installation.api.find(POD, _OPERATOR)
        path = f"/api/v1/namespaces/{self.installation.namespace}/pods/{pod['metadata']['name']}:8080/proxy/metrics"
        _, _, text = self.installation.api.forward("GET", path, query=[], headers={}, body=None)
        pairs = [line.rsplit(" ", 1) for line in text.decode().splitlines() if line.startswith("shiplift_")]
        return {name: float(value) for name, value in pairs}


def is_true(service: Object, condition: str) -> bool:
    """Whether a condition of a TritonService holds."""
    return any(each.type == condition and each.status == "True" for each in status_of(service).conditions)


# --- promotions ---------------------------------------------------------------------------------------------------


def promotions(production: Production, count: int) -> dict[str, Any]:
    """Changes of revision under steady load: how many requests failed, and how long a change took."""
    model = f"bench-kept-{stamp()}"
    revisions = []
    for samples in (900, 1100):
        one_release(production.installation, model, samples)
        revisions.append(str((production.api.get(TRITON_SERVICE, model) or {})["spec"]["revision"]))
    production.api.merge(TRITON_SERVICE, model, {"spec": {"rollout": _ROLLOUT.to_object(), "scaling": _SCALING}})
    until(lambda: production.scales(model), "the autoscaler to act", seconds=_CHANGE_S)
    images = (load_digits().images.reshape(-1, 64) / 16).astype(np.float32)
    client = Traffic(model=model, gateway=production.gateway(), authority=_host(production, model), row=row(images))
    seconds: dict[str, list[float]] = {"promotion": [], "reverted": []}
    with client:
        serving, other = revisions[1], revisions[0]
        for number in range(count):
            started = time.monotonic()
            if number % 3 == 2:
                revert(production, model, serving, other)
                seconds["reverted"].append(time.monotonic() - started)
            else:
                change(production, model, other)
                seconds["promotion"].append(time.monotonic() - started)
                serving, other = other, serving
            print(
                f"\r{number + 1} of {count}: {client.sent} requests, {len(client.failures)} failed", end="", flush=True
            )
        print()
    return {
        "changes": count,
        "requests": client.sent,
        "failed": len(client.failures),
        "failures": client.failures[:5],
        "versions_seen": sorted(client.versions),
        "reverted": len(seconds["reverted"]),
        "promotion_s": _spread(seconds["promotion"]),
        "reverted_s": _spread(seconds["reverted"]),
    }


def change(production: Production, model: str, revision: str) -> None:
    """Asks for a revision and waits until it serves."""
    production.select(model, revision)
    until(lambda: production.serves(model, revision), f"{revision} to serve", seconds=_CHANGE_S, every_s=0.2)


def revert(production: Production, model: str, serving: str, other: str) -> None:
    """Asks for another revision, and for the old one again as soon as the other has a share of the traffic."""
    production.select(model, other)
    until(lambda: other in production.shares(model), f"{other} to get traffic", seconds=_CHANGE_S, every_s=0.1)
    change(production, model, serving)


def _host(production: Production, model: str) -> str:
    return f"{model}.{production.api.namespace}.svc"


def _spread(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    p10, p90 = np.percentile(seconds, [10, 90])
    return {"median": round(median(seconds), 1), "p10": round(float(p10), 1), "p90": round(float(p90), 1)}


# --- idle ---------------------------------------------------------------------------------------------------------


def idle(production: Production) -> dict[str, Any]:
    """The control plane while a model serves and nothing happens: memory in MB, and the operator's writes."""
    one_release(production.installation, f"bench-idle-{stamp()}", 800)
    until(lambda: quiet(production), "the operator to have nothing left to do", seconds=_CHANGE_S)
    before = acts(production)
    with memory(production.installation) as used:
        time.sleep(_IDLE_S)
    writes = {name: number - before.get(name, 0.0) for name, number in acts(production).items()}
    parts = {name: used[name] for name in ("operator", "receiver", "reconciler") if name in used}
    return {
        "seconds": _IDLE_S,
        "writes": {name: number for name, number in writes.items() if number},
        "memory_mb": parts,
        "memory_together_mb": round(sum(parts.values()), 1),
    }


def acts(production: Production) -> dict[str, float]:
    """How often the operator did what, except measuring, which writes nothing."""
    return {
        name: number
        for name, number in production.metrics().items()
        if name.startswith(_ACTS) and 'kind="measure"' not in name
    }


def quiet(production: Production) -> bool:
    """Whether the operator did nothing for some seconds."""
    before = acts(production)
    time.sleep(_QUIET_S)
    return acts(production) == before


# --- many services ------------------------------------------------------------------------------------------------


def services(production: Production, count: int) -> dict[str, Any]:
    """How long an operator that has just started takes until each of many new services has its objects and status."""
    model = f"bench-many-{stamp()}"
    one_release(production.installation, model, 700)
    name = str((production.api.get(TRITON_SERVICE, model) or {})["spec"]["revision"])
    revision = RevisionSpec.model_validate((production.api.get(TRITON_REVISION, name) or {})["spec"])
    names = [f"{model}-{number:03d}" for number in range(count)]
    with no_new_pods(production), stopped(production):
        for each in names:
            package = {**revision.package, "model": each}
            body = revision_object(each, production.api.namespace, revision.model_copy(update={"package": package}))
            production.api.apply(body)
            spec = ServiceSpec(model=each, revision=each, rollout=_ROLLOUT)
            production.api.apply(service_object(each, production.api.namespace, spec))
        started = time.monotonic()
        start(production)
        ready_s = until(
            lambda: running(production) and time.monotonic() - started, "the operator to start", every_s=0.5
        )
        try:
            until(lambda: reconciled(production, names), "all services", seconds=600, every_s=1)
            return {"services": count, "seconds": round(time.monotonic() - started, 1), "started_s": round(ready_s, 1)}
        finally:
            for each in names:
                production.api.delete(TRITON_SERVICE, each)
                production.api.delete(TRITON_REVISION, each)


def reconciled(production: Production, names: list[str]) -> bool:
    """Whether each service has a status about its spec, a Deployment and a Service."""
    bodies = {body["metadata"]["name"]: body for body in production.api.find(TRITON_SERVICE)}
    seen = sum(status_of(bodies[name]).observed_generation > 0 for name in names)
    made = {
        kind.name: len({body["metadata"]["name"] for body in production.api.find(kind)} & set(names))
        for kind in (DEPLOYMENT, SERVICE)
    }
    print(f"\r{seen} statuses, {made}", end="", flush=True)
    return seen == len(names) and set(made.values()) == {len(names)}


@contextmanager
def no_new_pods(production: Production) -> Iterator[None]:
    """A quota that is spent: no pod can be made in the serving namespace."""
    kind, name, _ = production.api.locate(_QUOTA)
    production.api.apply({**_QUOTA, "spec": {"hard": {"pods": "0"}}})
    try:
        yield
    finally:
        production.api.delete(kind, name)


@contextmanager
def stopped(production: Production) -> Iterator[None]:
    """The operator does not run, until something starts it; at the latest afterwards."""
    production.installation.api.merge(DEPLOYMENT, "operator", {"spec": {"replicas": 0}})
    until(lambda: not production.installation.api.find(POD, _OPERATOR), "the operator to end", seconds=90)
    try:
        yield
    finally:
        start(production)


def start(production: Production) -> None:
    """Lets the operator run."""
    production.installation.api.merge(DEPLOYMENT, "operator", {"spec": {"replicas": 1}})


def running(production: Production) -> bool:
    """Whether the operator's pod is ready."""
    body = production.installation.api.get(DEPLOYMENT, "operator") or {}
    return int(body.get("status", {}).get("readyReplicas") or 0) == 1


def main() -> None:
    """Runs the selected parts and writes the results of each as soon as it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", default="shiplift")
    parser.add_argument("--registry", default="", help="the registry's address, if the Service's is not reachable")
    parser.add_argument("--promotions", type=int, default=300, help="changes of revision under load; 0: none")
    parser.add_argument("--services", type=int, default=200, help="new services for a cold operator; 0: none")
    parser.add_argument("--no-idle", action="store_true", help="leave out the minute in which nothing happens")
    arguments = parser.parse_args()
    installation = Installation(arguments.namespace, arguments.registry)
    serving = Values(namespace=arguments.namespace).serving_namespace
    production = Production(installation, KubernetesClient(serving))
    parts: dict[str, Callable[[], Any]] = {}
    if arguments.promotions:
        parts["promotions"] = lambda: promotions(production, arguments.promotions)
    if not arguments.no_idle:
        parts["idle"] = lambda: idle(production)
    if arguments.services:
        parts["services"] = lambda: services(production, arguments.services)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results |= {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "measured": datetime.now().astimezone().date().isoformat(),
    }
    for name, measure in parts.items():
        try:
            results[name] = {**measure(), "load_average": round(os.getloadavg()[2], 1)}
        finally:
            installation.clean()
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        print(name, json.dumps(results[name], indent=1))


if __name__ == "__main__":
    main()
