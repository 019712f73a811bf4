from typing import Any, cast

import pytest

from shiplift.pipelines.installation import install
from shiplift.pipelines.installation.values import Values, parse
from shiplift.runtime.base.errors import ClusterRefused
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.kinds import ResourceKind


class Older:
    """A cluster before Kubernetes 1.30."""

    def serves(self, kind: ResourceKind) -> bool:
        return not kind.name.startswith("ValidatingAdmissionPolicy")


def test_a_cluster_that_can_not_bound_a_release_s_account_is_refused_unless_that_is_accepted() -> None:
    older = cast("KubernetesClient", Older())
    with pytest.raises(ClusterRefused, match=r"ValidatingAdmissionPolicy.*Kubernetes 1.30 or newer \(or accept"):
        install._require(older, Values())
    install._require(older, parse("admission: {policies: false}"))


class Cluster:
    """A cluster with one object."""

    def __init__(self, body: Any) -> None:
        self.body = body

    def locate(self, _: Any) -> tuple[()]:
        return ()

    def get(self) -> Any:
        return self.body

    def apply(self, body: Any, *, dry_run: bool) -> Any:
        self.body = self.body if dry_run else body
        return body


@pytest.mark.parametrize(
    ("there", "change"),
    [(None, "created"), ("0", "configured"), ("x", "configured"), ("1", "unchanged"), ("2", "kept")],
)
def test_a_newer_definition_of_another_installation_stays(there: str | None, change: str) -> None:
    def definition(number: str) -> Any:
        meta = {"name": "tritonservices.shiplift.dev", "annotations": {"shiplift.dev/definition": number}}
        return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": meta}

    cluster = Cluster(definition(there) if there else None)
    told: list[str] = []
    applied = install._apply(cast("KubernetesClient", cluster), definition("1"), dry_run=False)
    install._tell_change(told.append, applied, dry_run=False)
    assert applied.change == change
    assert cluster.body == definition("2" if change == "kept" else "1")
    if change == "kept":
        assert told == ["kept: CustomResourceDefinition tritonservices.shiplift.dev, which a newer Shiplift installed"]
