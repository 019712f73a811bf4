"""The names and labels of objects, and the ports and user of every pod with a model."""

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
    """The labels by which a package's objects are selected."""
    return {
        "app.kubernetes.io/name": "triton",
        "app.kubernetes.io/managed-by": "shiplift",
        f"{LABEL}model": dns_name(package.model),
        f"{LABEL}version": str(package.version),
        f"{LABEL}package": name,
    }


def bench_label(model: str, version: int) -> str:
    """The value of the label `BENCH` on the pods of a version's searches."""
    return f"{dns_name(model)}-{version}"
