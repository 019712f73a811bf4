"""The names and labels of objects, and the ports and user of every pod with a model."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from shiplift.runtime.base.names import dns_name
from shiplift.runtime.records.kinds.package import Package

Object = dict[str, Any]
LABEL = "shiplift.dev/"
BENCH = f"{LABEL}bench"
STAGES = f"{LABEL}stages"  # of a release's pod: the stages that it runs, as `deploy.gate`
SANDBOX = f"{LABEL}sandbox"  # of a release's pod: its stages have no credentials
PACKAGE = f"{LABEL}package"  # identifies the objects of a package, or of a revision's group
REVISION = f"{LABEL}revision"  # on the pods of a revision with several groups: the same for all of them
REGISTRY_READER = "shiplift-registry-reader"  # the Secret with an account that may only read the registry
CAPTURE_SENDER = "shiplift-capture-sender"  # the Secret with which a pod sends what it captures
SERVER = f"{LABEL}server"  # on a shared server's objects and pods: its name
SERVICES = f"{LABEL}services"  # an annotation of a shared server's pods: its services, separated by commas
_HOSTED = "on.shiplift.dev/"
_GROUP = "--"
_LABEL_LENGTH = 63
HTTP, GRPC, METRICS = 8000, 8001, 8002
USER = 10001


def package_name(package: Package) -> str:
    """The name of a package's Deployment and Service."""
    return f"{dns_name(package.model)}-{package.version}-{package.repository.sha256[:8]}"


def revision_name(packages: Sequence[Package]) -> str:
    """The name of a revision with these packages, one for each target; with a single package, that package's name."""
    first = packages[0]
    if len(packages) == 1:
        return package_name(first)
    parts = "\n".join(f"{package.target} {package.repository.sha256}" for package in packages)
    return f"{dns_name(first.model)}-{first.version}-{hashlib.sha256(parts.encode()).hexdigest()[:8]}"


def group_name(revision: str, target: str) -> str:
    """The name of the Deployment and Service of a revision's group, except the first, which has the revision's name.

    No package's name contains `--`, so the part before it names the revision.
    """
    name = f"{revision}{_GROUP}{target}"
    short = hashlib.sha256(target.encode()).hexdigest()[:6]
    return name if len(name) <= _LABEL_LENGTH else f"{revision}{_GROUP}{short}"


def revision_of_group(name: str) -> str:
    """The revision that a group belongs to, from the group's name."""
    return name.partition(_GROUP)[0]


def hosted_label(group: str) -> str:
    """The label of a shared server's pods that take a group's requests; its value is the server's name.

    Each model has its own label, so that a pod can leave the route of one model and keep those of the others.
    """
    return f"{_HOSTED}{group}"


def version_with_most(model: str, weights: Mapping[str, int]) -> int:
    """The version of a model's package with the largest weight, from the packages' names; 0 if none has any."""
    name = max(weights, key=lambda each: weights[each], default="")
    version = name.removeprefix(f"{dns_name(model)}-").partition("-")[0]
    return int(version) if weights.get(name) and version.isdecimal() else 0


def labels(package: Package, name: str) -> dict[str, str]:
    """The labels by which a package's objects are selected."""
    return {
        "app.kubernetes.io/name": "triton",
        "app.kubernetes.io/managed-by": "shiplift",
        f"{LABEL}model": dns_name(package.model),
        f"{LABEL}version": str(package.version),
        PACKAGE: name,
    }


def bench_label(model: str, version: int) -> str:
    """The value of the label `BENCH` on the pods of a version's searches."""
    return f"{dns_name(model)}-{version}"
