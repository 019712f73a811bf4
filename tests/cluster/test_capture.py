"""What clients send on a cluster is kept: listed, exported, released on, and deleted by key."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from tests.cluster.conftest import Kube, Lab, until
from tests.cluster.test_release import promoted
from tests.integration.conftest import ONE_FORM

MODEL = "kept"
SPEC = f"""{ONE_FORM}rollout: {{canary_percent: [], hold_s: 0}}
capture: {{share: 1, limit: 100MB, retention: 1d, key: customer}}
"""
ON_CAPTURED = SPEC.replace("load: {", "load: {requests: captured, ").replace("1d, key", "1d, hash: [customer], key")


def log(lab: Lab, spec: str) -> int:
    """Registers a regression over a customer's number and an amount; returns the version."""
    from mlflow.models import infer_signature
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    drawn = np.random.default_rng(0)
    table = pd.DataFrame({"customer": drawn.uniform(0, 100, 80), "amount": drawn.uniform(0, 90, 80)})
    model = make_pipeline(StandardScaler(), Ridge()).fit(table, drawn.normal(size=80))

    def log_model(**arguments: Any) -> Any:
        signature = infer_signature(table, model.predict(table))
        return lab.mlflow.sklearn.log_model(model, signature=signature, input_example=table[:6], **arguments)

    return lab.log(MODEL, log_model, spec=spec)


def captured(lab: Lab, *more: str) -> Any:
    done = lab.kube.shiplift("captured", MODEL, "--engine", "argo", "--namespace", lab.namespace, "--json", *more)
    return json.loads(done.stdout.splitlines()[-1])


def ask(lab: Lab, customers: Sequence[int]) -> None:
    """Asks the pods that serve, a row at a time, as clients in the cluster do."""
    revision = lab.kube.get("tritonservice", lab.serving, MODEL)["status"]["revision"]
    url = f"http://{lab.kube.service(lab.serving, revision)}:8000/v2/models/{MODEL}"
    with httpx.Client(trust_env=False, timeout=30) as client:
        tensors = client.get(url).raise_for_status().json()["inputs"]
        kinds = {each["name"]: each["datatype"] for each in tensors}
        for at, customer in enumerate(customers):
            row = {"customer": float(customer), "amount": float(at)}
            inputs = [
                {"name": name, "shape": [1, 1], "datatype": kinds[name], "data": [value]} for name, value in row.items()
            ]
            client.post(f"{url}/infer", json={"inputs": inputs}).raise_for_status()


def pods(lab: Lab) -> list[Any]:
    """The pods that serve, without those that end."""
    found = lab.kube.get("pod", lab.serving, selector=f"shiplift.dev/model={MODEL}")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def captures(pod: Any) -> bool:
    """Whether a pod is ready, and its requests are captured."""
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
    names = {each["name"] for each in pod["spec"]["initContainers"]}
    return conditions.get("Ready") == "True" and "capture" in names


def captured_pods(lab: Lab, version: int) -> bool:
    """Whether a version is served, and all its pods are captured."""
    found = [pod for pod in pods(lab) if pod["metadata"]["labels"]["shiplift.dev/version"] == str(version)]
    return bool(found) and all(map(captures, found))


def exported(lab: Lab, folder: Path, rows: int) -> Any:
    """The rows that are kept, as they are exported."""
    file = folder / "rows.parquet"
    assert captured(lab, "--export", str(file))["rows"] == rows
    return pq.read_table(file)


def rows_are(lab: Lab, count: int, *, seconds: float = 60) -> None:
    until(lambda: captured(lab)["rows"] == count, seconds=seconds)


def test_what_clients_send_is_kept_and_the_next_version_is_released_on_it(lab: Lab, tmp_path: Path) -> None:
    first = log(lab, SPEC)
    promoted(lab, MODEL, first)
    until(lambda: captured_pods(lab, first), seconds=120)
    shown = captured(lab)
    # Golden requests, the operator's every five seconds among them, and load tests are not clients'.
    assert (shown["on"], shown["share"], shown["rows"]) == (True, 1, 0)
    ask(lab, [7] * 5 + [8] * 25)
    rows_are(lab, 30)
    rows = exported(lab, tmp_path, 30)
    assert sorted(rows.column("input/amount").to_pylist()) == list(map(float, range(30)))
    assert len(set(rows.column("request").to_pylist())) == 30
    assert set(rows.column("version").to_pylist()) == {first}

    assert captured(lab, "--delete", "--key", "7")["deleted"] == 5
    ask(lab, [9] * 10)
    lab.kube("-n", lab.serving, "delete", "pod", "-l", f"shiplift.dev/model={MODEL}", "--wait=true")
    rows_are(lab, 35)  # a pod that ends sends what it has

    second = log(lab, ON_CAPTURED)
    promoted(lab, MODEL, second)
    until(lambda: captured_pods(lab, second), seconds=120)
    ask(lab, [11] * 5)
    rows_are(lab, 40)
    rows = exported(lab, tmp_path, 40).to_pylist()
    newest = {str(row["input/customer"]) for row in rows if row["version"] == second}
    assert [len(value) for value in newest] == [64]
    assert captured(lab, "--delete", "--key", "11")["deleted"] == 5


def test_a_pod_that_serves_may_add_and_never_read(lab: Lab, kube: Kube) -> None:
    name = until(lambda: [pod for pod in pods(lab) if captures(pod)], seconds=120)[0]["metadata"]["name"]

    def inside(container: str, *command: str) -> str:
        return kube("-n", lab.serving, "exec", name, "-c", container, "--", *command)

    assert "SHIPLIFT_CAPTURE" not in inside("triton", "env")
    told = inside("capture", "env")
    assert "SHIPLIFT_CAPTURE_TOKEN=" in told
    assert "SHIPLIFT_CAPTURE_READER" not in told
    assert "SHIPLIFT_CAPTURE_HASHES" not in told
    script = (
        "import os, httpx; token = {'X-Shiplift-Capture': os.environ['SHIPLIFT_CAPTURE_TOKEN']}; "
        f"print(httpx.get('http://capture.{lab.namespace}.svc:8009/captured/{MODEL}', headers=token).status_code)"
    )
    assert inside("capture", "python", "-c", script).strip() == "401"
    read_only = inside("capture", "sh", "-c", "touch /opt/x 2>&1 || true")
    assert "Read-only" in read_only
