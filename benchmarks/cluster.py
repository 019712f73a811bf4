"""`make bench-cluster`: what a release costs on Kubernetes, with the Shiplift installed in KUBECONFIG's cluster.

It measures three things: the time from registration to serving, by stage, with the share of Argo and pod starts; the
time from a registration to its Workflow, over a hundred registrations while no release may start; and thirty models
registered at once, with the memory of the parts that handle them. The registry must be reachable from here
(`--registry`, or the Service's address on the cluster's own machine). Afterwards it removes its models, their Workflows
and the champions' pods.
"""

import argparse
import base64
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
from urllib3.exceptions import ProtocolError

from benchmarks.machine import until
from shiplift.pipelines.engines.argo.ending import stages_of
from shiplift.pipelines.engines.argo.layout import LIMITS, REGISTRY_ADMIN
from shiplift.pipelines.engines.argo.workflows import Run, nodes, read, seconds
from shiplift.pipelines.installation.values import Values
from shiplift.pipelines.release import RELEASE
from shiplift.runtime.base.names import dns_name
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.kinds import (
    DEPLOYMENT,
    POD,
    SECRET,
    SERVICE,
    TRITON_REVISION,
    TRITON_SERVICE,
    WORKFLOW,
)
from shiplift.runtime.serving.kubernetes.objects.names import LABEL
from shiplift.runtime.store.registry.client import prepare_environment
from shiplift.runtime.store.registry.rest import PATIENT_S, RestRegistry
from shiplift.runtime.store.registry.terms import CHAMPION

RESULTS = Path(__file__).parent / "results" / "cluster.json"
SPEC = """
search: {time_budget_s: 2, max_batch: [8], queue_delay_us: [0], instances: [1], threads: [1], window_ms: 100}
load: {concurrency: [1, 4], window_ms: 100, attempts: 1, comparison_rounds: 1, open_loop_s: 0}
"""
_ARGO = ("argoproj.io", "v1alpha1")
_ARGO_NAMESPACE = "argo"  # of its controller
_RELEASE_S, _ALL_S = 600, 3600
_SAMPLE_S = 2.0
_SERVING = (TRITON_REVISION, DEPLOYMENT)
_PARTS = ("receiver", "reconciler", "operator", "mlflow", "workflow-controller")


@dataclass
class Installation:
    """An installed Shiplift and its registry."""

    namespace: str
    registry_uri: str = ""
    models: list[str] = field(default_factory=list)

    @cached_property
    def api(self) -> KubernetesClient:
        """Shiplift's own client."""
        return KubernetesClient(self.namespace)

    @cached_property
    def serving(self) -> KubernetesClient:
        """The client of the namespace where models serve."""
        return KubernetesClient(Values(namespace=self.namespace).serving_namespace)

    @cached_property
    def core(self) -> Any:
        """Kubernetes' core API, for nodes and ConfigMaps."""
        from kubernetes import client, config

        return client.CoreV1Api(config.new_client_from_config())

    @cached_property
    def mlflow(self) -> Any:
        """The `mlflow` module, connected to the registry."""
        prepare_environment()
        uri = self.registry_uri or self._service_address()
        os.environ |= {"NO_PROXY": "*", "no_proxy": "*", "MLFLOW_TRACKING_URI": uri, **self._account()}
        import mlflow

        mlflow.set_tracking_uri(uri)
        mlflow.set_registry_uri(uri)
        return mlflow

    def _account(self) -> dict[str, str]:
        """The variables with an account of the installed registry; none for another one."""
        data = (self.api.get(SECRET, REGISTRY_ADMIN) or {}).get("data") or {}
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def _service_address(self) -> str:
        service = (self.api.get(SERVICE, "mlflow") or {})["spec"]
        return f"http://{service['clusterIP']}:{service['ports'][0]['port']}"

    @cached_property
    def registry(self) -> RestRegistry:
        """The registry that releases write to."""
        return RestRegistry(self.mlflow.get_tracking_uri(), timeout_s=PATIENT_S)

    def log(self, name: str, samples: int) -> Any:
        """Logs a digit classifier with spec and validation set; returns MLflow's model information."""
        from sklearn.datasets import load_digits
        from sklearn.linear_model import LogisticRegression

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
        """Registers a logged model; returns its version."""
        if name not in self.models:
            self.models.append(name)
            self.mlflow.MlflowClient().create_registered_model(name)
        created = self.mlflow.MlflowClient().create_model_version(
            name, logged.model_uri, run_id=logged.run_id, model_id=logged.model_id
        )
        return int(created.version)

    def workflows(self, name: str) -> list[Any]:
        """The Workflows of a model."""
        return self.api.find(WORKFLOW, selector(name))

    def clean(self) -> None:
        """Removes the models that this benchmark registered, their Workflows and what serves them."""
        for name in self.models:
            self.mlflow.MlflowClient().delete_registered_model(name)  # first, or else the reconciler would restart it
        for name in self.models:
            self.serving.delete(TRITON_SERVICE, dns_name(name))
            # A Deployment of a version that was never promoted belongs to no service.
            for api, kind in ((self.api, WORKFLOW), *((self.serving, kind) for kind in _SERVING)):
                for body in api.find(kind, selector(name)):
                    api.delete(kind, body["metadata"]["name"])
        self.models.clear()


