"""The pod of a bench, with every package of a search and no traffic.

It is just a Pod: no Service or route leads to it, and production's objects don't select its labels. Triton loads
nothing by itself, and its model-repository API is closed with a key that only the search has.
"""

import hashlib

from shiplift.runtime.base.names import dns_name, serving_name
from shiplift.runtime.guest.pod.guard import KEY
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes.objects.names import BENCH, Object, bench_label
from shiplift.runtime.serving.kubernetes.objects.pods import (
    confined_container,
    fetch_container,
    probe,
    triton_container,
    volumes,
)

METER = 8003
_GRACE_S = 2  # it has no users whose requests could be lost
_DEADLINE_S = 3 * 3600  # more than a search may take: the stage's deadline is two hours


def bench_name(packages: tuple[Package, ...]) -> str:
    """The name of the pod for a search over these packages; always the same for the same packages."""
    first = packages[0]
    digest = hashlib.sha256(first.target.encode())
    for package in packages:
        digest.update(package.repository.sha256.encode())
    return f"bench-{dns_name(first.model)}-{first.version}-{digest.hexdigest()[:8]}"


def served_as(package: Package) -> str:
    """The name of a package in a bench's repository, which holds every variant of the model."""
    return f"{serving_name(package.model)}--{package.variant}"


def bench_pod(cluster: Cluster, packages: tuple[Package, ...], artifacts_uri: str, *, name: str, key: str) -> Object:
    """The Pod: an init container fetches each package, then Triton has all of them in its repository.

    Raises:
        SpecInvalid: the packages are for NVIDIA's server, and their target has no image.
    """
    from shiplift.runtime.serving.kubernetes.serve import PORTS  # noqa: PLC0415 - it imports gRPC

    first = packages[0]
    models = [served_as(package) + ending for package in packages for ending in ("", *package.called_endings)]
    probes = {"readinessProbe": probe("/v2/health/live", periodSeconds=1, failureThreshold=3)}
    triton = triton_container(
        cluster, first, models, load=(), probes=probes, beside=["--meter", f"{PORTS.host}:{METER}"]
    )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {
                "app.kubernetes.io/name": "triton-bench",
                "app.kubernetes.io/managed-by": "shiplift",
                BENCH: bench_label(first.model, first.version),
            },
        },
        "spec": {
            **confined_container(first),
            "restartPolicy": "Never",
            "activeDeadlineSeconds": _DEADLINE_S,
            "terminationGracePeriodSeconds": _GRACE_S,
            "initContainers": [
                fetch_container(
                    cluster, package, artifacts_uri, name=f"fetch-{package.variant}", served_as=served_as(package)
                )
                for package in packages
            ],
            "containers": [{**triton, "env": [*triton.get("env", []), {"name": KEY, "value": key}]}],
            "volumes": volumes(first),
        },
    }
