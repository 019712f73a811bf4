"""Python models on a cluster: their packages come from the site's index once, and then travel with the model.

The index is a folder of wheels that this machine serves to the pods, which reach no other.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.utils import parse_wheel_filename

from shiplift.pipelines.discovery import discover
from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.host.processes import free_port, start_child
from shiplift.runtime.serving.discovery import ServedModel
from tests.cluster.conftest import Lab, until
from tests.cluster.test_git_push import Host, own_address, serving_git
from tests.cluster.test_release import promoted
from tests.integration.test_python_models import ATTACKS, CODE, REQUIREMENTS, SPEC, expected, rows
from tests.unit.pipelines.triggers.test_local_push import service

pytestmark = pytest.mark.slow
MODEL, SERVICE = "scaled", "adder"


@pytest.fixture(scope="module")
def index(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an index with the wheels that the tests' models need."""
    address = own_address(lab)
    folder = tmp_path_factory.mktemp("index")
    wheels = folder / "wheels"
    mlflow = f"mlflow=={__import__('mlflow').__version__}"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--only-binary",
            ":all:",
            "--dest",
            str(wheels),
            mlflow,
            *REQUIREMENTS,
        ],
        check=True,
        timeout=600,
    )
    for wheel in wheels.iterdir():
        project = folder / "simple" / parse_wheel_filename(wheel.name)[0]
        project.mkdir(parents=True, exist_ok=True)
        wheel.rename(project / wheel.name)
    port = free_port()
    server = start_child(
        [sys.executable, "-m", "http.server", str(port), "--bind", address, "--directory", str(folder)],
        environment={"PATH": os.environ["PATH"]},
        log=folder / "index.log",
    )
    yield f"http://{address}:{port}/simple"
    server.kill()
    server.wait()


@pytest.fixture(scope="module")
def host(lab: Lab, index: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A git server whose pushes are released, on a site with an index."""
    with serving_git(lab, tmp_path_factory.mktemp("git"), policy={"package_index": index}) as host:
        yield host


def served(lab: Lab, model: str) -> ServedModel:
    return discover(model, engine="argo", namespace=lab.namespace)


@pytest.fixture(scope="module")
def version(lab: Lab, host: Host) -> int:
    """A promoted version of the model `scaled`."""
    return released(lab, host.folder.parent, MODEL, SPEC)


def released(lab: Lab, folder: Path, name: str, spec: str) -> int:
    """Registers the model under a name, and waits until it is promoted; returns the version."""
    from mlflow.models import infer_signature

    factor = folder / "factor.txt"
    factor.write_text("2.5")
    example = rows(6)
    with lab.mlflow.start_run():
        lab.mlflow.log_text(spec, "shiplift/shiplift.yaml")
        info = lab.mlflow.pyfunc.log_model(
            name="model",
            python_model=str(CODE),
            artifacts={"factor": str(factor)},
            input_example=example,
            signature=infer_signature(example, example),
            pip_requirements=REQUIREMENTS,
            registered_model_name=name,
        )
    version = int(info.registered_model_version)
    promoted(lab, name, version)
    return version


def test_it_answers_what_pyfunc_answers_and_the_operator_finds_that_right(lab: Lab, version: int) -> None:
    asked = rows(5)
    pyfunc = lab.mlflow.pyfunc.load_model(f"models:/{MODEL}/{version}").predict(asked)
    np.testing.assert_array_equal(served(lab, MODEL).infer({"input": asked})["output"], pyfunc)
    until(lambda: lab.condition(MODEL, "Verified")["status"] == "True", seconds=60)
    assert lab.condition(MODEL, "Ready")["status"] == "True"


@pytest.mark.parametrize("attack", ["connects", "forks", "writes a file", "looks at other models", "ends its process"])
def test_in_a_pod_a_request_on_which_the_code_misbehaves_fails_alone(lab: Lab, version: int, attack: str) -> None:
    code, told = ATTACKS[attack]
    bad, good = rows(1), rows(3)
    bad[0, 0] = 1000 + code
    with pytest.raises(ServerFailed, match=told):
        served(lab, MODEL).infer({"input": bad})

    def answered() -> Any:
        try:
            return served(lab, MODEL).infer({"input": good})
        except ServerFailed:
            return None

    np.testing.assert_array_equal(until(answered)["output"], expected(good))


def test_its_pods_need_no_index_to_start_again(lab: Lab, version: int) -> None:
    selector = "app.kubernetes.io/name=triton"
    pods = [pod for pod in lab.kube.get("pod", lab.serving, selector=selector) if MODEL in pod["metadata"]["name"]]
    assert pods
    for pod in pods:
        assert not any(each.get("envFrom") for each in pod["spec"]["containers"])
        lab.kube("-n", lab.serving, "delete", "pod", pod["metadata"]["name"], "--wait=true")
    gone = {pod["metadata"]["name"] for pod in pods}

    def again() -> bool:
        now = lab.kube.get("pod", lab.serving, selector=selector)
        ready = [
            pod["metadata"]["name"]
            for pod in now
            if MODEL in pod["metadata"]["name"]
            and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
        ]
        return bool(ready) and not gone & set(ready)

    until(again, seconds=120)
    good = rows(2)
    np.testing.assert_array_equal(served(lab, MODEL).infer({"input": good})["output"], expected(good))


def test_it_runs_in_an_image_like_nvidia_s_with_the_interpreter_it_brings(
    lab: Lab, host: Host, nvidia_image: str
) -> None:
    target = f"targets: [{{name: other-server, server: nvidia, image: {nvidia_image}}}]"
    released(lab, host.folder.parent, "elsewhere", f"{SPEC}\n{target}")
    good = rows(4)
    np.testing.assert_array_equal(served(lab, "elsewhere").infer({"input": good})["output"], expected(good))


def test_a_pushed_service_is_registered_once_and_released(lab: Lab, host: Host) -> None:
    files = service(SERVICE, **{"shiplift.yaml": SPEC})
    for path, text in files.items():
        (host.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (host.folder / path).write_text(text or "")
    before = host.commit()
    answer = host.announce("0" * 40, before)
    assert answer.status_code == 202, answer.text
    until(lambda: newest(lab, SERVICE) == 1, seconds=120)
    promoted(lab, SERVICE, 1)
    asked = {"x": np.full((1, 3), 1, np.float32), "unit": np.array([["cm"]], object)}
    assert served(lab, SERVICE).infer(asked)["total"].tolist() == [[18.0]]
    (host.folder / "note.txt").write_text("nothing of the service\n")
    after = host.commit()
    pushed = host.announce(before, after)
    assert pushed.status_code == 202, pushed.text
    name = pushed.text.split(": ")[1].strip()
    until(
        lambda: lab.kube.get("workflow", lab.namespace, name).get("status", {}).get("phase") == "Succeeded", seconds=120
    )
    assert newest(lab, SERVICE) == 1


def newest(lab: Lab, model: str) -> int:
    versions = lab.mlflow.MlflowClient().search_model_versions(f"name='{model}'")
    return max((int(each.version) for each in versions), default=0)