def selector(name: str) -> str:
    """The label selector of a model's objects."""
    return f"{LABEL}model={dns_name(name)}"


def stamp() -> str:
    """A suffix that distinguishes the names of this run from those of others."""
    return f"{int(time.time()) % 10**6:06d}"


# --- registration to served ---------------------------------------------------------------------------------------


def releases(installation: Installation, count: int) -> list[dict[str, Any]]:
    """Releases of `count` models, one after another; each model is gone before the next needs its room."""
    measured = []
    for number in range(count):
        name = f"bench-release-{stamp()}"
        measured.append(one_release(installation, name, 600 + 50 * number))
        installation.clean()
        until(partial(_gone, installation, name), f"{name}'s pods to end", seconds=_RELEASE_S)
    return measured


def _gone(installation: Installation, name: str) -> bool:
    return not installation.serving.find(POD, selector(name))


def one_release(installation: Installation, name: str, samples: int) -> dict[str, Any]:
    """Registers a model and waits until it is the champion: total seconds, by stage, and the share of Argo."""
    logged = installation.log(name, samples)
    started = time.time()
    version = installation.register(name, logged)
    until(
        lambda: promoted(installation, name, version),
        f"{name}/{version} to be promoted",
        seconds=_RELEASE_S,
        every_s=0.5,
    )
    total = time.time() - started
    body = until(
        lambda: next((body for body in installation.workflows(name) if not read(body).active), None),
        "its Workflow to end",
        seconds=_RELEASE_S,
        every_s=0.5,
    )
    stages = {reached.run.name: reached.run.seconds for reached in stages_of(body, RELEASE)}
    path = sum(seconds for name, seconds in stages.items() if name != "find_champion")  # which runs beside `prepare`
    share = 1 - path / total
    return {"seconds": round(total, 1), "stages": stages, "argo_share": round(share, 3), "pods": pods_of(body)}


def promoted(installation: Installation, name: str, version: int) -> bool:
    """Whether the version is the champion; ends the benchmark with the reason if its Workflow ended without that."""
    if installation.registry.aliases(name).get(CHAMPION) == version:
        return True
    for body in installation.workflows(name):
        if not read(body).active and installation.registry.aliases(name).get(CHAMPION) != version:
            raise SystemExit(f"{name}/{version} was not promoted: {body['status'].get('message', '')}")
    return False


def pods_of(body: Any) -> dict[str, list[float]]:
    """When each pod of a Workflow began and ended, in seconds since the Workflow was created."""
    created = seconds(body["metadata"]["creationTimestamp"])
    pods = sorted((node for node in nodes(body["status"]) if node["type"] == "Pod"), key=lambda node: node["startedAt"])
    return {
        node["templateName"]: [seconds(node[when]) - created for when in ("startedAt", "finishedAt")] for node in pods
    }


# --- webhook to Workflow ------------------------------------------------------------------------------------------


@contextmanager
def releases_held(installation: Installation) -> Iterator[None]:
    """Workflows are created but wait: the limit of parallel releases is zero."""
    before = installation.core.read_namespaced_config_map(LIMITS, installation.namespace).data
    installation.core.patch_namespaced_config_map(LIMITS, installation.namespace, {"data": {"releases": "0"}})
    try:
        yield
    finally:
        installation.core.patch_namespaced_config_map(LIMITS, installation.namespace, {"data": before})


def webhooks(installation: Installation, count: int) -> dict[str, Any]:
    """Milliseconds from the start of a registration until its Workflow is observed, one registration at a time."""
    from kubernetes import client, config, watch

    name = f"bench-webhook-{stamp()}"
    logged = installation.log(name, 200)
    created_at: dict[str, float] = {}
    stream, done = watch.Watch(), threading.Event()
    list_workflows = partial(
        client.CustomObjectsApi(config.new_client_from_config()).list_namespaced_custom_object,
        *_ARGO,
        installation.namespace,
        "workflows",
    )

    def watch_workflows() -> None:
        listed = list_workflows()
        resource_version = listed["metadata"]["resourceVersion"]
        while not done.is_set():
            with contextlib.suppress(ProtocolError):  # the API server may end a watch at any time
                for event in stream.stream(list_workflows, resource_version=resource_version):
                    resource_version = event["object"]["metadata"]["resourceVersion"]
                    labels = event["object"]["metadata"].get("labels", {})
                    if event["type"] == "ADDED" and labels.get(f"{LABEL}model") == dns_name(name):
                        created_at.setdefault(labels[f"{LABEL}version"], time.time())

    with releases_held(installation):
        threading.Thread(target=watch_workflows, daemon=True).start()
        delays = []
        for _ in range(count):
            started = time.time()
            version = str(installation.register(name, logged))
            until(lambda: version in created_at, f"version {version}'s Workflow", every_s=0.05)  # noqa: B023 - called here
            delays.append(1000 * (created_at[version] - started))
        done.set()
        stream.stop()
        installation.clean()
    p50, p99 = (round(float(value), 1) for value in np.percentile(delays, [50, 99]))
    return {"registrations": count, "p50_ms": p50, "p99_ms": p99, "max_ms": round(max(delays), 1)}


