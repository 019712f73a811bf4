"""The attacks of the unit tests, from a pod as restricted as those that load models."""

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from shiplift.pipelines.installation.values import Images
from tests.cluster.conftest import Kube, until
from tests.unit.runtime.confinement import attacks

pytestmark = pytest.mark.cluster
NAMESPACE = "default"
IMAGE = os.environ.get("SHIPLIFT_PIPELINE_IMAGE", Images().pipeline)


@pytest.fixture
def name(kube: Kube) -> Iterator[str]:
    name = f"attacks-{uuid.uuid4().hex[:8]}"
    yield name
    kube("-n", NAMESPACE, "delete", "pod,configmap", name, "--ignore-not-found", "--wait=false")


def test_a_sandbox_in_a_restricted_pod_holds(kube: Kube, name: str) -> None:
    source = Path(attacks.__file__).read_text()
    metadata = {"name": name, "namespace": NAMESPACE}
    kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"attacks.py": source}})
    kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod(name)})
    ended = ("Succeeded", "Failed")
    until(lambda: kube.get("pod", NAMESPACE, name)["status"].get("phase") in ended, seconds=180)
    answer = kube("-n", NAMESPACE, "logs", name)
    went = json.loads(answer)
    assert {attack for attack in attacks.ATTACKS if went["outcomes"][attack] == "done"} == set()
    # Without a PID namespace no signal is let through: the filter can't tell its processes from others.
    assert {need for need in attacks.ALLOWED if went["outcomes"][need] != "done"} <= {"signal its child"}
    assert went["production"][0] == went["production"][1]
    assert went["files"][0] == went["files"][1]
    assert not went["heard"]
    assert went["isolation"] | {"memory_limit_mb": 0, "timeout_s": 0} == {
        "network": "seccomp",
        "processes": "none",
        "mounts": "none",
        "files": "landlock",
        "calls": "seccomp",
        "memory_limit_mb": 0,
        "timeout_s": 0,
    }
    assert went["uid"] != 0


def pod(name: str) -> dict[str, object]:
    restricted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "attacks",
                "image": IMAGE,
                "securityContext": restricted,
                "env": [{"name": "ATTACKED_WITHOUT", "value": "namespaces"}],  # as the values file accepts
                "command": ["sh", "-c", "mkdir /tmp/attacked && exec python /attacks/attacks.py /tmp/attacked"],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "code", "mountPath": "/attacks"}],
                "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "code", "configMap": {"name": name}}],
    }
