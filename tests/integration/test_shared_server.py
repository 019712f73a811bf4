"""A pod with several models, by its own entry points: what can be served is, whatever happens to a neighbour."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.host.processes import free_port, identify, kill
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.kubernetes import fetch
from shiplift.runtime.serving.kubernetes.workloads import golden_of
from shiplift.runtime.serving.triton.client import TritonClient, check_package
from shiplift.runtime.serving.triton.command_line import Ports
from shiplift.runtime.serving.triton.environment import ServerEnvironment, default_root
from shiplift.runtime.store.artifacts import ArtifactStore
from tests.integration.conftest import until
from tests.packages import multiplying

pytestmark = pytest.mark.integration
ENVIRONMENT = ServerEnvironment(default_root())
_SERVE = """
import sys
from shiplift.runtime.serving.kubernetes import serve
from shiplift.runtime.serving.triton.command_line import Ports
http, grpc, metrics = map(int, sys.argv.pop().split(","))
serve.PORTS = Ports(http=http, grpc=grpc, metrics=metrics)
serve.main()
"""


@contextmanager
def shared_pod(work: Path, uri: str, packages: list[Package]) -> Iterator[Ports]:
    """What a shared server's pod runs, the init container and then the server, on free ports of this machine."""
    ports = Ports(http=free_port(), grpc=free_port(), metrics=free_port())
    named = [word for package in packages for word in ("--package", package.repository.sha256, package.model, uri)]
    subprocess.run([sys.executable, "-m", fetch.__name__, "--to", work / "models", *named], check=True, timeout=120)
    required = [word for package in packages for word in ("--model", package.model)]
    with (work / "log").open("wb") as log:
        child = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _SERVE,
                "--repository",
                work / "models",
                "--environment",
                ENVIRONMENT.root,
                *required,
                "--shared",
                f"{ports.http},{ports.grpc},{ports.metrics}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: child.poll() is not None or _answers(ports, "/v2/health/ready"), seconds=60)
        assert child.poll() is None, (work / "log").read_text()[-3000:]
        yield ports
    finally:
        kill(identify(child.pid))
        child.wait(timeout=20)


def _answers(ports: Ports, path: str) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{ports.http}{path}", trust_env=False, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def test_three_models_in_one_server_answer_right_and_nobody_can_change_them(tmp_path: Path) -> None:
    store = ArtifactStore((tmp_path / "store").as_uri())
    packages = [multiplying(store, tmp_path / "made", f"m{factor}", factor=factor) for factor in (2, 3, 4)]
    with shared_pod(tmp_path, store.uri, packages) as ports, TritonClient(f"127.0.0.1:{ports.grpc}") as client:
        for package in packages:
            assert _answers(ports, f"/v2/models/{package.model}/ready")
            check_package(client, package.model, package, golden_of(package, store.uri))
        with pytest.raises(ServerFailed):
            client.unload("m2")
        assert client.ready("m2")


def test_a_model_that_can_not_be_loaded_or_fetched_leaves_its_neighbours_ready(tmp_path: Path) -> None:
    store = ArtifactStore((tmp_path / "store").as_uri())
    right = multiplying(store, tmp_path / "made", "right", factor=2)
    broken = multiplying(store, tmp_path / "made", "broken", factor=2, broken=True)
    absent = right.model_copy(
        update={"model": "absent", "repository": right.repository.model_copy(update={"sha256": "0" * 64})}
    )
    with (
        shared_pod(tmp_path, store.uri, [absent, broken, right]) as ports,
        TritonClient(f"127.0.0.1:{ports.grpc}") as client,
    ):
        check_package(client, "right", right, golden_of(right, store.uri))
        assert not client.ready("broken")
        assert not client.ready("absent")
        with pytest.raises(ServerFailed):
            check_package(client, "broken", broken, golden_of(broken, store.uri))
