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
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from kubernetes import client as kubernetes
from kubernetes import watch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from urllib3.exceptions import ProtocolError

from benchmarks.machine import until
from shiplift.pipelines.engines.argo.ending import attempts, stage_run
from shiplift.pipelines.engines.argo.layout import LIMITS
from shiplift.pipelines.engines.argo.workflows import Run, read
from shiplift.pipelines.installation.values import Values
from shiplift.pipelines.release import RELEASE
from shiplift.runtime.base.names import dns_name
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import connect
from shiplift.runtime.serving.kubernetes.kinds import DEPLOYMENT, SERVICE, WORKFLOW
from shiplift.runtime.serving.kubernetes.objects.names import LABEL
from shiplift.runtime.store.registry import CHAMPION, prepare_environment
from shiplift.runtime.store.registry_rest import PATIENT_S, RestRegistry

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
    def api(self) -> KubernetesClient:
        """What Shiplift itself knows of a cluster."""
        return KubernetesClient(self.namespace)

    @cached_property
    def core(self) -> Any:
        """The rest: nodes and settings."""
        return kubernetes.CoreV1Api(connect())

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
        service = (self.api.get(SERVICE, "mlflow") or {})["spec"]
        return f"http://{service['clusterIP']}:{service['ports'][0]['port']}"

    @cached_property
    def registry(self) -> RestRegistry:
        """What the releases write to."""
        return RestRegistry(self.mlflow.get_tracking_uri(), timeout_s=PATIENT_S)

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

    def of(self, name: str) -> list[Any]:
        """A model's Workflows."""
        return self.api.find(WORKFLOW, _of(name))

    def clean(self) -> None:
        """Removes what this benchmark registered, its Workflows and what serves."""
        for name in self.made:
            self.mlflow.MlflowClient().delete_registered_model(name)  # first: the reconciler would start it again
        serving = KubernetesClient(Values(namespace=self.namespace).serving_namespace)
        for name in self.made:
            for api, kind in ((self.api, WORKFLOW), (serving, DEPLOYMENT)):
                for one in api.find(kind, _of(name)):
                    api.delete(kind, one["metadata"]["name"])
        self.made.clear()


def _of(name: str) -> str:
    """The selector of a model's objects."""
    return f"{LABEL}model={dns_name(name)}"


def stamp() -> str:
    """What tells the names of one run from those of another."""
    return f"{int(time.time()) % 10**6:06d}"


# --- registration to served ---------------------------------------------------------------------------------------


def one_release(place: Place, name: str, samples: int) -> dict[str, Any]:
    """Registers a model and waits until it is the champion: seconds in all, in stages, and beside them."""
    logged = place.log(name, samples)
    started = time.time()
    version = place.register(name, logged)
    until(
        lambda: place.registry.aliases(name).get(CHAMPION) == version, f"{name}/{version} to be promoted",
        seconds=_RELEASE_S, every_s=0.5,
    )  # fmt: skip
    took = time.time() - started
    body = until(
        lambda: next((one for one in place.of(name) if not read(one).active), None), "its Workflow to end",
        seconds=_RELEASE_S, every_s=0.5,
    )  # fmt: skip
    runs = [stage_run(stage, node) for stage, node in attempts(body, RELEASE)]
    stages = {run.name: run.seconds for run in runs if run.name != "conclude"}
    path = sum(stages.values()) - beside(stages, "find_champion", "admit") - beside(stages, "find_targets", "export")
    return {"seconds": round(took, 1), "stages": stages, "argo_share": round(1 - path / took, 3)}


def beside(stages: dict[str, float], one: str, other: str) -> float:
    """What two stages that run at once don't add up to."""
    return min(stages.get(one, 0.0), stages.get(other, 0.0))


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
    asked = partial(
        kubernetes.CustomObjectsApi(connect()).list_namespaced_custom_object, *_ARGO, place.namespace, "workflows"
    )

    def look() -> None:
        listed = asked()
        at = listed["metadata"]["resourceVersion"]
        while not done.is_set():
            with contextlib.suppress(ProtocolError):  # the API server ends a watch when it likes
                for event in stream.stream(asked, resource_version=at):
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
            until(lambda: version in seen, f"version {version}'s Workflow", every_s=0.05)  # noqa: B023 - called here
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
            said = place.core.connect_get_node_proxy_with_path(
                node.metadata.name, "stats/summary", _preload_content=False
            )
            for pod in json.loads(said.data)["pods"]:
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
            for model, _, aliases in place.registry.models():
                if model in names and aliases.get(CHAMPION) == 1:
                    done.setdefault(model, time.time() - started)
            print(f"\r{len(done)} of {count} promoted after {time.time() - started:.0f} s", end="", flush=True)
            return len(done) == count or len(ended(runs_of(place, names))) == count

        until(look, "all releases to end", seconds=_ALL_S, every_s=_SAMPLE_S)
        print()
    runs = runs_of(place, names)
    waits = [run.first_pod_at - run.created_at for run in runs.values() if run.first_pod_at]
    return {
        "models": count, "promoted": len(done), "lost": [name for name in names if name not in runs],
        "seconds": round(max(done.values(), default=0.0), 1), "median_wait_s": round(median(waits), 1),
        "memory_mb": used,
    }  # fmt: skip


def runs_of(place: Place, names: list[str]) -> dict[str, Run]:
    """The Workflow of each model that has one, in one look at all of them."""
    runs = map(read, place.api.each(WORKFLOW))
    return {run.request.model: run for run in runs if run.request and run.request.model in names}


def ended(runs: dict[str, Run]) -> list[str]:
    """The models whose Workflow has ended."""
    return [name for name, run in runs.items() if not run.active]


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
