"""The operator: makes production match a namespace's TritonServices, and reports what it observes in their status.

    python -m shiplift.pipelines.daemons.operator --site site.json --packages DIR

A watch event only says which service to look at. `runtime.serving.operator.deciding` decides what to do, from the state
at that moment. A missed event therefore does no harm: every service is looked at from time to time anyway.
"""

import argparse
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog
from pydantic import ValidationError

from shiplift.pipelines.daemons.operator.baking import BakeWatch
from shiplift.pipelines.daemons.operator.deletions import Deletions
from shiplift.pipelines.daemons.operator.gateway import GatewayWatch
from shiplift.pipelines.daemons.operator.leadership import RENEW_S, Leadership, identity_of, pod_is_gone
from shiplift.pipelines.daemons.operator.loop import Loop
from shiplift.pipelines.daemons.operator.metrics import OperatorMetrics
from shiplift.pipelines.daemons.operator.packages import PackageKeeper, serve_packages
from shiplift.pipelines.daemons.operator.watches import Watches
from shiplift.pipelines.daemons.prometheus import listen, web
from shiplift.runtime.base.daemon import log_as_json, stop_on_signals
from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.kinds import POD, TRITON_REVISION, TRITON_SERVICE
from shiplift.runtime.serving.operator.cluster.acting import Actor
from shiplift.runtime.serving.operator.cluster.activators import Activators, activator_pods
from shiplift.runtime.serving.operator.cluster.measuring import Measurer
from shiplift.runtime.serving.operator.cluster.observing import Observer, Snapshot
from shiplift.runtime.serving.operator.cluster.publishing import Publisher
from shiplift.runtime.serving.operator.declared import baked
from shiplift.runtime.serving.operator.sharing.shared_servers import SharedServers
from shiplift.runtime.store.package_cache import PackageCache

PORT, PACKAGES_PORT = 8080, 8090
LEASE = "shiplift-operator.leader"  # the lock of a model's promotion, `shiplift-MODEL`, has no dot
_THREADS = 4


def read_site(file: Path) -> Site:
    """The site in a file.

    Raises:
        UsageError: it can't be read, or it describes a machine instead of a cluster.
    """
    try:
        site = Site.model_validate_json(file.read_text())
    except (OSError, ValidationError) as error:
        raise UsageError(f"{file} is not a valid site: {error}", do="`shiplift install` writes a valid one.") from error
    if not isinstance(site.place, Cluster):
        raise UsageError(f"the site in {file} is a machine", do="The operator is for clusters.")
    return site


def _lead(leadership: Leadership, metrics: OperatorMetrics, stop: threading.Event) -> None:
    """Keeps trying to hold the Lease. While another process holds it, this one only watches."""
    while not stop.is_set():
        try:
            leadership.renew()
        except Exception as error:  # the next iteration tries again
            structlog.get_logger().warning("failed", part="lease", error=str(error))
        metrics.leads.set(leadership.holds)
        stop.wait(RENEW_S)


def serve(site: Site, stop: threading.Event, cache: PackageCache, *, identity: str = "") -> None:
    """Operates the serving namespace until `stop` is set; `identity` identifies this process's pod."""
    cluster = site.place
    if not isinstance(cluster, Cluster):
        raise UsageError("the site is a machine", do="The operator is for clusters.")
    api, metrics = KubernetesClient(cluster.serving_namespace), OperatorMetrics()
    activators = Activators(activator_pods(cluster.serving_namespace))
    gateway = GatewayWatch(lambda: observer.gateway_address)
    observer = Observer(api, cluster, activators.of, gateway.seen)
    own = KubernetesClient(cluster.namespace)
    leadership = Leadership(api, LEASE, identity=identity, is_gone=partial(pod_is_gone, own))
    keeper, publisher = PackageKeeper(cache), Publisher(api, cluster)
    actor = Actor(api, Measurer(golden=keeper.golden), count=lambda kind: metrics.acts.labels(kind).inc())
    servers = SharedServers(api, cluster)

    def listed_as_leader(snapshot: Snapshot) -> None:
        publisher.publish(snapshot)
        observer.assigned = servers.keep(snapshot)

    loop = Loop(
        observer, actor, metrics, leads=lambda: leadership.holds, publish=listed_as_leader, listed=keeper.listed
    )
    kinds = [TRITON_SERVICE, TRITON_REVISION, POD, *observer.written]
    deletions = Deletions(api)
    watches = Watches(api, kinds, loop.wake, gone=lambda body: deletions.note(body) if leadership.holds else None)
    server = listen(web(metrics.registry, {"/healthz": lambda: loop.healthy() and watches.alive()}), PORT)
    packages = listen(serve_packages(cache.folder), PACKAGES_PORT)
    leading, keeping = partial(_lead, leadership, metrics, stop), partial(keeper.run, stop)
    threads: list[Callable[[], None]] = [partial(activators.run, stop, loop.wake)] if cluster.activator else []
    threads += [partial(gateway.run, stop, loop.wake_all)] if cluster.gateway else []
    bakes = BakeWatch(loop.seen, partial(baked, api))
    threads += [partial(bakes.run, stop, lambda: leadership.holds)]
    threads += [server.serve_forever, packages.serve_forever, leading, keeping]
    for target in threads:
        threading.Thread(target=target, daemon=True).start()
    watches.start()
    try:
        loop.run(stop, threads=_THREADS)
    finally:
        watches.stop()
        leadership.release()
        server.shutdown()
        packages.shutdown()


def main() -> None:
    """Operates the serving namespace of a site until SIGTERM."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--site", type=Path, required=True, help="the site of this cluster, as JSON")
    parser.add_argument("--pod", default="", help="the name of this process's pod")
    parser.add_argument("--pod-uid", default="", help="its UID, by which a successor sees that this pod is gone")
    parser.add_argument("--packages", type=Path, required=True, help="the folder for packages in production")
    parser.add_argument("--packages-mb", type=int, default=18_000, help="the most space they may take, in MiB")
    arguments = parser.parse_args()
    log_as_json()
    identity = identity_of(arguments.pod, arguments.pod_uid)
    cache = PackageCache(arguments.packages, arguments.packages_mb << 20)
    serve(read_site(arguments.site), stop_on_signals(), cache, identity=identity)
