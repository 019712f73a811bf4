"""Where packages are deployed: a server's address and what runs it, and which targets serve."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from shiplift.runtime.records.base import Record, volatile
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.process import Process

ONE_TARGET = "one target serves per machine, the first in `targets` that can run"


class Endpoint(Record):
    """A model's addresses: its HTTP URL and the gRPC `host:port`."""

    http: str
    grpc: str


class ServerProcess(Record):
    """A staging server on one machine: its process and the folder of its model repository."""

    kind: Literal["process"] = "process"
    process: Process
    repository: str


class ServerPods(Record):
    """Staging servers on a cluster: the Deployment's name, and the MiB that one server used when it was tuned."""

    kind: Literal["pods"] = "pods"
    name: str
    tuned_memory_mb: float


class Deployment(Record):
    """A package loaded on a staging server, warmed up, with correct answers to its golden requests.

    `workload` is what runs the server, which depends on the place. `metrics` is a URL. `others` are the same for the
    release's other targets that serve; `left_out` says, by name, why the remaining ones don't.
    """

    package: Package
    endpoint: Endpoint = volatile()
    metrics: str = volatile("")
    load_seconds: float = volatile(0.0)
    workload: Annotated[ServerProcess | ServerPods, Field(discriminator="kind")] = volatile()
    others: tuple["Deployment", ...] = ()
    left_out: dict[str, str] = Field(default_factory=dict)

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the targets that are deployed."""
        return (self.package.target, *(other.package.target for other in self.others))


class Staged(Record):
    """A model on a staging server: the name under which it is loaded, and its endpoint."""

    model: str
    endpoint: Endpoint


def which_targets_serve(serving: Sequence[str], not_served: Iterable[str], left_out: Mapping[str, str]) -> str:
    """A sentence about which of several targets are deployed and judged, and why the others are not.

    `left_out` has a reason for each, except in releases of an earlier Shiplift. Empty if there are no others.
    """
    others = tuple(not_served)
    if not others or not serving:
        return ""
    reasons = dict.fromkeys(left_out.get(name, ONE_TARGET) for name in others)
    verb = "is" if len(others) == 1 else "are"
    deployed = f"target {serving[0]} is" if len(serving) == 1 else f"targets {', '.join(serving)} are"
    return f"{deployed} deployed and judged, {', '.join(others)} {verb} not: {'; '.join(reasons)}"
