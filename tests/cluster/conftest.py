"""A real cluster for the session: the one KUBECONFIG names, or one that a script starts on this machine.

SHIPLIFT_CLUSTER_SCRIPT names the script, such as `kind.sh` here: `up`, `kubeconfig` (prints its path), `addon gateway`
(the GatewayClass `eg`), `build DIR TAG --target NAME`. Pods and this process then share folders, and the images are
built from the working tree; a cluster of yours must have them already (their names are the values' defaults, or
SHIPLIFT_PIPELINE_IMAGE and SHIPLIFT_SERVER_IMAGE). What is tested is the path, on two cores: all of a release's pods
are small. Workers of pytest-xdist share the cluster, each with a namespace of its own.
"""

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

import numpy as np
import psutil
import pytest
import yaml
from filelock import FileLock
from numpy.typing import NDArray

from shiplift.pipelines.installation.values import Values, parse
from shiplift.runtime.store.registry import Registry, prepare_environment
from tests.integration.conftest import FAST, digits
from tests.integration.conftest import until as _until

ROOT = Path(__file__).parents[2]
SCRIPT = os.environ.get("SHIPLIFT_CLUSTER_SCRIPT", "")
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
NAMESPACE = os.environ.get("SHIPLIFT_TEST_NAMESPACE", f"shiplift-{WORKER}" if WORKER else "shiplift")
_BUILD_S = 1500


def of_this_machine(address: str) -> bool:
    """Whether a node's address is one of this machine's, so that pods reach what listens on it here."""
    return any(address == own.address for card in psutil.net_if_addrs().values() for own in card)


def until(what: Callable[[], Any], *, seconds: float = 60) -> Any:
    """Waits for a condition and gives its value; each look at the cluster is a process."""
    return _until(what, seconds=seconds, every_s=0.5)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/cluster" in str(item.path):
            item.add_marker(pytest.mark.cluster)


@dataclass(frozen=True)
class Kube:
    """The cluster as kubectl sees it. `here`: it runs on this machine, so that pods and this process share folders."""

    kubeconfig: Path
    here: bool

    def run(self, *words: str, given: str = "", check: bool = True) -> "subprocess.CompletedProcess[str]":
        """kubectl with these words; what it may not do is its exit code and stderr, with `check=False`."""
        done = subprocess.run(
            ["kubectl", "--request-timeout=30s", *words], input=given, capture_output=True, text=True, check=False,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)}, timeout=200,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done

    def __call__(self, *words: str, given: str = "") -> str:
        return self.run(*words, given=given).stdout

    def get(self, kind: str, namespace: str, name: str = "", selector: str = "") -> Any:
        """An object, or the list of those whose labels match."""
        words = ["-n", namespace, "get", kind, *([name] if name else []), *(["-l", selector] if selector else [])]
        found = json.loads(self(*words, "-o", "json"))
        return found if name else found["items"]

    def exists(self, kind: str, namespace: str, name: str) -> bool:
        return self.run("-n", namespace, "get", kind, name, check=False).returncode == 0

    def apply(self, body: Any) -> None:
        bodies = body if isinstance(body, list) else [body]
        self("apply", "--server-side", "-f", "-", given=yaml.safe_dump_all(bodies))

    def shiplift(self, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """The command of this working tree."""
        done = subprocess.run(
            [sys.executable, "-m", "shiplift.pipelines.commands.app", *words],
            capture_output=True, text=True, check=False, cwd=ROOT,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)}, timeout=400,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr
        return done

    def service(self, namespace: str, name: str) -> str:
        """A Service's address, reachable from here where the cluster is here."""
        return str(self.get("service", namespace, name)["spec"]["clusterIP"])


@dataclass
class Lab:
    """Shiplift on the cluster, and what authors of models do with it."""

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
        """Runs `log_model(registered_model_name=...)` in a run with a spec and data; gives the version's number."""
        with self.mlflow.start_run():
            if spec:
                self.mlflow.log_text(spec, "shiplift/shiplift.yaml")
            if data is not None:
                file = self.folder / "validation.npz"
                np.savez(file, **data)  # type: ignore[arg-type]
                self.mlflow.log_artifact(str(file), "shiplift")
            info = log_model(name="model", registered_model_name=name, pip_requirements=[])
        return int(info.registered_model_version)

    def log_classifier(self, name: str, *, samples: int = 1200, spec: str = FAST, **how: Any) -> int:
        """Registers a logistic regression on digits with signature, example and validation set."""
        from mlflow.models import infer_signature
        from sklearn.linear_model import LogisticRegression

        images, labels = digits()
        if samples not in self.fitted:
            self.fitted[samples] = LogisticRegression(max_iter=200).fit(images[:samples], labels[:samples])
        model, example = self.fitted[samples], images[:4]
        given = {"signature": infer_signature(example, model.predict(example)), "input_example": example} | how

        def log_model(**words: Any) -> Any:
            return self.mlflow.sklearn.log_model(model, **given, **words)

        return self.log(name, log_model, spec=spec, data={"input": images[1200:], "label": labels[1200:]})

    def workflows(self, model: str = "") -> list[Any]:
        """The Workflows there are, the oldest first."""
        found = self.kube.get("workflow", self.namespace)
        found = [one for one in found if not model or f"-{model}-" in f"-{one['metadata']['name']}-"]
        return sorted(found, key=lambda one: str(one["metadata"]["creationTimestamp"]))


