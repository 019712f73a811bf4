"""The Kubernetes objects of a served model, as data: what a platform engineer would have written by hand.

One Deployment and Service per package (version and digest), so champion and challenger stand side by side and nothing
is ever changed under traffic; and per model one front Service, whose name clients use, with routes that share the
traffic out by weight (Gateway API v1).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.names import dns_name, serving_name
from shiplift.runtime.records.serving import Package
from shiplift.runtime.records.site import Cluster, GatewayRef

Object = dict[str, Any]
LABEL = "shiplift.dev/"
HTTP, GRPC, METRICS = 8000, 8001, 8002
USER = 10001
DRAIN_S = 8  # between a pod's end being announced and its server being told: proxies then know
_GRACE_S = 45
_MODELS, _GUARD = "/models", "/shiplift"
_TMP, _SHM = "/tmp", "/dev/shm"  # noqa: S108 - in the container


def package_name(package: Package) -> str:
    """The name of a package's Deployment and Service."""
    return f"{dns_name(package.model)}-{package.version}-{package.repository.sha256[:8]}"


def labels(package: Package, name: str) -> dict[str, str]:
    """What a package's objects are found by."""
    return {
        "app.kubernetes.io/name": "triton",
        "app.kubernetes.io/managed-by": "shiplift",
        f"{LABEL}model": dns_name(package.model),
        f"{LABEL}version": str(package.version),
        f"{LABEL}package": name,
    }


def deployment(
    cluster: Cluster, package: Package, artifacts_uri: str, *, name: str, replicas: int, extra: dict[str, str]
) -> Object:
    """Triton with one model, fetched by digest before it starts; replaced without a gap, drained before it ends.

    Raises:
        SpecInvalid: the package is for NVIDIA's server, and its target names no image of it.
    """
    marks = labels(package, name)
    pod = {
        **confined(package),
        "terminationGracePeriodSeconds": _GRACE_S,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {f"{LABEL}package": name}},
            }
        ],
        "initContainers": [fetch_container(cluster, package, artifacts_uri)],
        "containers": [_serving_triton(cluster, package)],
        "volumes": volumes(package),
    }  # fmt: skip
    scrape = {"prometheus.io/scrape": "true", "prometheus.io/port": str(METRICS)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": marks | extra, "annotations": {f"{LABEL}model-name": package.model}},
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": {f"{LABEL}package": name}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": marks, "annotations": scrape}, "spec": pod},
        },
    }


def confined(package: Package) -> Object:
    """What holds of every pod with a package: no rights, no token, and the nodes that its target says."""
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": package.nodes.selector,
        "tolerations": list(package.nodes.tolerations),
    }  # fmt: skip


def volumes(package: Package) -> list[Object]:
    """The volumes that the containers of such a pod mount."""
    nvidia = package.server == "nvidia"
    return [
        {"name": "models", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        *([{"name": "guard", "emptyDir": {}}, {"name": "engines", "emptyDir": {}}] if nvidia else []),
    ]


def fetch_container(
    cluster: Cluster, package: Package, artifacts_uri: str, *, name: str = "fetch", served_as: str = ""
) -> Object:
    """The init container that fetches a package by its digest."""
    guard = {"guard": _GUARD} if package.server == "nvidia" else {}
    return {
        "name": name,
        **_image(cluster, cluster.server_image),
        "command": ["python", "-m", "shiplift.runtime.serving.kubernetes.fetch"],
        "args": [
            "--artifacts-uri", artifacts_uri, "--sha256", package.repository.sha256, "--to", _MODELS, "--name",
            serving_name(package.model), *(["--served-as", served_as] if served_as else []),
            *(["--guard", _GUARD] if guard else []),
        ],
        "envFrom": [{"secretRef": {"name": "shiplift-artifacts", "optional": True}}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "volumeMounts": _mounts({"models": _MODELS, "tmp": _TMP} | guard),
    }  # fmt: skip


def _serving_triton(cluster: Cluster, package: Package) -> Object:
    model = serving_name(package.model)
    watched = {
        "startupProbe": probe("/v2/health/ready", periodSeconds=1, failureThreshold=cluster.ready_timeout_s),
        "livenessProbe": probe("/v2/health/live", periodSeconds=10, failureThreshold=3),
        "readinessProbe": probe(f"/v2/models/{model}/ready", periodSeconds=2, failureThreshold=3),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(DRAIN_S)]}}},
    }
    return triton_container(cluster, package, [model], load=[model], watched=watched)


