"""`make bench-cluster`: what a release costs on Kubernetes, on the Shiplift that is installed in KUBECONFIG's cluster.

Registration to served, stage by stage, and what Argo and the pods' starts add; MLflow's webhook to the Workflow, over
a hundred registrations while no release may start; thirty models registered at once, with the memory of what handles
them. The registry must be reachable from here (`--registry`, or the Service's address where the cluster is here).
Models and Workflows it made are removed again; the champions' pods with them.
"""

import argparse
import contextlib
import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from kubernetes import client as kubernetes
from kubernetes import watch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from urllib3.exceptions import ProtocolError

from pipelines.ending import attempts, stage_run
from pipelines.layout import LIMITS
from pipelines.release import RELEASE
from pipelines.values import Values
from pipelines.workflows import seconds
from runtime.kubernetes.api import connect
from runtime.kubernetes.objects import LABEL
from runtime.names import dns_name
from runtime.registry import CHAMPION, Registry, prepare_environment

RESULTS = Path(__file__).parent / "results" / "cluster.json"
SPEC = """
search: {time_budget_s: 2, max_batch: [8], queue_delay_us: [0], instances: [1], threads: [1], window_ms: 100}
load: {concurrency: [1, 4], window_ms: 100, attempts: 1, comparison_rounds: 1, open_loop_s: 0}
"""
_ARGO = ("argoproj.io", "v1alpha1")
_RELEASE_S, _ALL_S = 600, 3600
_SAMPLE_S = 2.0
_PARTS = ("receiver", "reconciler", "mlflow", "workflow-controller")


@dataclass
class Place:
    """An installed Shiplift and its registry."""

    namespace: str
    registry_uri: str = ""
    made: list[str] = field(default_factory=list)

    @cached_property
    def _api(self) -> Any:
        return connect()

    @cached_property
    def core(self) -> Any:
        """Kubernetes' own objects."""
        return kubernetes.CoreV1Api(self._api)

    @cached_property
    def custom(self) -> Any:
        """Argo's objects."""
        return kubernetes.CustomObjectsApi(self._api)

    @cached_property
    def mlflow(self) -> Any:
        """MLflow's module, talking to that registry."""
        prepare_environment()
        uri = self.registry_uri or self._service_address()
        os.environ |= {"NO_PROXY": "*", "no_proxy": "*", "MLFLOW_TRACKING_URI": uri}
        import mlflow

        mlflow.set_tracking_uri(uri)
        mlflow.set_registry_uri(uri)
        return mlflow

    def _service_address(self) -> str:
        service = self.core.read_namespaced_service("mlflow", self.namespace).spec
        return f"http://{service.cluster_ip}:{service.ports[0].port}"

    @cached_property
    def registry(self) -> Registry:
        """What the releases write to."""
        return Registry(self.mlflow.get_tracking_uri())

    def log(self, name: str, samples: int) -> Any:
        """Logs a digit classifier of its own with spec and validation set; gives MLflow's model information."""

        images, labels = load_digits(return_X_y=True)
        images = (images / 16).astype(np.float32)
        model = LogisticRegression(max_iter=200).fit(images[:samples], labels[:samples])
        signature = self.mlflow.models.infer_signature(images[:4], model.predict(images[:4]))
        with self.mlflow.start_run(), tempfile.TemporaryDirectory() as folder:
            self.mlflow.log_text(SPEC, "shiplift/shiplift.yaml")
            file = Path(folder) / "validation.npz"
            np.savez(file, input=images[1200:], label=labels[1200:])
            self.mlflow.log_artifact(str(file), "shiplift")
            return self.mlflow.sklearn.log_model(
                model, name=name, signature=signature, input_example=images[:4], pip_requirements=[]
            )

    def register(self, name: str, logged: Any) -> int:
        """Registers what was logged; gives the version."""
        if name not in self.made:
            self.made.append(name)
            self.mlflow.MlflowClient().create_registered_model(name)
        made = self.mlflow.MlflowClient().create_model_version(
            name, logged.model_uri, run_id=logged.run_id, model_id=logged.model_id
        )
        return int(made.version)

    def workflows(self) -> list[Any]:
        """The Workflows there are."""
        return list(self.custom.list_namespaced_custom_object(*_ARGO, self.namespace, "workflows")["items"])

    def of(self, name: str) -> list[Any]:
        """A model's Workflows."""
        return [
            one for one in self.workflows() if one["metadata"].get("labels", {}).get(f"{LABEL}model") == dns_name(name)
        ]

    def clean(self) -> None:
        """Removes what this benchmark registered, its Workflows and what serves."""
        for name in self.made:
            self.mlflow.MlflowClient().delete_registered_model(name)  # first: the reconciler would start it again
        for one in [body for name in self.made for body in self.of(name)]:
            self.custom.delete_namespaced_custom_object(*_ARGO, self.namespace, "workflows", one["metadata"]["name"])
        serving = Values(namespace=self.namespace).serving_namespace
        apps = kubernetes.AppsV1Api(self._api)
        for name in self.made:
            apps.delete_collection_namespaced_deployment(serving, label_selector=f"{LABEL}model={dns_name(name)}")
        self.made.clear()


