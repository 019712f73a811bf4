"""The parts of every pod with packages: containers that fetch them by digest, and Triton.

Pods that serve a package and pods that measure configurations share these parts.
"""

from collections.abc import Sequence
from pathlib import Path

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes.objects.names import (
    CAPTURE_SENDER,
    GRPC,
    HTTP,
    METRICS,
    REGISTRY_READER,
    USER,
    Object,
)

_MODELS, _GUARD, _ENVIRONMENTS = "/models", "/shiplift", "/environments"
_RINGS = {"rings": "/tmp/shiplift-capture"}  # noqa: S108 - as in `runtime.capture.ring`, which needs NumPy
_RING_MB, _CAPTURE = 17, "capture"
_TMP, _SHM = "/tmp", "/dev/shm"  # noqa: S108 - in the container


def confined_container(package: Package) -> Object:
    """What every pod with a package has in common: no privileges, no token, and its target's nodes."""
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": package.nodes.selector,
        "tolerations": list(package.nodes.tolerations),
    }


def captured(cluster: Cluster, packages: Sequence[Package]) -> list[Package]:
    """The packages whose requests are captured: those of our own server, if the cluster keeps what is."""
    return [each for each in packages if each.capturing and each.server == "bundled" and cluster.capture_uri]


def captures(cluster: Cluster, packages: Sequence[Package], pod: Object) -> Object:
    """A pod of a server with these packages, and what captures their requests; the same pod if none are.

    The server and a container beside it share rings in memory, and only the latter has the senders' token. It is an
    init container that goes on (Kubernetes 1.29), so that it ends after the server.
    """
    if not (kept := captured(cluster, packages)):
        return pod
    size = {"medium": "Memory", "sizeLimit": f"{_RING_MB * len(kept) + 8}Mi"}
    triton, *others = pod["containers"]
    server = {
        **triton,
        "volumeMounts": [*triton["volumeMounts"], *_mounts(_RINGS)],
        "args": [*triton["args"], "--captures"],
    }
    return {
        **pod,
        "initContainers": [*pod["initContainers"], _capture_container(cluster, kept)],
        "containers": [server, *others],
        "volumes": [*pod["volumes"], {"name": "rings", "emptyDir": size}],
    }


def is_captured(deployment: Object) -> bool:
    """Whether a Deployment's pods are captured, as `captures` makes them."""
    containers = deployment["spec"].get("template", {}).get("spec", {}).get("initContainers") or []
    return any(each["name"] == _CAPTURE for each in containers)


def _capture_container(cluster: Cluster, kept: Sequence[Package]) -> Object:
    models = [
        word
        for each in kept
        if each.capturing
        for word in ("--model", serving_name(each.model), each.repository.sha256, f"{each.capturing.share:g}")
    ]
    return {
        "name": _CAPTURE,
        **_image(cluster, cluster.server_image),
        "restartPolicy": "Always",
        "command": ["python", "-m", "shiplift.runtime.capture.forwarding"],
        "args": ["--to", cluster.capture_uri, *models],
        "envFrom": [{"secretRef": {"name": CAPTURE_SENDER, "optional": True}}],  # a model that serves needs no capture
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {
            "requests": {"cpu": "10m", "memory": "64Mi"},
            "limits": {"memory": f"{160 + 2 * _RING_MB * len(kept)}Mi"},  # the rings' pages count as its own
        },
        "volumeMounts": _mounts(_RINGS),
    }


