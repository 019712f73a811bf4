"""Each place has its own staging and production; which one a site gets is decided by its type."""

from pathlib import Path

from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes.production import ClusterProduction
from shiplift.runtime.serving.kubernetes.staging import ClusterStaging
from shiplift.runtime.serving.machine.production import LocalProduction
from shiplift.runtime.serving.machine.staging import LocalStaging
from shiplift.runtime.serving.production import production
from shiplift.runtime.serving.staging import staging
from tests.unit.examples import site

CLUSTER = Cluster(namespace="shiplift", serving_namespace="models", server_image="example.org/server:1")


def test_a_site_serves_at_its_place(tmp_path: Path) -> None:
    machine, cluster = site(tmp_path), site(tmp_path, place=CLUSTER)
    assert isinstance(staging(machine, "digits", 2), LocalStaging)
    assert isinstance(production(machine), LocalProduction)
    assert isinstance(staging(cluster, "digits", 2), ClusterStaging)
    assert isinstance(production(cluster), ClusterProduction)
