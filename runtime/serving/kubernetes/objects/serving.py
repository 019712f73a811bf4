"""The objects that serve a package.

There is one Deployment and Service per package (version and digest), so champion and challenger run side by side and
nothing is ever changed under traffic.
"""

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.records.serving import Package
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes.objects.names import GRPC, HTTP, LABEL, METRICS, Object, labels
from shiplift.runtime.serving.kubernetes.objects.pods import confined, fetch_container, probe, triton_container, volumes

DRAIN_S = 8  # from the announcement of a pod's end to SIGTERM for its server, so that proxies learn of it first
_GRACE_S = 45


def deployment(
    cluster: Cluster, package: Package, artifacts_uri: str, *, name: str, replicas: int, extra: dict[str, str]
) -> Object:
    """Triton with one model, fetched by digest before it starts; replaced without downtime, drained before it ends.

    `extra` are more labels of the Deployment.

    Raises:
        SpecInvalid: the package is for NVIDIA's server, and its target has no image.
    """
    pod_labels = labels(package, name)
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
        "metadata": {"name": name, "labels": pod_labels | extra, "annotations": {f"{LABEL}model-name": package.model}},
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": {f"{LABEL}package": name}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": pod_labels, "annotations": scrape}, "spec": pod},
        },
    }


def _serving_triton(cluster: Cluster, package: Package) -> Object:
    model = serving_name(package.model)
    probes = {
        "startupProbe": probe("/v2/health/ready", periodSeconds=1, failureThreshold=cluster.ready_timeout_s),
        "livenessProbe": probe("/v2/health/live", periodSeconds=10, failureThreshold=3),
        "readinessProbe": probe(f"/v2/models/{model}/ready", periodSeconds=2, failureThreshold=3),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(DRAIN_S)]}}},
    }
    return triton_container(cluster, package, [model], load=[model], probes=probes)


def service(package: Package, *, name: str, extra: dict[str, str]) -> Object:
    """The Service of one package, for checks before it takes traffic and for routes."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels(package, name) | extra},
        "spec": {"selector": {f"{LABEL}package": name}, "ports": ports()},
    }


def ports() -> list[Object]:
    """The ports of a Service whose pods run Triton."""
    return [
        {"name": "http", "port": HTTP, "targetPort": HTTP, "appProtocol": "http"},
        {"name": "grpc", "port": GRPC, "targetPort": GRPC, "appProtocol": "kubernetes.io/h2c"},
        {"name": "metrics", "port": METRICS, "targetPort": METRICS},
    ]


def disruption_budget(package: Package, *, name: str) -> Object:
    """Lets a node's maintenance evict one pod at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "labels": labels(package, name)},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {f"{LABEL}package": name}}},
    }