def volumes(package: Package) -> list[Object]:
    """The volumes that the containers of a pod with this package mount.

    Triton's Python backend and its processes exchange tensors in /dev/shm. A container's own holds only 64 MiB, so it
    gets a larger one, whose pages count as the pod's memory.
    """
    nvidia = package.server == "nvidia"
    return [
        {"name": "models", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        *([{"name": "guard", "emptyDir": {}}, {"name": "engines", "emptyDir": {}}] if nvidia else []),
        *({"name": name, "emptyDir": {}} for name in _environments(package)),
    ]


def fetch_container(
    cluster: Cluster, package: Package, artifacts_uri: str, *, name: str = "fetch", served_as: str = ""
) -> Object:
    """The init container that fetches a package by its digest."""
    guard = {"guard": _GUARD} if package.server == "nvidia" else {}
    environments = _environments(package)
    arguments = [
        "--artifacts-uri",
        artifacts_uri,
        "--sha256",
        package.repository.sha256,
        "--to",
        _MODELS,
        "--name",
        serving_name(package.model),
        *(["--served-as", served_as] if served_as else []),
        *(["--guard", _GUARD] if guard else []),
        *(["--environments", _ENVIRONMENTS] if environments else []),
    ]
    return _fetching(cluster, name, arguments, {"models": _MODELS, "tmp": _TMP} | guard | environments)


def fetch_packages_container(cluster: Cluster, packages: Sequence[tuple[Package, str]]) -> Object:
    """The init container that fetches several packages, each from its artifact store, and leaves out those it can't."""
    named = [
        word
        for package, uri in packages
        for word in ("--package", package.repository.sha256, serving_name(package.model), uri)
    ]
    return _fetching(cluster, "fetch", ["--to", _MODELS, *named], {"models": _MODELS, "tmp": _TMP})


def _fetching(cluster: Cluster, name: str, arguments: list[str], folders: dict[str, str]) -> Object:
    cache = ["--cache", cluster.packages_uri] if cluster.packages_uri else []
    return {
        "name": name,
        **_image(cluster, cluster.server_image),
        "command": ["python", "-m", "shiplift.runtime.serving.kubernetes.fetch"],
        "args": [*cache, *arguments],
        # Only this container has credentials, which can only read: the server runs the model, and must have none.
        "envFrom": [
            {"secretRef": {"name": name, "optional": True}} for name in (REGISTRY_READER, "shiplift-artifacts")
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "volumeMounts": _mounts(folders),
    }


def triton_container(
    cluster: Cluster,
    package: Package,
    models: Sequence[str],
    *,
    load: Sequence[str],
    probes: Object,
    beside: Sequence[str],
) -> Object:
    """The package's server with a repository of these models; it loads those in `load` when it starts.

    `probes` are its probes and lifecycle hooks. `beside` are the arguments that start a small process next to it.
    """
    gpus = {"nvidia.com/gpu": str(package.nodes.gpus)} if package.nodes.gpus else {}
    server = _nvidia_server if package.server == "nvidia" else _bundled_server
    return {
        "name": "triton",
        **server(cluster, package, models, load, beside),
        "ports": [
            {"name": "http", "containerPort": HTTP},
            {"name": "grpc", "containerPort": GRPC},
            {"name": "metrics", "containerPort": METRICS},
        ],
        **probes,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {
            "requests": {"cpu": cluster.server_cpu_request, "memory": "256Mi"},
            "limits": {"memory": cluster.server_memory_limit, **gpus},
        },
    }


def _bundled_server(
    cluster: Cluster, package: Package, models: Sequence[str], _: Sequence[str], beside: Sequence[str]
) -> Object:
    """The Triton of our own image. It loads its whole repository, but nothing in a bench."""
    limiter = ["--rate-limiter"] if package.needs.rate_limiter else []
    flags = [f"--flag={flag}" for flag in package.needs.flags]
    required = [word for model in models for word in ("--model", model)]
    without = ["--allow-without", *cluster.allow_without] if cluster.allow_without else []
    environments = _environments(package)
    python = ["--environments", _ENVIRONMENTS] if environments else []
    return {
        **_image(cluster, cluster.server_image),
        "command": ["python", "-m", "shiplift.runtime.serving.kubernetes.serve"],
        "args": ["--repository", _MODELS, *required, *limiter, *flags, *python, *without, *beside],
        "volumeMounts": _mounts({"models": _MODELS, "tmp": _TMP, "shm": _SHM} | environments),
    }


def _nvidia_server(
    cluster: Cluster, package: Package, models: Sequence[str], load: Sequence[str], beside: Sequence[str]
) -> Object:
    """The Triton of the target's own image, started by `runtime.guest.pod.guard`."""
    from shiplift.runtime.serving.kubernetes.serve import PORTS  # noqa: PLC0415 - these import gRPC
    from shiplift.runtime.serving.triton.command_line import nvidia_command  # noqa: PLC0415
    from shiplift.runtime.serving.triton.config import TENSORRT_CACHE  # noqa: PLC0415

    if not package.nodes.image:
        raise SpecInvalid(
            f"target {package.target} has `server: nvidia` but no `image` to run on a cluster",
            do="Set the target's `image` to a Triton image, such as your mirror of NVIDIA's.",
        )
    environments = _environments(package)
    variables = {"HOME": _TMP, "PYTHONDONTWRITEBYTECODE": "1"}
    if environments:
        allowed = " ".join(cluster.allow_without)
        variables |= {"SHIPLIFT_ENVIRONMENTS": _ENVIRONMENTS, "SHIPLIFT_ALLOW_WITHOUT": allowed}
    folders = {"models": _MODELS, "tmp": _TMP, "shm": _SHM, "guard": _GUARD, "engines": TENSORRT_CACHE} | environments
    checked = [word for model in models for word in ("--model", f"{_MODELS}/{model}")]
    return {
        **_image(cluster, package.nodes.image),
        "command": ["python3", f"{_GUARD}/guard.py", *checked, *beside, "--"],
        "args": nvidia_command(Path(_MODELS), PORTS, package.needs, load=load),
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "volumeMounts": _mounts(folders),
    }


def _environments(package: Package) -> dict[str, str]:
    """The mount of the environments of a package's Python code, if it brings any."""
    return {"environments": _ENVIRONMENTS} if package.brings_python else {}


def _mounts(folders: dict[str, str]) -> list[Object]:
    return [{"name": name, "mountPath": path} for name, path in folders.items()]


def _image(cluster: Cluster, image: str) -> Object:
    return {
        "image": image,
        "imagePullPolicy": cluster.pull_policy,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def probe(path: str, *, port: int | str = "http", **times: int) -> Object:
    """A probe of Triton's HTTP port, or of another one."""
    return {"httpGet": {"path": path, "port": port}, "timeoutSeconds": 5, **times}
