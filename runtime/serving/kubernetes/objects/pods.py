"""What every pod with packages is made of: containers that fetch them by digest, and Triton.

The pods that serve a package and those that measure configurations on are made of the same parts.
"""

from collections.abc import Sequence
from pathlib import Path

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.records.serving import Package
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes.objects.names import GRPC, HTTP, METRICS, USER, Object

_MODELS, _GUARD = "/models", "/shiplift"
_TMP, _SHM = "/tmp", "/dev/shm"  # noqa: S108 - in the container


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