@pytest.fixture(scope="session", autouse=True)
def kube(tmp_path_factory: pytest.TempPathFactory) -> Kube:
    """A cluster with Argo Workflows; one that the script starts has a Gateway and the project's images."""
    given = os.environ.get("KUBECONFIG", "")
    if not SCRIPT:
        if not given:
            pytest.skip("no cluster: set KUBECONFIG, or SHIPLIFT_CLUSTER_SCRIPT to a script that starts one")
        return Kube(Path(given.split(os.pathsep)[0]), here=False)
    assert (ROOT / SCRIPT).is_file(), f"SHIPLIFT_CLUSTER_SCRIPT is {SCRIPT}, which is not a file: name the script"
    assert shutil.which("kubectl"), "the tests of a cluster need kubectl: install it"
    started = time.monotonic()
    shared = tmp_path_factory.getbasetemp().parent if WORKER else tmp_path_factory.getbasetemp()
    with FileLock(shared / "cluster.lock"):
        if not (shared / "cluster.ready").exists():
            _prepare(start=not given)
            (shared / "cluster.ready").touch()
    os.environ["KUBECONFIG"] = given or _script("kubeconfig").strip()  # for what connects from this process
    print(f"cluster and images: {time.monotonic() - started:.0f} s")
    return Kube(Path(os.environ["KUBECONFIG"]), here=True)


def _prepare(*, start: bool) -> None:
    if start:
        _script("up")
    _script("addon", "gateway")
    if "SHIPLIFT_SKIP_BUILD" not in os.environ:
        for name in ("server", "pipeline"):
            _script("build", str(ROOT), f"localhost/shiplift-{name}:dev", "--target", name)


def _script(*words: str) -> str:
    done = subprocess.run([ROOT / SCRIPT, *words], capture_output=True, text=True, check=False, timeout=_BUILD_S)
    assert done.returncode == 0, f"cluster {' '.join(words)}: {(done.stdout + done.stderr)[-3000:]}"
    return done.stdout


def stage_runs(workflow: Any) -> dict[str, Any]:
    """How the stages of a Workflow went, as their pods told."""
    runs = [
        json.loads(one["value"])
        for node in workflow["status"]["nodes"].values()
        for one in (node.get("outputs") or {}).get("parameters", [])
        if one["name"] == "stage_run" and one.get("value")
    ]
    return {run["name"]: run for run in runs}


def small_values(namespace: str, folder: Path | None, *, gateway: bool) -> dict[str, Any]:
    """Values for two cores: nothing asks for more than a small node has."""
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
        "images": {name: image for name, image in images.items() if image},
        "mlflow": {"storage": storage, "resources": {"cpu": "50m", "memory": "256Mi", "memory_limit": "2Gi"}},
        "gateway": {"class_name": "eg"} if gateway else None,
        "serving": {"cpu": "50m", "memory_limit": "1Gi", "ready_timeout_s": 90},
        "stages": stages,
        "reconciler": {"every_s": 5, "stuck_s": 30, "unschedulable_s": 30},
        "keep": {"workflows_s": 3600, "pods_s": 600},
    }


@pytest.fixture(scope="session")
def lab(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Shiplift installed for the session, its MLflow reached at its Service's address."""
    folder = tmp_path_factory.mktemp("lab")
    data = folder / "mlflow" if kube.here else None
    if data:
        data.mkdir()
        data.chmod(0o777)  # for the images' user, who is nobody here
    given = yaml.safe_dump(small_values(NAMESPACE, data, gateway=kube.here))
    file = folder / "values.yaml"
    file.write_text(given)
    if kube.exists("namespace", "default", NAMESPACE):  # what an interrupted run left
        kube.shiplift("uninstall", "--namespace", NAMESPACE, "--data")
    kube.shiplift("install", "--values", str(file))
    prepare_environment()
    uri = f"http://{kube.service(NAMESPACE, 'mlflow')}:5000"
    os.environ |= {"MLFLOW_TRACKING_URI": uri, "NO_PROXY": "*", "no_proxy": "*"}
    import mlflow

    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    registry = Registry(uri)
    client = mlflow.MlflowClient()
    until(lambda: any(one.name == "shiplift" for one in client.list_webhooks(max_results=100)), seconds=60)
    yield Lab(kube=kube, values=parse(given), registry=registry, mlflow=mlflow, folder=folder)
    kube.shiplift("uninstall", "--namespace", NAMESPACE, "--data")


@pytest.fixture(scope="session")
def nvidia_image(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with a `tritonserver` on its PATH, as NVIDIA has it: SHIPLIFT_NVIDIA_IMAGE, or one made here."""
    if image := os.environ.get("SHIPLIFT_NVIDIA_IMAGE", ""):
        return image
    if not kube.here:
        pytest.skip("no image in place of NVIDIA's: set SHIPLIFT_NVIDIA_IMAGE")
    folder = tmp_path_factory.mktemp("nvidia")
    (folder / "tritonserver").write_text(_TRITONSERVER)
    (folder / "tritonserver").chmod(0o755)
    (folder / "Containerfile").write_text(
        "FROM localhost/shiplift-server:dev\nCOPY tritonserver /usr/local/bin/tritonserver\n"
    )
    _script("build", str(folder), "localhost/shiplift-nvidia:dev")
    return "localhost/shiplift-nvidia:dev"


_TRITONSERVER = """\
#!/bin/sh
# The bundled server under the name, and with the defaults, of the one in NVIDIA's image.
site=$(echo /opt/triton/lib/python3.*/site-packages)
server=$site/pytriton/tritonserver
export LD_LIBRARY_PATH=/opt/triton/libraries:$site/nvidia_pytriton.libs OMP_NUM_THREADS=1
exec "$server/bin/tritonserver" --backend-directory=/opt/triton/backends --cache-directory="$server/caches" "$@"
"""
