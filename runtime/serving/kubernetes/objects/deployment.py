"""The objects that serve a package.

There is one Deployment and Service per package (version and digest), so champion and challenger run side by side, and
pods are never changed under traffic. The liveness probe asks a process next to Triton, which also notices when requests
get no answers although the server's own health endpoints still respond.
"""

from collections.abc import Sequence

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.guest.pod import heartbeat
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes.objects.names import (
    GRPC,
    HTTP,
    LABEL,
    METRICS,
    PACKAGE,
    REVISION,
    Object,
    labels,
)
from shiplift.runtime.serving.kubernetes.objects.pods import (
    captures,
    confined_container,
    fetch_container,
    probe,
    triton_container,
    volumes,
)

DRAIN_S = 8  # from the announcement of a pod's end to SIGTERM for its server, so that proxies learn of it first
_GRACE_S = 45
_STUCK_S = DRAIN_S + 2  # grace for a server that makes no progress: it can't finish anything anyway
_AWAY_S = 30  # how long a node may be unreachable before its pods are replaced; Kubernetes' default is 300
HEARTBEAT = 8004


def deployment(
    cluster: Cluster,
    package: Package,
    artifacts_uri: str,
    *,
    name: str,
    replicas: int | None,
    extra: dict[str, str],
    revision: str = "",
    serves: bool = False,
) -> Object:
    """Triton with one model, fetched by digest before it starts; replaced without downtime, drained before it ends.

    `replicas` is None if an autoscaler writes the number of pods. `extra` are more labels of the Deployment.
    `revision` names the revision on the pods, if it has several groups. `serves`: clients' requests come here, and are
    captured if the package says so; those of a load test are not.

    Raises:
        SpecInvalid: the package is for NVIDIA's server, and its target has no image.
    """
    pod_labels = labels(package, name) | ({REVISION: revision} if revision else {})
    pod = {
        **confined_container(package),
        **around(package, {PACKAGE: name}),
        "initContainers": [fetch_container(cluster, package, artifacts_uri)],
        "containers": [_serving_triton(cluster, package)],
        "volumes": volumes(package),
    }
    pod = captures(cluster, [package] if serves else [], pod)
    scrape = {"prometheus.io/scrape": "true", "prometheus.io/port": str(METRICS)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": pod_labels | extra, "annotations": {f"{LABEL}model-name": package.model}},
        "spec": {
            **({} if replicas is None else {"replicas": replicas}),
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": {PACKAGE: name}},
            # A new pod is ready before an old one goes.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": pod_labels, "annotations": scrape}, "spec": pod},
        },
    }


def around(package: Package, selector: dict[str, str]) -> Object:
    """Where serving pods run, and how they end; `selector` matches the pods to spread over nodes."""
    return {
        "tolerations": [*package.nodes.tolerations, *map(_tolerated, ("not-ready", "unreachable"))],
        "terminationGracePeriodSeconds": _GRACE_S,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",  # a cluster with one node serves, too
                "labelSelector": {"matchLabels": selector},
            }
        ],
    }


def _tolerated(state: str) -> Object:
    key = f"node.kubernetes.io/{state}"
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _AWAY_S}


def _serving_triton(cluster: Cluster, package: Package) -> Object:
    model = serving_name(package.model)
    probes, beside = beside_server(cluster, [package], startup="/v2/health/ready", ready=f"/v2/models/{model}/ready")
    own = [*(model + ending for ending in package.called_endings), model]
    load = [*package.member_models, *own]
    return triton_container(cluster, package, own, load=load, probes=probes, beside=beside)


def beside_server(
    cluster: Cluster, packages: Sequence[Package], *, startup: str, ready: str
) -> tuple[Object, list[str]]:
    """The probes and hooks of a server with these packages, and the arguments that start the heartbeat next to it."""
    probes = {
        "startupProbe": probe(startup, periodSeconds=1, failureThreshold=cluster.ready_timeout_s),
        "livenessProbe": probe(
            "/", port=HEARTBEAT, periodSeconds=5, failureThreshold=2, terminationGracePeriodSeconds=_STUCK_S
        ),
        "readinessProbe": probe(ready, periodSeconds=2, failureThreshold=3, timeoutSeconds=2),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(DRAIN_S)]}}},
    }
    patience_s = max(package.needs.request_timeout_s for package in packages) + heartbeat.MARGIN_S
    return probes, ["--heartbeat", f"0.0.0.0:{HEARTBEAT}", "--patience", f"{patience_s:g}"]


def service(package: Package, *, name: str, extra: dict[str, str]) -> Object:
    """The Service of one package, for checks before it takes traffic and for routes."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels(package, name) | extra},
        "spec": {"selector": {PACKAGE: name}, "ports": ports()},
    }


def ports() -> list[Object]:
    """The ports of a Service whose pods run Triton; `appProtocol` makes gateways speak HTTP/2 for gRPC."""
    return [
        {"name": "http", "port": HTTP, "targetPort": HTTP, "appProtocol": "http"},
        {"name": "grpc", "port": GRPC, "targetPort": GRPC, "appProtocol": "kubernetes.io/h2c"},
        {"name": "metrics", "port": METRICS, "targetPort": METRICS},
    ]


def disruption_budget(package: Package, *, name: str, replicas: int) -> Object:
    """Lets a node's maintenance evict one pod at a time, and a package's only pod once there is a second one."""
    least = {"maxUnavailable": 1} if replicas > 1 else {"minAvailable": 1}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "labels": labels(package, name)},
        "spec": {
            **least,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",  # a broken pod must not block a node's maintenance
            "selector": {"matchLabels": {PACKAGE: name}},
        },
    }
