"""The kinds of Kubernetes objects that Shiplift works with, as data: their names and paths in the API.

Other kinds can be applied, read and deleted too: their names are then looked up in the cluster.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ResourceKind:
    """A kind: `version` is its apiVersion (`apps/v1`), `origin` what to install so that a cluster knows it."""

    name: str
    version: str
    plural: str
    namespaced: bool = True
    origin: str = "its definition"

    def path(self, namespace: str = "", name: str = "") -> str:
        """The path of an object, or without a name, of all of them in a namespace.

        Raises:
            ValueError: this kind is namespaced, and no namespace was passed.
        """
        if self.namespaced and not namespace:
            raise ValueError(f"a {self.name} belongs to a namespace: pass its name")
        parts = [group_path(self.version), *(("namespaces", namespace) if self.namespaced else ()), self.plural]
        return "/".join([*parts, *([name] if name else [])])


def group_path(version: str) -> str:
    """The API server's path for the kinds of an apiVersion, such as `/api/v1` or `/apis/apps/v1`."""
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


_ARGO = "Argo Workflows 4.0 or newer"
_GATEWAY_API = "the Gateway API and an implementation of it (or remove `gateway` from the values)"
_INSTALL = "Shiplift's definitions (`shiplift install` creates them)"
_ADMISSION = "Kubernetes 1.30 or newer (or accept what the policies prevent: `admission: {policies: false}`)"

NAMESPACE = ResourceKind(name="Namespace", version="v1", plural="namespaces", namespaced=False)
NODE = ResourceKind(name="Node", version="v1", plural="nodes", namespaced=False)
PERSISTENT_VOLUME = ResourceKind(name="PersistentVolume", version="v1", plural="persistentvolumes", namespaced=False)
PERSISTENT_VOLUME_CLAIM = ResourceKind(name="PersistentVolumeClaim", version="v1", plural="persistentvolumeclaims")
EVENT = ResourceKind(name="Event", version="v1", plural="events")
CONFIG_MAP = ResourceKind(name="ConfigMap", version="v1", plural="configmaps")
POD = ResourceKind(name="Pod", version="v1", plural="pods")
RESOURCE_QUOTA = ResourceKind(name="ResourceQuota", version="v1", plural="resourcequotas")
SECRET = ResourceKind(name="Secret", version="v1", plural="secrets")
SERVICE = ResourceKind(name="Service", version="v1", plural="services")
SERVICE_ACCOUNT = ResourceKind(name="ServiceAccount", version="v1", plural="serviceaccounts")
DEPLOYMENT = ResourceKind(name="Deployment", version="apps/v1", plural="deployments")
LEASE = ResourceKind(name="Lease", version="coordination.k8s.io/v1", plural="leases")
ENDPOINT_SLICE = ResourceKind(name="EndpointSlice", version="discovery.k8s.io/v1", plural="endpointslices")
NETWORK_POLICY = ResourceKind(name="NetworkPolicy", version="networking.k8s.io/v1", plural="networkpolicies")
INGRESS = ResourceKind(name="Ingress", version="networking.k8s.io/v1", plural="ingresses")
POD_DISRUPTION_BUDGET = ResourceKind(name="PodDisruptionBudget", version="policy/v1", plural="poddisruptionbudgets")
ROLE = ResourceKind(name="Role", version="rbac.authorization.k8s.io/v1", plural="roles")
ROLE_BINDING = ResourceKind(name="RoleBinding", version="rbac.authorization.k8s.io/v1", plural="rolebindings")
CLUSTER_ROLE = ResourceKind(
    name="ClusterRole", version="rbac.authorization.k8s.io/v1", plural="clusterroles", namespaced=False
)
CLUSTER_ROLE_BINDING = ResourceKind(
    name="ClusterRoleBinding", version="rbac.authorization.k8s.io/v1", plural="clusterrolebindings", namespaced=False
)
POD_METRICS = ResourceKind(name="PodMetrics", version="metrics.k8s.io/v1beta1", plural="pods", origin="metrics-server")
WORKFLOW = ResourceKind(name="Workflow", version="argoproj.io/v1alpha1", plural="workflows", origin=_ARGO)
WORKFLOW_TEMPLATE = ResourceKind(
    name="WorkflowTemplate", version="argoproj.io/v1alpha1", plural="workflowtemplates", origin=_ARGO
)
GATEWAY = ResourceKind(name="Gateway", version="gateway.networking.k8s.io/v1", plural="gateways", origin=_GATEWAY_API)
HTTP_ROUTE = ResourceKind(
    name="HTTPRoute", version="gateway.networking.k8s.io/v1", plural="httproutes", origin=_GATEWAY_API
)
GRPC_ROUTE = ResourceKind(
    name="GRPCRoute", version="gateway.networking.k8s.io/v1", plural="grpcroutes", origin=_GATEWAY_API
)
TRAFFIC_POLICY = ResourceKind(
    name="BackendTrafficPolicy",
    version="gateway.envoyproxy.io/v1alpha1",
    plural="backendtrafficpolicies",
    origin="Envoy Gateway",
)
HORIZONTAL_POD_AUTOSCALER = ResourceKind(
    name="HorizontalPodAutoscaler", version="autoscaling/v2", plural="horizontalpodautoscalers"
)
SCALED_OBJECT = ResourceKind(
    name="ScaledObject", version="keda.sh/v1alpha1", plural="scaledobjects", origin="KEDA 2.17 or newer"
)
POD_MONITOR = ResourceKind(
    name="PodMonitor", version="monitoring.coreos.com/v1", plural="podmonitors", origin="the Prometheus operator"
)
PROMETHEUS_RULE = ResourceKind(
    name="PrometheusRule",
    version="monitoring.coreos.com/v1",
    plural="prometheusrules",
    origin="the Prometheus operator",
)
CUSTOM_RESOURCE = ResourceKind(
    name="CustomResourceDefinition",
    version="apiextensions.k8s.io/v1",
    plural="customresourcedefinitions",
    namespaced=False,
)
TRITON_SERVICE = ResourceKind(
    name="TritonService", version="shiplift.dev/v1alpha1", plural="tritonservices", origin=_INSTALL
)
TRITON_REVISION = ResourceKind(
    name="TritonRevision", version="shiplift.dev/v1alpha1", plural="tritonrevisions", origin=_INSTALL
)

ADMISSION_POLICY = ResourceKind(
    name="ValidatingAdmissionPolicy",
    version="admissionregistration.k8s.io/v1",
    namespaced=False,
    plural="validatingadmissionpolicies",
    origin=_ADMISSION,
)
ADMISSION_POLICY_BINDING = ResourceKind(
    name="ValidatingAdmissionPolicyBinding",
    version="admissionregistration.k8s.io/v1",
    namespaced=False,
    plural="validatingadmissionpolicybindings",
    origin=_ADMISSION,
)

SELF_SUBJECT_REVIEW = ResourceKind(
    name="SelfSubjectReview", version="authentication.k8s.io/v1", plural="selfsubjectreviews", namespaced=False
)

KNOWN: dict[tuple[str, str], ResourceKind] = {
    (kind.version, kind.name): kind for kind in tuple(globals().values()) if isinstance(kind, ResourceKind)
}
