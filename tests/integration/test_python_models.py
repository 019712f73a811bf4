"""Python models from registration to production: equal to `mlflow.pyfunc`, and contained whatever their code does."""

from pathlib import Path
from typing import Any

import numpy as np
from mlflow.models import infer_signature

from tests.integration.conftest import FAST, Lab

SPEC = f"{FAST}\nadmission: {{python: sandbox}}\nserving: {{request_timeout_s: 2}}"
REQUIREMENTS = ["numpy==2.4.6"]
CODE = Path(__file__).with_name("python_model.py")


def log_python(lab: Lab, name: str, model: Any, example: Any, *, spec: str = SPEC, **options: Any) -> int:
    """Logs and registers a Python model with its requirements; returns the version."""
    with lab.mlflow.start_run():
        lab.mlflow.log_text(spec, "shiplift/shiplift.yaml")
        info = lab.mlflow.pyfunc.log_model(
            name="model", python_model=model, input_example=example, registered_model_name=name,
            pip_requirements=REQUIREMENTS, **options,
        )  # fmt: skip
    return int(info.registered_model_version)


def rows(count: int) -> Any:
    return np.random.default_rng(count).normal(size=(count, 4)).astype(np.float32)


def test_a_python_model_is_served_and_answers_what_pyfunc_answers(lab: Lab, tmp_path: Path) -> None:
    factor = tmp_path / "factor.txt"
    factor.write_text("2.5")
    example = rows(6)
    version = log_python(
        lab, "scaled", str(CODE), example, artifacts={"factor": str(factor)},
        signature=infer_signature(example, example),
    )  # fmt: skip
    report = lab.wait("scaled", version)
    assert report.outcome == "promoted", report.reason
    asked = rows(5)
    expected = lab.mlflow.pyfunc.load_model(f"models:/scaled/{version}").predict(asked)
    answer = lab.ask("scaled", {"input": asked})
    np.testing.assert_array_equal(np.array(answer["outputs"]["output"], np.float32), expected)
