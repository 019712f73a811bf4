"""A push to a repository of specs: from the signed webhook to the release, with the commit in the registry."""

import base64
import hashlib
import hmac
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from shiplift.pipelines.engines.argo.layout import GIT_COMMITS
from shiplift.pipelines.engines.argo.releases import ArgoReleases
from shiplift.pipelines.triggers.pushes import NO_COMMIT
from shiplift.runtime.base.names import repository_slug
from shiplift.runtime.host.processes import free_port, start_child
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from tests.cluster.conftest import Lab, of_this_machine, small_values, until
from tests.cluster.test_release import RELEASE_S
from tests.integration.conftest import FAST

NAME = "team/models"


@dataclass
class Host:
    """A git server on this machine that pods can reach, and the webhooks of a git host."""

    lab: Lab
    folder: Path
    port: int

    def commit(self, **specs: str) -> str:
        for name, text in specs.items():
            (self.folder / "releases").mkdir(exist_ok=True)
            (self.folder / "releases" / f"{name}.yaml").write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", "change")
        return self.git("rev-parse", "HEAD")

    def git(self, *words: str) -> str:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        done = subprocess.run(["git", *identity, *words], cwd=self.folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def announce(self, before: str, after: str) -> httpx.Response:
        body = json.dumps(
            {"ref": "refs/heads/main", "before": before, "after": after, "repository": {"full_name": NAME}}
        ).encode()
        secret = self.lab.kube.get("secret", self.lab.namespace, "shiplift-webhooks")["data"]["github"]
        mac = hmac.new(base64.b64decode(secret), body, hashlib.sha256).hexdigest()
        return httpx.post(
            f"http://{self.lab.kube.service(self.lab.namespace, 'receiver')}/webhooks/github",
            content=body,
            headers={"X-Hub-Signature-256": f"sha256={mac}", "X-GitHub-Event": "push"},
            trust_env=False,
            timeout=30,
        )


@contextmanager
def serving_git(lab: Lab, folder: Path, **settings: Any) -> Iterator[Host]:
    """A git server in `folder`, whose pushes an installation with these values besides the usual ones releases."""
    address = own_address(lab)
    host = Host(lab=lab, folder=folder / "models", port=free_port())
    host.folder.mkdir()
    host.git("init", "--quiet", "--initial-branch=main")
    daemon = start_child(
        [
            "git",
            "-c",
            "safe.directory=*",
            "daemon",
            "--export-all",
            "--reuseaddr",
            f"--port={host.port}",
            f"--base-path={folder}",
            str(folder),
        ],
        environment={"PATH": os.environ["PATH"], "HOME": str(folder)},
        log=folder / "daemon.log",
    )
    values = small_values(lab.namespace, Path(lab.values.mlflow.storage.path), gateway=True)
    values["repositories"] = [{"name": NAME, "host": "github", "url": f"git://{address}:{host.port}/models"}]
    for name, section in settings.items():
        values[name] = values.get(name, {}) | section
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    lab.kube.shiplift("install", "--values", str(file))
    until(lambda: not ending(lab))  # receivers of before, which don't know the repository, may still answer
    yield host
    daemon.kill()
    daemon.wait()


def ending(lab: Lab) -> list[Any]:
    """The receivers' pods that are being deleted."""
    pods = lab.kube.get("pod", lab.namespace, selector="app.kubernetes.io/name=receiver")
    return [pod for pod in pods if "deletionTimestamp" in pod["metadata"]]


def own_address(lab: Lab) -> str:
    """This machine's address for pods; skips the test where they don't reach it."""
    addresses = lab.kube.get("node", "default")[0]["status"]["addresses"]
    address = next(str(entry["address"]) for entry in addresses if entry["type"] == "InternalIP")
    if not (lab.kube.here and of_this_machine(address)) or shutil.which("git") is None:
        pytest.skip("pods of another machine don't reach servers here")
    return address


@pytest.fixture
def host(lab: Lab, tmp_path: Path) -> Iterator[Host]:
    with serving_git(lab, tmp_path, reconciler={"git_every_s": 5, "git_grace_s": 20}) as host:
        yield host


def registered(lab: Lab, releases: ArgoReleases, model: str) -> int:
    """Registers a version and cancels the release which that starts: it is not part of the test."""
    version = lab.log_classifier(model, spec=FAST)
    (first,) = until(lambda: releases.active(model))
    cancelled(releases, model, first.name)
    return version


def cancelled(releases: ArgoReleases, model: str, name: str) -> None:
    releases.cancel(name)
    until(lambda: not releases.active(model), seconds=120)


@pytest.mark.slow
def test_a_push_releases_the_model_whose_spec_changed_with_its_commit(lab: Lab, host: Host) -> None:
    releases = ArgoReleases(KubernetesClient(lab.namespace), lambda *_: {})
    version = registered(lab, releases, "pushed")
    before = host.commit(other="model: nobody\n")
    after = host.commit(pushed=f"model: pushed\n{FAST}")
    answers = [host.announce(before, after) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202] * 3
    assert [answer.text.split(":")[0] for answer in answers] == ["accepted", "already there", "already there"]
    push = answers[0].text.split(": ")[1].strip()
    until(lambda: releases.get(push).succeeded, seconds=RELEASE_S)

    (run,) = releases.active("pushed")
    assert run.request is not None
    assert run.trigger is not None
    assert (run.request.version, run.trigger.kind, run.trigger.commit) == (version, "git", after)
    until(lambda: not releases.active("pushed"), seconds=420)
    tags = lab.registry.version("pushed", version).tags
    assert tags["shiplift.commit"] == after
    assert tags["shiplift.outcome"] == "promoted", tags["shiplift.reason"]


@pytest.mark.slow
def test_a_push_whose_webhook_was_lost_is_found_by_the_reconciler(lab: Lab, host: Host) -> None:
    releases = ArgoReleases(KubernetesClient(lab.namespace), lambda *_: {})
    version = registered(lab, releases, "swept")
    before = host.commit(other="model: nobody\n")
    until(lambda: handled(lab) == before, seconds=120)  # seen for the first time: its history is nobody's push
    scale_receiver(lab, 0)
    try:
        after = host.commit(swept=f"model: swept\n{FAST}")
        with pytest.raises(httpx.TransportError):
            host.announce(before, after)
        (run,) = until(lambda: releases.active("swept"), seconds=RELEASE_S)
        assert run.request is not None
        assert run.trigger is not None
        assert (run.request.version, run.trigger.kind, run.trigger.commit) == (version, "git", after)
        until(lambda: handled(lab) == after, seconds=120)
    finally:
        scale_receiver(lab, lab.values.receiver.replicas)
    late = until(lambda: answer(host, before, after), seconds=120)
    assert (late.status_code, late.text.split(":")[0]) == (202, "already there")
    assert len(pushes_to(lab, after)) == 1
    cancelled(releases, "swept", run.name)


def handled(lab: Lab) -> str:
    """The last handled commit that the reconciler recorded."""
    data = lab.kube.get("configmap", lab.namespace, GIT_COMMITS).get("data") or {}
    return str(json.loads(data.get(repository_slug(NAME), '{"commit": ""}'))["commit"])


def scale_receiver(lab: Lab, replicas: int) -> None:
    lab.kube("-n", lab.namespace, "scale", "deployment/receiver", f"--replicas={replicas}")

    def done() -> bool:
        pods = lab.kube.get("pod", lab.namespace, selector="app.kubernetes.io/name=receiver")
        ready = [pod for pod in pods for status in pod["status"].get("containerStatuses", []) if status["ready"]]
        return (len(pods), len(ready)) == (replicas, replicas)

    until(done, seconds=120)


def answer(host: Host, before: str, after: str) -> httpx.Response | None:
    """The receiver's answer to a delivery; None while its Service has no endpoint yet."""
    try:
        return host.announce(before, after)
    except httpx.TransportError:
        return None


def pushes_to(lab: Lab, commit: str) -> list[str]:
    """The Workflows that process a push of this commit."""
    names = [workflow["metadata"]["name"] for workflow in lab.workflows()]
    return [name for name in names if name.startswith(f"git-{repository_slug(NAME)}-{commit[:12]}")]


def test_a_push_of_a_spec_for_nobody_says_so_at_its_node(lab: Lab, host: Host) -> None:
    after = host.commit(other="model: nobody\n")
    answer = host.announce(NO_COMMIT, after)
    assert answer.status_code == 202, answer.text
    push = answer.text.split(": ")[1].strip()
    releases = ArgoReleases(KubernetesClient(lab.namespace), lambda *_: {})
    until(lambda: not releases.get(push).active, seconds=RELEASE_S)
    assert not releases.get(push).succeeded
    workflow = lab.kube.get("workflow", lab.namespace, push)
    messages = " ".join(node.get("message", "") for node in workflow["status"]["nodes"].values())
    assert "the registry has no versions of model 'nobody'" in messages
