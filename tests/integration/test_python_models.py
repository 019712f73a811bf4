"""Python models from registration to production: equal to `mlflow.pyfunc`, and contained whatever their code does."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow.models import infer_signature

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.serving.discovery import ServedModel
from tests.integration.conftest import FAST, Lab

SPEC = f"{FAST}\nadmission: {{python: sandbox}}\nserving: {{request_timeout_s: 2}}\nexport: {{memory_mb: 1024}}"
REQUIREMENTS = ["numpy==2.4.6"]
CODE = Path(__file__).with_name("python_model.py")
# What the first value of a row, less 1000, makes the model do; and what its client is told.
ATTACKS = {
    "raises": (1, "ValueError: no answer to that row"),
    "sleeps": (2, "was stopped after 2 s, its limit"),
    "forks": (3, "PermissionError"),
    "starts a program": (4, "PermissionError"),
    "connects": (5, "PermissionError"),
    "asks for too much memory": (14, "MemoryError"),
    "takes ever more memory": (6, "MemoryError|used .* MiB, the limit is 1024 MiB|was stopped"),
    "ends its process": (7, "the model's process ended: exit code 7"),
    "writes a file": (8, "PermissionError"),
    "kills others": (9, "PermissionError"),
    "looks at other models": (10, "PermissionError"),
    "forges an answer": (11, "is no message|was stopped"),
    "reads another process": (12, "PermissionError|FileNotFoundError"),
    "listens": (13, "PermissionError"),
}


def log_python(lab: Lab, name: str, model: Any, example: Any, *, spec: str = SPEC, **options: Any) -> int:
    """Logs and registers a Python model with its requirements; returns the version."""
    with lab.mlflow.start_run():
        lab.mlflow.log_text(spec, "shiplift/shiplift.yaml")
        info = lab.mlflow.pyfunc.log_model(
            name="model", python_model=model, input_example=example, registered_model_name=name,
            **{"pip_requirements": REQUIREMENTS} | options,
        )  # fmt: skip
    return int(info.registered_model_version)


def rows(count: int) -> Any:
    return np.random.default_rng(count).normal(size=(count, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def version(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> int:
    """A promoted version of the model `scaled`."""
    factor = tmp_path_factory.mktemp("artifacts") / "factor.txt"
    factor.write_text("2.5")
    example = rows(6)
    version = log_python(
        lab, "scaled", str(CODE), example, artifacts={"factor": str(factor)},
        signature=infer_signature(example, example),
    )  # fmt: skip
    report = lab.wait("scaled", version, seconds=300)
    assert report.outcome == "promoted", report.reason
    return version


def expected(asked: Any) -> Any:
    return asked * np.float32(2.5) + asked.sum(axis=1, keepdims=True)


def served(lab: Lab) -> ServedModel:
    return lab.engine.discover("scaled")


def test_a_python_model_is_served_and_answers_what_pyfunc_answers(lab: Lab, version: int) -> None:
    asked = rows(5)
    pyfunc = lab.mlflow.pyfunc.load_model(f"models:/scaled/{version}").predict(asked)
    np.testing.assert_array_equal(served(lab).infer({"input": asked})["output"], pyfunc)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_request_on_which_the_code_misbehaves_fails_alone(lab: Lab, version: int, attack: str) -> None:
    code, told = ATTACKS[attack]
    model, server = served(lab), lab.running.processes["triton"]
    bad, good = rows(1), rows(3)
    bad[0, 0] = 1000 + code
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(model.infer, {"input": bad if at == 2 else good}) for at in range(6)]
        with pytest.raises(ServerFailed, match=told):
            answers[2].result()
    for answer in (*answers[:2], *answers[3:]):
        if (error := answer.exception()) is not None:
            assert "was stopped after 2 s" in str(error)  # it was in the batch that took too long
        else:
            np.testing.assert_array_equal(answer.result()["output"], expected(good))
    np.testing.assert_array_equal(model.infer({"input": good})["output"], expected(good))
    assert lab.running.runs("triton")
    assert lab.running.processes["triton"] == server
