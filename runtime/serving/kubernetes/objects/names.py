"""What objects are called and found by, and the ports and the user of every pod with a model."""

from typing import Any

from shiplift.runtime.base.names import dns_name
from shiplift.runtime.records.serving import Package

Object = dict[str, Any]
LABEL = "shiplift.dev/"
BENCH = f"{LABEL}bench"
HTTP, GRPC, METRICS = 8000, 8001, 8002
USER = 10001


def package_name(package: Package) -> str:
    """The name of a package's Deployment and Service."""
    return f"{dns_name(package.model)}-{package.version}-{package.repository.sha256[:8]}"


def labels(package: Package, name: str) -> dict[str, str]:
    """What a package's objects are found by."""
    return {
        "app.kubernetes.io/name": "triton",
        "app.kubernetes.io/managed-by": "shiplift",
        f"{LABEL}model": dns_name(package.model),
        f"{LABEL}version": str(package.version),
        f"{LABEL}package": name,
    }


def bench_label(model: str, version: int) -> str:
    """What the pods of a version's searches have as the label `BENCH`."""
    return f"{dns_name(model)}-{version}"
