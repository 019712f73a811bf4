"""`shiplift predict --engine argo`: a Workflow whose pods share the parts of a dataset on a volume.

Needs `data_claim` in the values; the claim is made here, and filled by a pod of the pipeline's image.
"""

import json
import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Lab

FILL = """
import numpy as np, pyarrow as pa
from pathlib import Path
from pyarrow import parquet
Path("/data/rows").mkdir(exist_ok=True)
for at in range(4):
    image = pa.array(list(np.random.default_rng(at).random((100, 64)).astype(np.float32)))
    parquet.write_table(pa.table({"id": range(at * 100, at * 100 + 100), "image": image}), f"/data/rows/{at}.parquet")
"""


def test_pods_share_a_dataset(lab: Lab, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    lab.log_classifier("offline")
    lab.kube.shiplift("release", "offline", "--engine", "argo", "--watch", "--namespace", lab.namespace)
    _claim(lab, tmp_path, request)
    _on_the_claim(lab, "fill", FILL)
    arguments = ["--input", "/data/rows", "--output", "/data/scored", "--workers", "2", "--json"]
    command = ["predict", "offline", "--engine", "argo", "--namespace", lab.namespace, *arguments]
    for _ in range(2):  # the second finds everything done
        result = json.loads(lab.kube.shiplift(*command).stdout.splitlines()[-1])
        assert (result["rows"], result["parts"], result["failed"]) == (400, 4, [])


def _claim(lab: Lab, folder: Path, request: pytest.FixtureRequest) -> None:
    """Makes the claim. A cluster that provisions no volumes gets one in a folder, if it runs on this machine."""
    meta = {"namespace": lab.namespace, "name": "data"}
    asked: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Mi"}}}
    if not lab.kube("get", "storageclass", "-o", "name"):
        if not lab.kube.here:
            pytest.skip("this cluster provisions no volumes, and its nodes have no folder of this machine")
        for each in (folder, *folder.parents[:3]):
            each.chmod(0o777)  # the pods run as another user
        name = f"data-{secrets.token_hex(4)}"  # a volume is the cluster's, and outlives its claim
        request.addfinalizer(lambda: lab.kube("delete", "persistentvolume", name, "--wait=false"))
        volume = {
            "capacity": {"storage": "100Mi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder)},
        }
        lab.kube.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume})
        asked |= {"storageClassName": "", "volumeName": name}
    lab.kube.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": asked})


def _on_the_claim(lab: Lab, name: str, code: str) -> None:
    """Runs Python in a pod that mounts the claim."""
    template = lab.kube.get("workflowtemplate", lab.namespace, "predict")["spec"]
    image = template["templates"][0]["container"]["image"]
    container = {
        "name": "main",
        "image": image,
        "command": ["python", "-c", code],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "restartPolicy": "Never",
        "securityContext": {
            "runAsUser": 10001,
            "runAsNonRoot": True,
            "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    }
    lab.kube.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": lab.namespace, "name": name}, "spec": spec}
    )
    lab.kube("wait", "-n", lab.namespace, "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}", "--timeout=120s")