def triton_container(
    cluster: Cluster, package: Package, models: Sequence[str], *, load: Sequence[str], watched: Object, meter: str = ""
) -> Object:
    """The package's server with a repository of these models; those to `load` are there from its start.

    `watched` are its probes, and what it does before it ends. With a `meter` it is the server of a bench, and tells
    there what it uses.
    """
    gpus = {"nvidia.com/gpu": str(package.nodes.gpus)} if package.nodes.gpus else {}
    server = _nvidia_server if package.server == "nvidia" else _bundled_server
    return {
        "name": "triton",
        **server(cluster, package, models, load, ["--meter", meter] if meter else []),
        "ports": [
            {"name": "http", "containerPort": HTTP},
            {"name": "grpc", "containerPort": GRPC},
            {"name": "metrics", "containerPort": METRICS},
        ],
        **watched,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {
            "requests": {"cpu": cluster.server_cpu_request, "memory": "256Mi"},
            "limits": {"memory": cluster.server_memory_limit, **gpus},
        },
    }


def _bundled_server(
    cluster: Cluster, package: Package, models: Sequence[str], _: Sequence[str], meter: list[str]
) -> Object:
    """The Triton of our own image, which loads all that it has, or in a bench nothing."""
    limiter = ["--rate-limiter"] if package.needs.rate_limiter else []
    there = [word for model in models for word in ("--model", model)]
    return {
        **_image(cluster, cluster.server_image),
        "command": ["python", "-m", "shiplift.runtime.serving.kubernetes.serve"],
        "args": ["--repository", _MODELS, *there, *limiter, *meter],
        "volumeMounts": _mounts({"models": _MODELS, "tmp": _TMP, "shm": _SHM}),
    }


def _nvidia_server(
    cluster: Cluster, package: Package, models: Sequence[str], load: Sequence[str], meter: list[str]
) -> Object:
    """The target's own image, through `runtime.serving.kubernetes.guard`."""
    from shiplift.runtime.serving.kubernetes.serve import PORTS  # noqa: PLC0415 - these import gRPC
    from shiplift.runtime.serving.triton.config import TENSORRT_CACHE  # noqa: PLC0415
    from shiplift.runtime.serving.triton.server import nvidia_command  # noqa: PLC0415

    if not package.nodes.image:
        raise SpecInvalid(
            f"target {package.target} has `server: nvidia` and names no `image` to run on a cluster",
            do="Give the target its Triton image, such as your mirror of NVIDIA's.",
        )
    home = [{"name": "HOME", "value": _TMP}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}]
    folders = {"models": _MODELS, "tmp": _TMP, "shm": _SHM, "guard": _GUARD, "engines": TENSORRT_CACHE}
    checked = [word for model in models for word in ("--model", f"{_MODELS}/{model}")]
    return {
        **_image(cluster, package.nodes.image),
        "command": ["python3", f"{_GUARD}/guard.py", *checked, *meter, "--"],
        "args": nvidia_command(Path(_MODELS), PORTS, package.needs, load=load),
        "env": home,
        "volumeMounts": _mounts(folders),
    }


def _mounts(folders: dict[str, str]) -> list[Object]:
    return [{"name": name, "mountPath": path} for name, path in folders.items()]


def _image(cluster: Cluster, image: str) -> Object:
    return {
        "image": image,
        "imagePullPolicy": cluster.pull_policy,
        "securityContext": {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        },
    }  # fmt: skip


def probe(path: str, **times: int) -> Object:
    """A probe of Triton's HTTP port."""
    return {"httpGet": {"path": path, "port": "http"}, "timeoutSeconds": 5, **times}


