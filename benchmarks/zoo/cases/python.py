"""Models that are their author's Python: accepted if the spec says so, and refused otherwise."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.case import Case, Logged

_TAKEN = "admission: {python: sandbox}\nexport: {memory_mb: 1024}"
_SUMS = """\
import mlflow


class Sums(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return model_input * 2.5 + model_input.sum(axis=1, keepdims=True)


mlflow.models.set_model(Sums())
"""
_BILLS = """\
import mlflow
import pandas as pd


class Bills(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        total = model_input["amount"] * model_input["count"]
        return pd.DataFrame({"total": total, "text": model_input["name"] + " owes " + total.round().astype(str)})


mlflow.models.set_model(Bills())
"""


def _logged(code: str, question: Any, inputs: dict[str, Any], folder: Path) -> Logged:
    """A Python model in a file of its own, with the packages that it imports."""
    import mlflow
    import pandas as pd

    file = folder / "model.py"
    file.write_text(code)
    requirements = [f"numpy=={np.__version__}"]
    requirements += [f"pandas=={pd.__version__}"] if "pandas" in code else []
    return Logged(
        log=lambda **options: mlflow.pyfunc.log_model(
            python_model=str(file), input_example=question, pip_requirements=requirements, **options
        ),
        question=question,
        inputs=inputs,
    )


def _sums(folder: Path) -> Logged:
    rows = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    return _logged(_SUMS, rows, {"input": rows}, folder)


def _bills(folder: Path) -> Logged:
    import pandas as pd

    frame = pd.DataFrame({"name": ["Ada", "Bob", "Eve"], "amount": [1.5, 2.0, 7.25], "count": [1, 2, 3]})
    return _logged(_BILLS, frame, {name: frame[name].to_numpy().reshape(-1, 1) for name in frame}, folder)


PYTHON = (
    Case(name="pyfunc-tensor", flavor="pyfunc", about="code on a tensor", build=_sums, spec=_TAKEN),
    Case(name="pyfunc-columns", flavor="pyfunc", about="code on named columns", build=_bills, spec=_TAKEN),
    Case(
        name="pyfunc-without-consent",
        flavor="pyfunc",
        about="code, and a spec without `python: sandbox`",
        build=_sums,
        right="refused",
        reason="the spec says `python: refuse`",
        why="code that the spec does not accept",
    ),
)