def until(look: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """What `look` gives once it is true."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise SystemExit(f"waited {timeout_s} s for {what}")


def stamp() -> str:
    """What tells the names of one run from those of another."""
    return f"{int(time.time()) % 10**6:06d}"


# --- registration to served ---------------------------------------------------------------------------------------


def one_release(place: Place, name: str, samples: int) -> dict[str, Any]:
    """Registers a model and waits until it is the champion: seconds in all, in stages, and beside them."""
    logged = place.log(name, samples)
    started = time.time()
    version = place.register(name, logged)
    until(lambda: place.registry.alias(name, CHAMPION) == version, _RELEASE_S, f"{name}/{version} to be promoted")
    took = time.time() - started
    body = until(lambda: next((one for one in place.of(name) if ended(one)), None), _RELEASE_S, "its Workflow to end")
    runs = [stage_run(stage, node) for stage, node in attempts(body, RELEASE)]
    stages = {run.name: run.seconds for run in runs if run.name != "conclude"}
    path = sum(stages.values()) - beside(stages, "find_champion", "admit") - beside(stages, "find_targets", "export")
    return {"seconds": round(took, 1), "stages": stages, "argo_share": round(1 - path / took, 3)}


def beside(stages: dict[str, float], one: str, other: str) -> float:
    """What two stages that run at once don't add up to."""
    return min(stages.get(one, 0.0), stages.get(other, 0.0))


def ended(body: Any) -> bool:
    """Whether a Workflow has ended."""
    return body.get("status", {}).get("phase") in ("Succeeded", "Failed", "Error")


# --- webhook to Workflow ------------------------------------------------------------------------------------------


@contextmanager
def nothing_starts(place: Place) -> Iterator[None]:
    """Workflows are created, and wait: the limit of releases at once is none."""
    before = place.core.read_namespaced_config_map(LIMITS, place.namespace).data
    place.core.patch_namespaced_config_map(LIMITS, place.namespace, {"data": {"releases": "0"}})
    try:
        yield
    finally:
        place.core.patch_namespaced_config_map(LIMITS, place.namespace, {"data": before})


def webhooks(place: Place, count: int) -> dict[str, Any]:
    """Milliseconds from before a registration to its Workflow being seen, one registration at a time."""
    name = f"bench-webhook-{stamp()}"
    logged = place.log(name, 200)
    seen: dict[str, float] = {}
    stream, done = watch.Watch(), threading.Event()

    def look() -> None:
        listed = place.custom.list_namespaced_custom_object(*_ARGO, place.namespace, "workflows")
        at = listed["metadata"]["resourceVersion"]
        while not done.is_set():
            with contextlib.suppress(ProtocolError):  # the API server ends a watch when it likes
                for event in stream.stream(
                    place.custom.list_namespaced_custom_object, *_ARGO, place.namespace, "workflows",
                    resource_version=at,
                ):  # fmt: skip
                    at = event["object"]["metadata"]["resourceVersion"]
                    labels = event["object"]["metadata"].get("labels", {})
                    if event["type"] == "ADDED" and labels.get(f"{LABEL}model") == dns_name(name):
                        seen.setdefault(labels[f"{LABEL}version"], time.time())

    with nothing_starts(place):
        threading.Thread(target=look, daemon=True).start()
        took = []
        for _ in range(count):
            started = time.time()
            version = str(place.register(name, logged))
            until(lambda: version in seen, 60, f"version {version}'s Workflow")  # noqa: B023 - called here
            took.append(1000 * (seen[version] - started))
        done.set()
        stream.stop()
        place.clean()
    p50, p99 = (round(float(one), 1) for one in np.percentile(took, [50, 99]))
    return {"registrations": count, "p50_ms": p50, "p99_ms": p99, "max_ms": round(max(took), 1)}


# --- many at once -------------------------------------------------------------------------------------------------


@contextmanager
def memory(place: Place) -> Iterator[dict[str, float]]:
    """The largest working set of each part's pods meanwhile, in MB, as the kubelets tell it."""
    most: dict[str, float] = {}
    stop = threading.Event()

    def sample() -> None:
        for node in place.core.list_node().items:
            said = place.core.connect_get_node_proxy_with_path(node.metadata.name, "stats/summary")
            for pod in (said if isinstance(said, dict) else json.loads(said.replace("'", '"')))["pods"]:
                part = next((one for one in _PARTS if pod["podRef"]["name"].startswith(one)), "")
                if part:
                    used = pod.get("memory", {}).get("workingSetBytes", 0) / 1e6
                    most[part] = max(most.get(part, 0.0), round(used, 1))

    def watch_it() -> None:
        while not stop.wait(_SAMPLE_S):
            sample()

    thread = threading.Thread(target=watch_it, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        stop.set()
        thread.join()


def many(place: Place, count: int) -> dict[str, Any]:
    """Registers models at once: how long until all are champions, and what is not."""
    names = [f"bench-{stamp()}-{number:02d}" for number in range(count)]
    logged = [place.log(name, 300 + 20 * number) for number, name in enumerate(names)]
    with memory(place) as used:
        started = time.time()
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(place.register, names, logged))
        done: dict[str, float] = {}

        def look() -> bool:
            done.update({
                name: time.time() - started
                for name in names if name not in done and place.registry.alias(name, CHAMPION) == 1
            })  # fmt: skip
            print(f"\r{len(done)} of {count} promoted after {time.time() - started:.0f} s", end="", flush=True)
            return len(done) == count or all(any(map(ended, place.of(name))) for name in names)

        until(look, _ALL_S, "all releases to end")
        print()
    waits = [started_after(place.of(name)[0]) for name in names]
    return {
        "models": count, "promoted": len(done), "lost": [name for name in names if not place.of(name)],
        "seconds": round(max(done.values(), default=0.0), 1), "median_wait_s": round(median(waits), 1),
        "memory_mb": used,
    }  # fmt: skip


def started_after(body: Any) -> float:
    """Seconds from a Workflow's creation to its first pod."""
    pods = [seconds(node.get("startedAt")) for node in body["status"]["nodes"].values() if node["type"] == "Pod"]
    return min(pods) - seconds(body["metadata"]["creationTimestamp"])


def main() -> None:
    """Runs the parts asked for and writes each one's figures as it has them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", default="shiplift")
    parser.add_argument("--registry", default="", help="the registry's address, where the Service's is not reachable")
    parser.add_argument("--releases", type=int, default=3, help="releases one after the other; 0: none")
    parser.add_argument("--webhooks", type=int, default=100, help="registrations one after the other; 0: none")
    parser.add_argument("--models", type=int, default=30, help="models registered at once; 0: none")
    asked = parser.parse_args()
    place = Place(asked.namespace, asked.registry)
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    found |= {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "measured": datetime.now().astimezone().date().isoformat(),
    }
    parts: dict[str, Callable[[], Any]] = {}
    if asked.releases:
        parts["release"] = lambda: [
            one_release(place, f"bench-release-{stamp()}", 600 + 50 * number) for number in range(asked.releases)
        ]
    if asked.webhooks:
        parts["webhook_to_workflow"] = lambda: webhooks(place, asked.webhooks)
    if asked.models:
        parts["at_once"] = lambda: many(place, asked.models)
    for name, measure in parts.items():
        try:
            found[name] = measure()
        finally:
            place.clean()
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        print(name, json.dumps(found[name], indent=1))


if __name__ == "__main__":
    main()