# --- many at once -------------------------------------------------------------------------------------------------


@contextmanager
def memory(installation: Installation) -> Iterator[dict[str, float]]:
    """Yields each part's largest working set, over all its pods, while the context lasts: in MB, by the kubelets."""
    peaks: dict[str, float] = {}
    stop = threading.Event()

    def sample() -> None:
        used: dict[str, float] = {}
        for node in installation.core.list_node().items:
            summary = installation.core.connect_get_node_proxy_with_path(
                node.metadata.name, "stats/summary", _preload_content=False
            )
            for pod in json.loads(summary.data)["pods"]:
                where, name = pod["podRef"]["namespace"], pod["podRef"]["name"]
                part = next((each for each in _PARTS if name.startswith(each)), "")
                if part and where in (installation.namespace, _ARGO_NAMESPACE):
                    used[part] = used.get(part, 0.0) + pod.get("memory", {}).get("workingSetBytes", 0) / 1e6
        for part, megabytes in used.items():
            peaks[part] = max(peaks.get(part, 0.0), round(megabytes, 1))

    def sample_repeatedly() -> None:
        while not stop.wait(_SAMPLE_S):
            sample()

    thread = threading.Thread(target=sample_repeatedly, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        stop.set()
        thread.join()


def many(installation: Installation, count: int) -> dict[str, Any]:
    """Registers models at once: how long until all are champions, and which were not promoted."""
    names = [f"bench-{stamp()}-{number:02d}" for number in range(count)]
    logged = [installation.log(name, 300 + 20 * number) for number, name in enumerate(names)]
    with memory(installation) as used:
        started = time.time()
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(installation.register, names, logged))
        promoted: dict[str, float] = {}

        def all_ended() -> bool:
            for model, _, aliases in installation.registry.models():
                if model in names and aliases.get(CHAMPION) == 1:
                    promoted.setdefault(model, time.time() - started)
            print(f"\r{len(promoted)} of {count} promoted after {time.time() - started:.0f} s", end="", flush=True)
            return len(promoted) == count or len(ended(runs_of(installation, names))) == count

        until(all_ended, "all releases to end", seconds=_ALL_S, every_s=_SAMPLE_S)
        print()
    runs = runs_of(installation, names)
    waits = [run.first_pod_at - run.created_at for run in runs.values() if run.first_pod_at]
    return {
        "models": count,
        "promoted": len(promoted),
        "lost": [name for name in names if name not in runs],
        "seconds": round(max(promoted.values(), default=0.0), 1),
        "median_wait_s": round(median(waits), 1),
        "memory_mb": used,
    }


def runs_of(installation: Installation, names: list[str]) -> dict[str, Run]:
    """The Workflow of each model that has one, from a single list request."""
    runs = map(read, installation.api.each(WORKFLOW))
    return {run.request.model: run for run in runs if run.request and run.request.model in names}


def ended(runs: dict[str, Run]) -> list[str]:
    """The models whose Workflow has ended."""
    return [name for name, run in runs.items() if not run.active]


def main() -> None:
    """Runs the selected parts and writes the results of each as soon as it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", default="shiplift")
    parser.add_argument("--registry", default="", help="the registry's address, if the Service's is not reachable")
    parser.add_argument("--releases", type=int, default=3, help="releases, one after another; 0: none")
    parser.add_argument("--webhooks", type=int, default=100, help="registrations, one after another; 0: none")
    parser.add_argument("--models", type=int, default=30, help="models registered at once; 0: none")
    arguments = parser.parse_args()
    installation = Installation(arguments.namespace, arguments.registry)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results |= {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "measured": datetime.now().astimezone().date().isoformat(),
    }
    parts: dict[str, Callable[[], Any]] = {}
    if arguments.releases:
        parts["release"] = lambda: releases(installation, arguments.releases)
    if arguments.webhooks:
        parts["webhook_to_workflow"] = lambda: webhooks(installation, arguments.webhooks)
    if arguments.models:
        parts["at_once"] = lambda: many(installation, arguments.models)
    for name, measure in parts.items():
        try:
            results[name] = measure()
        finally:
            installation.clean()
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        print(name, json.dumps(results[name], indent=1))


if __name__ == "__main__":
    main()
