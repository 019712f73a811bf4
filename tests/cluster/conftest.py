"""A real cluster for the session: the one that KUBECONFIG names, or one that a script starts on this machine.

SHIPLIFT_CLUSTER_SCRIPT names the script, such as `kind.sh` here: `up`, `kubeconfig` (prints its path), `addon gateway`
(the GatewayClass `eg`), `build DIR TAG --target NAME`. Pods and this process then share folders, and the images are
built from the working tree; a cluster of yours must have them already (their names are the values' defaults, or
SHIPLIFT_PIPELINE_IMAGE and SHIPLIFT_SERVER_IMAGE). The tests check behaviour, not speed, on two cores: all pods of a
release are small. Workers of pytest-xdist share the cluster, each with its own namespace.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import yaml
from filelock import FileLock
from numpy.typing import NDArray

from shiplift.pipelines.engines.argo.layout import REGISTRY_ADMIN
from shiplift.pipelines.installation import accounts
from shiplift.pipelines.installation.values import Values, parse
from shiplift.runtime.store.registry.client import Registry, prepare_environment
from tests.integration.conftest import FAST, digits
from tests.integration.conftest import until as _until

ROOT = Path(__file__).parents[2]
SCRIPT = os.environ.get("SHIPLIFT_CLUSTER_SCRIPT", "")
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
NAMESPACE = os.environ.get("SHIPLIFT_TEST_NAMESPACE", f"shiplift-{WORKER}" if WORKER else "shiplift")
NVIDIA_IMAGE = os.environ.get("SHIPLIFT_NVIDIA_IMAGE", "localhost/shiplift-nvidia:dev")
ABSENT_IMAGE = "localhost/nobody-has-this:1"
PROMETHEUS = "http://prometheus.monitoring:9090"  # of the script's add-on `autoscaling`, for services that scale
AUTHOR = "author"  # the person who logs the tests' models
_BUILD_S = 1500


def of_this_machine(address: str) -> bool:
    """Whether an address belongs to this machine, so that pods reach servers that listen on it."""
    return any(address == local.address for interface in psutil.net_if_addrs().values() for local in interface)


def until(condition: Callable[[], Any], *, seconds: float = 60) -> Any:
    """Waits until a condition is true and returns its value; polls slowly, since each kubectl call is a process."""
    return _until(condition, seconds=seconds, every_s=0.5)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/cluster" in str(item.path):
            item.add_marker(pytest.mark.cluster)


@dataclass(frozen=True)
class Kube:
    """A cluster, through kubectl. `here`: it runs on this machine, so that pods and this process share folders."""

    kubeconfig: Path
    here: bool

    def run(self, *arguments: str, stdin: str = "", check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Runs kubectl; with `check=False`, a failure is only in the exit code and stderr."""
        done = subprocess.run(
            ["kubectl", "--request-timeout=30s", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            timeout=200,
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        return self.run(*arguments, stdin=stdin).stdout

    def get(self, kind: str, namespace: str, name: str = "", selector: str = "") -> Any:
        """An object, or the list of those whose labels match."""
        query = ["-n", namespace, "get", kind, *([name] if name else []), *(["-l", selector] if selector else [])]
        body = json.loads(self(*query, "-o", "json"))
        return body if name else body["items"]

    def exists(self, kind: str, namespace: str, name: str) -> bool:
        return self.run("-n", namespace, "get", kind, name, check=False).returncode == 0

    def apply(self, body: Any) -> None:
        bodies = body if isinstance(body, list) else [body]
        self("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(bodies))

    def shiplift(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Runs the `shiplift` command of this working tree."""
        done = subprocess.run(
            [sys.executable, "-m", "shiplift.pipelines.commands.app", *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            timeout=400,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def credentials(self, namespace: str, secret: str) -> tuple[str, str]:
        """The user name and password in a Secret with an account of the registry."""
        data = self.get("secret", namespace, secret)["data"]
        name, password = (base64.b64decode(data[key]).decode() for key in (accounts.USERNAME, accounts.PASSWORD))
        return name, password

    def account(self, namespace: str, name: str) -> str:
        """Creates a person's account, or gives it a new password; returns the password."""
        command = ["-n", namespace, "exec", "deploy/mlflow", "-c", "mlflow", "--", "python", "-m", accounts.__name__]
        return self(*command, "add", name).strip()

    def service(self, namespace: str, name: str) -> str:
        """The address of a Service, reachable from this process if the cluster runs on this machine."""
        return str(self.get("service", namespace, name)["spec"]["clusterIP"])


@dataclass
class Lab:
    """Shiplift on the cluster, used as authors of models do."""

    kube: Kube
    values: Values
    registry: Registry
    mlflow: Any
    folder: Path
    fitted: dict[int, Any] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        return self.values.namespace

    @property
    def serving(self) -> str:
        return self.values.serving_namespace

    def log(
        self, name: str, log_model: Callable[..., Any], *, spec: str = FAST, data: dict[str, NDArray[Any]] | None = None
    ) -> int:
        """Runs `log_model(registered_model_name=...)` in a run with a spec and data; returns the version's number."""
        with self.mlflow.start_run():
            if spec:
                self.mlflow.log_text(spec, "shiplift/shiplift.yaml")
            if data is not None:
                file = self.folder / "validation.npz"
                np.savez(file, **data)  # type: ignore[arg-type]
                self.mlflow.log_artifact(str(file), "shiplift")
            info = log_model(name="model", registered_model_name=name, pip_requirements=[])
        return int(info.registered_model_version)

    def log_classifier(self, name: str, *, samples: int = 1200, spec: str = FAST, **options: Any) -> int:
        """Registers a logistic regression on digits with signature, example and validation set."""
        from mlflow.models import infer_signature
        from sklearn.linear_model import LogisticRegression

        images, labels = digits()
        if samples not in self.fitted:
            self.fitted[samples] = LogisticRegression(max_iter=200).fit(images[:samples], labels[:samples])
        model, example = self.fitted[samples], images[:4]
        options = {"signature": infer_signature(example, model.predict(example)), "input_example": example} | options

        def log_model(**arguments: Any) -> Any:
            return self.mlflow.sklearn.log_model(model, **options, **arguments)

        return self.log(name, log_model, spec=spec, data={"input": images[1200:], "label": labels[1200:]})

    def condition(self, model: str, kind: str) -> Any:
        """A condition of a model's TritonService; one without a status if there is none yet."""
        status = self.kube.get("tritonservice", self.serving, model).get("status", {})
        missing = {"status": "", "reason": "", "message": ""}
        return next((each for each in status.get("conditions", []) if each["type"] == kind), missing)

    def workflows(self, model: str = "") -> list[Any]:
        """The Workflows in the namespace, oldest first."""
        workflows = [
            workflow
            for workflow in self.kube.get("workflow", self.namespace)
            if not model or f"-{model}-" in f"-{workflow['metadata']['name']}-"
        ]
        return sorted(workflows, key=lambda workflow: str(workflow["metadata"]["creationTimestamp"]))


@pytest.fixture(scope="session", autouse=True)
def kube(tmp_path_factory: pytest.TempPathFactory) -> Kube:
    """A cluster with Argo Workflows; one that the script starts has a Gateway and the project's images."""
    kubeconfig = os.environ.get("KUBECONFIG", "")
    if not SCRIPT:
        if not kubeconfig:
            pytest.skip("no cluster: set KUBECONFIG, or SHIPLIFT_CLUSTER_SCRIPT to a script that starts one")
        return Kube(Path(kubeconfig.split(os.pathsep)[0]), here=False)
    assert (ROOT / SCRIPT).is_file(), f"SHIPLIFT_CLUSTER_SCRIPT is {SCRIPT}, which is not a file: name the script"
    assert shutil.which("kubectl"), "the cluster tests need kubectl: install it"
    started = time.monotonic()
    shared = tmp_path_factory.getbasetemp().parent if WORKER else tmp_path_factory.getbasetemp()
    with FileLock(shared / "cluster.lock"):
        if not (shared / "cluster.ready").exists():
            _prepare(start=not kubeconfig)
            (shared / "cluster.ready").touch()
    os.environ["KUBECONFIG"] = kubeconfig or _script("kubeconfig").strip()  # for clients in this process
    print(f"cluster and images: {time.monotonic() - started:.0f} s")
    return Kube(Path(os.environ["KUBECONFIG"]), here=True)


def _prepare(*, start: bool) -> None:
    if start:
        _script("up")
    _script("addon", "gateway")
    if "SHIPLIFT_SKIP_BUILD" not in os.environ:
        for name in ("server", "pipeline"):
            _script("build", str(ROOT), f"localhost/shiplift-{name}:dev", "--target", name)


def script_has(addon: str) -> bool:
    """Installs an add-on of the script; false if there is no script, or it has no such add-on."""
    if not SCRIPT:
        return False
    done = subprocess.run([ROOT / SCRIPT, "addon", addon], capture_output=True, check=False, timeout=_BUILD_S)
    return done.returncode == 0


def _script(*arguments: str) -> str:
    done = subprocess.run([ROOT / SCRIPT, *arguments], capture_output=True, text=True, check=False, timeout=_BUILD_S)
    assert done.returncode == 0, f"cluster {' '.join(arguments)}: {(done.stdout + done.stderr)[-3000:]}"
    return done.stdout


def stage_runs(workflow: Any) -> dict[str, Any]:
    """The stage runs that a Workflow's pods reported, by stage; of two attempts at a pod, the later one's."""
    nodes = sorted(workflow["status"]["nodes"].values(), key=lambda node: str(node.get("startedAt")))
    runs = [
        run
        for node in nodes
        if node["type"] == "Pod"
        for parameter in (node.get("outputs") or {}).get("parameters", [])
        if parameter["name"] == "stage_runs" and parameter.get("value")
        for run in json.loads(parameter["value"])["runs"]
    ]
    return {run["name"]: run for run in runs}


def small_values(namespace: str, folder: Path | None, *, gateway: bool) -> dict[str, Any]:
    """Values for two cores: no request exceeds what a small node has."""
    storage = (
        {"kind": "hostPath", "path": str(folder), "size": "5Gi"} if folder else {"kind": "emptyDir", "size": "5Gi"}
    )
    images = {name: os.environ.get(f"SHIPLIFT_{name.upper()}_IMAGE") for name in ("pipeline", "server")}
    small = {"cpu": "50m", "memory": "512Mi"}
    large = {"cpu": "100m", "memory": "2Gi"}
    stages = dict.fromkeys(("admit", "export", "quantize", "package", "tune", "load_test"), large)
    stages |= dict.fromkeys(
        ("find_targets", "find_champion", "deploy", "gate", "promote", "rollback", "conclude"), small
    )
    return {
        "namespace": namespace,
        "images": {name: image for name, image in images.items() if image} | {"gpu": ""},  # nothing here has CUDA
        "mlflow": {"storage": storage, "resources": {"cpu": "50m", "memory": "256Mi", "memory_limit": "2Gi"}},
        "gateway": {"class_name": "eg"} if gateway else None,
        "serving": {"cpu": "50m", "memory_limit": "1Gi", "images": [NVIDIA_IMAGE, ABSENT_IMAGE]},
        "activator": {} if gateway else None,
        "page": {},
        "capture": {"size_gb": 1},
        "data_claim": "data",  # made by the test that needs it
        "stages": stages,
        "operator": {"read_nodes": True, "packages_gb": 1},
        "reconciler": {"every_s": 5, "stuck_s": 30, "unschedulable_s": 30},
        "keep": {"workflows_s": 3600, "pods_s": 600},
        "monitoring": {"prometheus": PROMETHEUS},
    }


@pytest.fixture(scope="session")
def lab(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Shiplift, installed for the session; its MLflow is reached at its Service's address."""
    folder = tmp_path_factory.mktemp("lab")
    data = folder / "mlflow" if kube.here else None
    if data:
        data.mkdir()
        data.chmod(0o777)  # for the images' user, which does not exist here
    values = yaml.safe_dump(small_values(NAMESPACE, data, gateway=kube.here))
    file = folder / "values.yaml"
    file.write_text(values)
    if kube.exists("namespace", "default", NAMESPACE):  # left by an interrupted run
        kube.shiplift("uninstall", "--namespace", NAMESPACE, "--data", "--yes")
    kube.shiplift("install", "--values", str(file))
    prepare_environment()
    uri = f"http://{kube.service(NAMESPACE, 'mlflow')}:5000"
    os.environ |= {"MLFLOW_TRACKING_URI": uri, "NO_PROXY": "*", "no_proxy": "*"}
    webhooks = f"{uri}/api/2.0/mlflow/webhooks"
    admin = kube.credentials(NAMESPACE, REGISTRY_ADMIN)
    until(lambda: httpx.get(webhooks, auth=admin, trust_env=False, timeout=30).json().get("webhooks"), seconds=60)
    os.environ |= {accounts.USERNAME: AUTHOR, accounts.PASSWORD: kube.account(NAMESPACE, AUTHOR)}
    import mlflow

    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    mlflow.set_experiment("lab")  # an author may write to experiments of their own
    yield Lab(kube=kube, values=parse(values), registry=Registry(uri), mlflow=mlflow, folder=folder)
    kube.shiplift("uninstall", "--namespace", NAMESPACE, "--data", "--yes")


@pytest.fixture(scope="session")
def nvidia_image(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with `tritonserver` on its PATH, as in NVIDIA's: SHIPLIFT_NVIDIA_IMAGE, or one built here."""
    if "SHIPLIFT_NVIDIA_IMAGE" in os.environ:
        return NVIDIA_IMAGE
    if not kube.here:
        pytest.skip("no image to stand in for NVIDIA's: set SHIPLIFT_NVIDIA_IMAGE")
    folder = tmp_path_factory.mktemp("nvidia")
    (folder / "tritonserver").write_text(_TRITONSERVER)
    (folder / "tritonserver").chmod(0o755)
    (folder / "Containerfile").write_text(
        "FROM localhost/shiplift-server:dev\nCOPY tritonserver /usr/local/bin/tritonserver\n"
    )
    _script("build", str(folder), NVIDIA_IMAGE)
    return NVIDIA_IMAGE


_TRITONSERVER = """\
#!/bin/sh
# The bundled server under the name, and with the defaults, of the one in NVIDIA's image. There as here, the first
# python3 on the PATH has the NumPy that the Python backend was built with.
site=$(echo /opt/triton/lib/python3.*/site-packages)
server=$site/pytriton/tritonserver
export LD_LIBRARY_PATH=/opt/triton/libraries:$site/nvidia_pytriton.libs OMP_NUM_THREADS=1 PATH=/opt/triton/bin:$PATH
exec "$server/bin/tritonserver" --backend-directory=/opt/triton/backends --cache-directory="$server/caches" "$@"
"""
