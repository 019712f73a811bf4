"""The objects that scale a revision's Deployment: KEDA's ScaledObject on requests, or an HPA on CPU.

The first knows the model: it compares the rate of requests with the capacity that a load test measured. It needs KEDA,
Prometheus and the load test. See `runtime.serving.scaling`.
"""

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.kubernetes.objects.names import Object, labels
from shiplift.runtime.serving.scaling import queries
from shiplift.runtime.serving.scaling.queries import Labels
from shiplift.runtime.serving.scaling.signal import Scaling

PACKAGE = "shiplift_dev_package"  # as Prometheus writes the label
_CALM_S = 300  # CPU does not show whether load is about to return, so scale-down waits


def requests_of(namespace: str, model: str, revisions: tuple[str, ...]) -> Labels:
    """The labels of Triton's series for a model, on the pods of these revisions and on no staging server."""
    return {"namespace": namespace, "model": serving_name(model), PACKAGE: revisions}


def recorded_for(namespace: str, service: str) -> dict[str, str]:
    """The labels of the recorded series of a service."""
    return {"namespace": namespace, "tritonservice": service}


def scaled_object(
    package: Package,
    *,
    name: str,
    namespace: str,
    service: str,
    revisions: tuple[str, ...],
    scaling: Scaling,
    prometheus: str,
) -> Object:
    """KEDA's ScaledObject for a revision's Deployment; `revisions` are all those that share the service's traffic."""
    trigger = queries.trigger(
        prometheus,
        requests_of(namespace, package.model, revisions),
        recorded_for(namespace, service),
        scaling,
        targets={"namespace": namespace, PACKAGE: name},
    )
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name, "labels": labels(package, name)},
        "spec": {
            "scaleTargetRef": {"name": name},
            "minReplicaCount": scaling.minimum,
            "maxReplicaCount": scaling.maximum,
            "pollingInterval": 15,
            "fallback": queries.fallback(scaling),
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": queries.behavior()}},
            "triggers": [trigger],
        },
    }


def pod_autoscaler(package: Package, *, name: str, least: int, most: int, percent: int) -> Object:
    """An HPA that keeps the CPU of a revision's pods at this percentage of what they request."""
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "labels": labels(package, name)},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": least,
            "maxReplicas": most,
            "metrics": [{"type": "Resource", "resource": cpu}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": _CALM_S}},
        },
    }
