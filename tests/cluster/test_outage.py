"""The whole cluster loses power and starts again: production serves as before, and no release is lost.

Every process of the cluster ends at once, those of the pods too, and is started again as it was. That needs a cluster
whose processes run on this machine and left their ids beside its kubeconfig. It runs alone, because every other test
would fail meanwhile.
"""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from shiplift.runtime.store.registry.terms import CHAMPION
from tests.cluster.conftest import Kube, Lab, until
from tests.cluster.figures import keep
from tests.cluster.test_release import SPEC, ended, promoted, rerun, tag, traffic

MODEL = "lasting"
_START_FIRST = ("containerd", "etcd", "kube-apiserver")  # what the others need
pytestmark = [pytest.mark.slow, pytest.mark.alone]


@dataclass(frozen=True)
class Component:
    """A process of the cluster, and how to start it again."""

    process: psutil.Process
    command: list[str]
    environment: dict[str, str]
    folder: str
    pid_file: Path

    def start(self) -> None:
        log = (self.pid_file.parents[1] / "log" / f"{self.pid_file.stem}.log").open("ab")
        again = subprocess.Popen(
            self.command,
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self.pid_file.write_text(f"{again.pid}\n")


def components(kube: Kube) -> list[Component]:
    """The processes of the cluster, in the order in which they start."""
    files = sorted((kube.kubeconfig.parents[1] / "run").glob("*.pid"))
    if not files or not kube.here or os.getuid():
        pytest.skip("the processes of this cluster can't be ended and started from here")
    processes = [psutil.Process(int(file.read_text())) for file in files]
    every = [
        Component(process, process.cmdline(), process.environ(), process.cwd(), file)
        for process, file in zip(processes, files, strict=True)
    ]
    order = {name: index for index, name in enumerate(_START_FIRST)}
    return sorted(every, key=lambda each: order.get(each.pid_file.stem, len(order)))


def lose_power(kube: Kube) -> list[Component]:
    """Ends every process of the cluster and of its pods at once; returns what started them."""
    every = components(kube)
    victims = [each.process for each in every]
    for process in psutil.process_iter(["name", "cmdline"]):
        if str(process.info["name"]).startswith("containerd-shim") and "k8s.io" in (process.info["cmdline"] or []):
            victims += [*process.children(recursive=True), process]
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGKILL)
    psutil.wait_procs(victims, timeout=30)
    return every


def answers(kube: Kube) -> bool:
    return kube.run("get", "--raw", "/readyz", check=False).stdout == "ok"


def is_ready(lab: Lab) -> Any:
    body = lab.kube.run("-n", lab.serving, "get", "tritonservice", MODEL, "-o", "json", check=False).stdout
    conditions = json.loads(body)["status"]["conditions"] if body else []
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def test_a_cluster_that_is_stopped_and_started_serves_what_it_served(lab: Lab) -> None:
    first = lab.log_classifier(MODEL, spec=SPEC)
    promoted(lab, MODEL, first)
    second = lab.log_classifier(MODEL, samples=1100, spec=SPEC)
    under_way = until(
        lambda: [each for each in lab.workflows(MODEL) if f"-{second}-" in each["metadata"]["name"]], seconds=90
    )[0]["metadata"]["name"]
    every = lose_power(lab.kube)
    assert not answers(lab.kube)
    began = time.monotonic()
    for component in every:
        component.start()
        if component.pid_file.stem == _START_FIRST[-1]:
            until(lambda: answers(lab.kube), seconds=120)
            keep("cluster stopped and started", api_answers_s=time.monotonic() - began)
    with traffic(lab, MODEL) as client:
        until(lambda: client.versions, seconds=240)
        keep("cluster stopped and started", champion_answers_s=time.monotonic() - began)
        until(lambda: is_ready(lab), seconds=120)
        keep("cluster stopped and started", service_ready_s=time.monotonic() - began)
    workflow = ended(lab, under_way, seconds=600)
    keep("cluster stopped and started", release_ended_s=time.monotonic() - began)
    assert workflow["status"]["phase"] == "Succeeded", tag(lab, MODEL, second, "reason")
    assert lab.registry.alias(MODEL, CHAMPION) == second
    name = json.loads(rerun(lab, f"{MODEL}/{second}"))["name"]  # the ledger, too, is as it was
    assert ended(lab, name)["status"]["phase"] == "Succeeded"
    with traffic(lab, MODEL) as client:
        until(lambda: client.sent > 50, seconds=60)
    assert (client.failures, client.versions) == ([], {str(second)})
