"""Which targets of a release are staged together, and what becomes of one that does not start."""

from pathlib import Path
from typing import Any

import pytest

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes import staging
from shiplift.runtime.serving.kubernetes.objects.names import package_name, revision_name
from shiplift.runtime.spec.serving_settings import Rollout, Serving
from tests.unit.examples import package, site, trial

CLUSTER = Cluster(namespace="shiplift", serving_namespace="models", server_image="x")


class FakeWorkloads:
    """Pods that start, but for those of `broken` targets."""

    def __init__(self, *broken: str) -> None:
        self.broken, self.running, self.removed = broken, dict[str, str](), list[str]()

    def run(self, package: Any, *, name: str, revision: str) -> str:
        if package.target in self.broken:
            raise ServerFailed("Unschedulable: no node has speed=slow", do="Add one.")
        self.running[name] = revision
        return name

    def check(self, *_: Any) -> None: ...

    def address(self, name: str) -> str:
        return f"{name}:8001"

    def remove(self, name: str) -> None:
        self.removed.append(name)


def tuned(**changes: Any) -> Tuned:
    served = package(**changes)
    return Tuned(target=served.target, package=served, best=trial(), trials=())


FAST, SLOW = tuned(target="fast"), tuned(target="slow")


def place(tmp_path: Path, workloads: FakeWorkloads, monkeypatch: pytest.MonkeyPatch) -> staging.ClusterStaging:
    monkeypatch.setattr(staging, "Workloads", lambda *_: workloads)
    monkeypatch.setattr(staging, "golden_of", lambda *_: {})
    monkeypatch.setattr(staging.ClusterStaging, "end", lambda _: workloads.removed.append("everything"))
    return staging.ClusterStaging(site(tmp_path, place=CLUSTER), CLUSTER, "digits", 2)


def test_a_single_target_s_pods_have_the_names_that_they_always_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workloads = FakeWorkloads()
    deployed = place(tmp_path, workloads, monkeypatch).start((FAST,), Serving(), Rollout())
    assert workloads.running == {package_name(FAST.package): ""}
    assert (deployed.targets, deployed.left_out) == (("fast",), {})


def test_each_target_is_staged_as_the_group_that_production_will_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workloads = FakeWorkloads()
    deployed = place(tmp_path, workloads, monkeypatch).start((FAST, SLOW), Serving(), Rollout())
    revision = revision_name([FAST.package, SLOW.package])
    assert workloads.running == {revision: revision, f"{revision}--slow": revision}
    assert (deployed.targets, deployed.left_out) == (("fast", "slow"), {})
    assert deployed.others[0].endpoint.grpc == f"{revision}--slow:8001"


@pytest.mark.parametrize("broken", ["fast", "slow"])
def test_a_target_that_does_not_start_refuses_the_version(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workloads = FakeWorkloads(broken)
    with pytest.raises(ServerFailed, match=f"target {broken}: Unschedulable: no node has speed=slow"):
        place(tmp_path, workloads, monkeypatch).start((FAST, SLOW), Serving(), Rollout())
    assert workloads.removed == ["everything"]


def test_unless_the_spec_says_to_serve_without_it_and_it_is_not_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out = Rollout(failed_target="leave_out")
    deployed = place(tmp_path, FakeWorkloads("slow"), monkeypatch).start((FAST, SLOW), Serving(), leave_out)
    assert deployed.targets == ("fast",)
    assert deployed.left_out == {"slow": "Unschedulable: no node has speed=slow"}
    with pytest.raises(ServerFailed):
        place(tmp_path, FakeWorkloads("fast"), monkeypatch).start((FAST, SLOW), Serving(), leave_out)


def test_more_targets_than_a_revision_has_groups_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = tuple(tuned(target=f"t{number}") for number in range(18))
    deployed = place(tmp_path, FakeWorkloads(), monkeypatch).start(many, Serving(), Rollout())
    assert deployed.targets == tuple(f"t{number}" for number in range(16))
    assert deployed.left_out == dict.fromkeys(("t16", "t17"), "at most 16 targets serve together")


def test_a_target_with_other_inputs_is_left_out_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    positional = FAST.package.signature.model_copy(update={"outputs": ()})
    other = tuned(target="torch", signature=positional)
    deployed = place(tmp_path, FakeWorkloads(), monkeypatch).start((FAST, other), Serving(), Rollout())
    assert deployed.targets == ("fast",)
    assert "inputs or outputs of other names" in deployed.left_out["torch"]