def service(package: Package, *, name: str, extra: dict[str, str]) -> Object:
    """The address of one package: for tests before it takes traffic, and for routes."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels(package, name) | extra},
        "spec": {"selector": {f"{LABEL}package": name}, "ports": _ports()},
    }


def _ports() -> list[Object]:
    return [
        {"name": "http", "port": HTTP, "targetPort": HTTP, "appProtocol": "http"},
        {"name": "grpc", "port": GRPC, "targetPort": GRPC, "appProtocol": "kubernetes.io/h2c"},
        {"name": "metrics", "port": METRICS, "targetPort": METRICS},
    ]


def disruption_budget(package: Package, *, name: str) -> Object:
    """One pod at a time may be taken by a node's maintenance."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "labels": labels(package, name)},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {f"{LABEL}package": name}}},
    }


# --- the front: the name that clients use ---------------------------------------------------------------------------


def hostnames(model: str, cluster: Cluster) -> list[str]:
    """The names under which clients in the cluster reach a model."""
    name, namespace = dns_name(model), cluster.serving_namespace
    return [name, f"{name}.{namespace}", f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local"]


def _front(model: str, **more: str) -> Object:
    marks = {"app.kubernetes.io/managed-by": "shiplift", f"{LABEL}model": dns_name(model)}
    return {"name": dns_name(model), "labels": marks, "annotations": {f"{LABEL}model-name": model, **more}}


def front_switched(model: str, to: str, before: str) -> Object:
    """Without a gateway: the front Service selects one package's pods."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _front(model, **{f"{LABEL}serves": to, f"{LABEL}before": before}),
        "spec": {"selector": {f"{LABEL}package": to}, "ports": _ports()},
    }


def front_of_gateway(model: str, address: str) -> list[Object]:
    """With a gateway: the front Service's name resolves to the gateway's address, a host name or an IP."""
    if not address.replace(".", "").isdigit() and ":" not in address:
        return [
            {
                "apiVersion": "v1", "kind": "Service", "metadata": _front(model),
                "spec": {"type": "ExternalName", "externalName": address},
            }
        ]  # fmt: skip
    ports = [{"name": "http", "port": HTTP}, {"name": "grpc", "port": GRPC}]
    slice_meta = _front(model)
    slice_meta["labels"] = {**slice_meta["labels"], "kubernetes.io/service-name": dns_name(model)}
    return [
        {
            "apiVersion": "v1", "kind": "Service", "metadata": _front(model),
            "spec": {"clusterIP": "None", "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": slice_meta,
            "addressType": "IPv6" if ":" in address else "IPv4", "endpoints": [{"addresses": [address]}],
            "ports": ports,
        },
    ]  # fmt: skip


def routes(model: str, cluster: Cluster, gateway: GatewayRef, weights: dict[str, int]) -> list[Object]:
    """The traffic of a model, shared out over packages' Services by weight: HTTP by host name and by path, gRPC."""
    name = dns_name(model)

    def backends(port: int) -> list[Object]:
        return [{"name": to, "port": port, "weight": weight} for to, weight in weights.items()]

    def route(kind: str, section: str, rule: Object, *, suffix: str = "", hosts: list[str] | None = None) -> Object:
        parent = {"name": gateway.name, "namespace": gateway.namespace, "sectionName": section}
        return {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": kind,
            "metadata": {**_front(model), "name": name + suffix},
            "spec": {"parentRefs": [parent], **({"hostnames": hosts} if hosts else {}), "rules": [rule]},
        }

    path = {"path": {"type": "PathPrefix", "value": f"/v2/models/{serving_name(model)}"}}
    hosts = hostnames(model, cluster)
    return [
        route("GRPCRoute", "grpc", {"backendRefs": backends(GRPC)}, hosts=hosts),
        route("HTTPRoute", "http", {"backendRefs": backends(HTTP)}, hosts=hosts),
        route("HTTPRoute", "http", {"matches": [path], "backendRefs": backends(HTTP)}, suffix="-path"),
    ]
