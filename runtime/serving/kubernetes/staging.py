"""Staging on a cluster: the challenger's own Deployment and Service, next to the champion's and without traffic.

A challenger that passes its gates is not deployed again: production moves traffic to the same pods.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shiplift.runtime.base.errors import GoldenMismatch, ServerFailed
from shiplift.runtime.base.names import dns_name, serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.records.deployment import Deployment, Endpoint, ServerPods, Staged
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.serving.kubernetes.kinds import DEPLOYMENT, POD, POD_METRICS
from shiplift.runtime.serving.kubernetes.objects.names import (
    BENCH,
    HTTP,
    LABEL,
    METRICS,
    PACKAGE,
    bench_label,
    group_name,
    package_name,
    revision_name,
    revision_of_group,
)
from shiplift.runtime.serving.kubernetes.workloads import Workloads, golden_of
from shiplift.runtime.serving.operator import declared
from shiplift.runtime.serving.operator.resources import MOST_GROUPS, unlike
from shiplift.runtime.spec.serving_settings import Rollout, Serving

_COMPARED_WITH = f"{LABEL}compared-with"
_UNITS = {"Ki": 1 / 1024, "Mi": 1, "Gi": 1024, "": 1 / 1024**2}


class ClusterStaging:
    """The staging pods of a model version. See `runtime.serving.staging.Staging`."""

    def __init__(self, site: Site, cluster: Cluster, model: str, version: int) -> None:
        self._site = site
        self._cluster = cluster
        self._model = model
        self._version = version
        self._workloads = Workloads(site, cluster)

    def start(self, tuned: tuple[Tuned, ...], serving: Serving, rollout: Rollout) -> Deployment:  # noqa: ARG002 - the package says it all
        """Starts the challenger's pods, with a group for each target that can serve beside the first.

        Waits until they answer their golden requests correctly.
        """
        first, *others = tuned
        left_out = {
            other.target: f"its package {why}" for other in others if (why := unlike(first.package, other.package))
        }
        together = [first, *(other for other in others if other.target not in left_out)]
        left_out |= {tuned.target: f"at most {MOST_GROUPS} targets serve together" for tuned in together[MOST_GROUPS:]}
        together = together[:MOST_GROUPS]
        revision = revision_name([each.package for each in together])
        several = revision if len(together) > 1 else ""
        try:
            deployment, *beside = self._groups(together, revision, several, rollout, left_out)
        except BaseException:
            self.end()
            raise
        return deployment.model_copy(update={"others": tuple(beside), "left_out": left_out})

    def _groups(
        self, together: Sequence[Tuned], revision: str, several: str, rollout: Rollout, left_out: dict[str, str]
    ) -> Iterator[Deployment]:
        """Starts each group. If one other than the first fails, it is left out, unless the spec refuses that."""
        for index, tuned in enumerate(together):
            name = group_name(revision, tuned.target) if index else revision
            try:
                yield self._start(tuned, name, several)
            except (ServerFailed, GoldenMismatch) as error:
                if not index or rollout.failed_target == "refuse":
                    what = f"target {tuned.target}: {error.what}" if several else error.what
                    raise type(error)(what, do=error.do) from error
                left_out[tuned.target] = error.what
                self._workloads.remove(name)

    def _start(self, tuned: Tuned, name: str, revision: str) -> Deployment:
        started, package = time.monotonic(), tuned.package
        progress(f"starting the challenger's pods{f' for target {tuned.target}' if revision else ''}")
        self._workloads.run(package, name=name, revision=revision)
        seconds = time.monotonic() - started
        self._workloads.check(package, name, golden_of(package, self._site.artifacts_uri))
        host = f"{name}.{self._cluster.serving_namespace}.svc"
        return Deployment(
            package=package,
            endpoint=self._endpoint(name, package.model),
            metrics=f"http://{host}:{METRICS}/metrics",
            load_seconds=seconds,
            workload=ServerPods(name=name, tuned_memory_mb=tuned.best.memory_mb),
        )

    @contextmanager
    def beside(self, deployment: Deployment, package: Package) -> Iterator[Staged]:  # noqa: ARG002 - it needs own pods
        """Serves the champion's package on extra pods: production's also answer users, so it would compare badly."""
        extra = {_COMPARED_WITH: f"{dns_name(self._model)}-{self._version}"}
        name = f"{package_name(package)}-twin"
        try:
            self._workloads.run(package, name=name, extra=extra)
            yield Staged(model=serving_name(package.model), endpoint=self._endpoint(name, package.model))
        finally:
            self._workloads.remove(name)  # the next stages need the room on the node

    def memory_mb(self, deployment: Deployment) -> float | None:
        """The memory of a server in MiB: from the metrics API if the cluster has one, else as measured in tuning."""
        servers = deployment.workload
        if not isinstance(servers, ServerPods):
            raise ServerFailed("the staging server has no pods on this cluster", do="Rerun the release.")
        if not self._workloads.api.serves(POD_METRICS):
            return servers.tuned_memory_mb or None
        pods = self._workloads.api.find(POD_METRICS, f"{PACKAGE}={servers.name}")
        used = [_mib(container["usage"]["memory"]) for pod in pods for container in pod["containers"]]
        return sum(used) / len(pods) if used else servers.tuned_memory_mb or None

    def end(self) -> None:
        """Removes this version's pods unless production needs them, the champion's extra pods, and its benches."""
        api = self._workloads.api
        in_production = declared.in_use(api, self._cluster, self._model)
        own = f"{LABEL}model={dns_name(self._model)},{LABEL}version={self._version},!{_COMPARED_WITH}"
        twins = f"{_COMPARED_WITH}={dns_name(self._model)}-{self._version}"
        for selector in (own, twins):
            for body in api.find(DEPLOYMENT, selector):
                if revision_of_group(body["metadata"]["name"]) not in in_production:
                    self._workloads.remove(body["metadata"]["name"])
        for pod in api.find(POD, f"{BENCH}={bench_label(self._model, self._version)}"):
            api.delete(POD, pod["metadata"]["name"])

    def _endpoint(self, name: str, model: str) -> Endpoint:
        host = f"{name}.{self._cluster.serving_namespace}.svc"
        return Endpoint(
            http=f"http://{host}:{HTTP}/v2/models/{serving_name(model)}", grpc=self._workloads.address(name)
        )


def _mib(quantity: str) -> float:
    number = quantity.rstrip("KMGi")
    return float(number) * _UNITS[quantity.removeprefix(number)]
