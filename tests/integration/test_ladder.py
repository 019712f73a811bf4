"""A model without a right graph is served by the library that wrote it, or refused with the line to write."""

from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mlflow.models import infer_signature
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.kernel_ridge import KernelRidge
from sklearn.naive_bayes import GaussianNB

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.records.kinds.exported import Exported, ExportedPython
from shiplift.runtime.records.release import ReleaseReport
from tests.integration.conftest import FAST, Lab
from tests.integration.test_python_models import log_python
from tests.integration.test_python_models import rows as some_rows

RNG = np.random.default_rng(3)
TABLE = pd.DataFrame(RNG.normal(size=(60, 3)), columns=["age", "income", "debt"])
PYTHON = f"{FAST}\nadmission: {{python: sandbox}}"


def log(lab: Lab, name: str, flavor: str, model: Any, x: Any, *, spec: str = FAST, **more: Any) -> int:
    """Logs and registers a model as its library documents it; returns the version."""
    with lab.mlflow.start_run():
        lab.mlflow.log_text(spec, "shiplift/shiplift.yaml")
        info = getattr(lab.mlflow, flavor).log_model(
            model,
            name="model",
            registered_model_name=name,
            signature=infer_signature(x, model.predict(x)),
            input_example=x[:6],
            **more,
        )
    return int(info.registered_model_version)


def promoted(lab: Lab, name: str, version: int, fresh: Any) -> Exported:
    """What was exported of a version that was promoted, and answers in production what pyfunc answers."""
    report = lab.wait(name, version, seconds=400)
    assert report.outcome == "promoted", report.reason
    story = lab.engine.story(report)
    assert story.exported
    right = np.asarray(lab.mlflow.pyfunc.load_model(f"models:/{name}/{version}").predict(fresh))
    served = lab.engine.discover(name)
    for rows in (slice(0, 8), slice(8, 16), slice(16, 17)):  # FAST allows batches of 8
        answer = next(iter(served.infer(asked(fresh[rows])).values()))
        np.testing.assert_allclose(answer.reshape(right[rows].shape), right[rows], rtol=1e-5)
    return story.exported


def asked(x: Any) -> dict[str, NDArray[Any]]:
    if isinstance(x, pd.DataFrame):
        return {str(name): x[name].to_numpy().reshape(-1, 1) for name in x.columns}
    return {"input": np.asarray(x)}


def refused(lab: Lab, name: str, version: int) -> ReleaseReport:
    report = lab.wait(name, version, seconds=900)
    assert report.exit_code == ExportFailed.exit_code, report.reason
    return report


@pytest.mark.slow
def test_a_model_without_a_converter_is_served_by_its_own_library_without_a_setting(lab: Lab) -> None:
    model = KernelRidge(kernel="rbf").fit(TABLE, TABLE.sum(axis=1))
    version = log(lab, "kernel-of-data", "sklearn", model, TABLE)
    exported = promoted(lab, "kernel-of-data", version, TABLE[20:45])
    assert isinstance(exported, ExportedPython)
    assert [form.name for form in exported.forms if not form.dropped] == ["Python"]
    assert exported.proof
    assert {each.name for each in exported.proof.settings} >= {"alone", "in batches", "at every place of a batch"}
    report = lab.engine.story(lab.wait("kernel-of-data", version))
    assert report.how_exported.startswith("Served by: Python, because FP32 graph was dropped: ")
    assert "KernelRidge" in report.how_exported


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["histogram boosting", "zero as missing", "naive Bayes"])
def test_a_model_whose_graph_differs_ends_in_a_form_that_does_not(lab: Lab, kind: str) -> None:
    images, labels = load_digits(return_X_y=True)
    if kind == "zero as missing":
        import lightgbm

        x = RNG.integers(-2, 3, size=(400, 4)).astype(np.float64)
        booster = lightgbm.train(
            {"objective": "regression", "zero_as_missing": True, "verbosity": -1, "min_data_in_leaf": 5},
            lightgbm.Dataset(x, x.sum(axis=1) + (x == 0).sum(axis=1)),
            num_boost_round=20,
        )
        version = log(lab, "zeros", "lightgbm", booster, x)
        promoted(lab, "zeros", version, x[100:130])
        return
    name = kind.replace(" ", "-")
    model = GaussianNB() if kind == "naive Bayes" else HistGradientBoostingClassifier(max_iter=10, random_state=0)
    model.fit(images, labels)
    skops = import_module("skops.io")  # which has no types
    types = skops.get_untrusted_types(data=skops.dumps(model))
    version = log(lab, name, "sklearn", model, images, skops_trusted_types=types)
    promoted(lab, name, version, images[300:340])


@pytest.mark.slow
def test_a_pickle_is_refused_with_the_line_that_lets_its_library_serve_it(lab: Lab) -> None:
    x = some_rows(40)
    model = KernelRidge(kernel="rbf").fit(x, x.sum(axis=1))
    spec = f"{FAST}\nadmission: {{pickle: sandbox}}"
    version = log(lab, "kernel-pickled", "sklearn", model, x, spec=spec, serialization_format="pickle")
    report = refused(lab, "kernel-pickled", version)
    assert "KernelRidge" in report.reason
    assert "it would run the author's code in production (the pickle model.pkl)" in report.reason
    assert "Write `admission: {pickle: sandbox, python: sandbox}` in the spec" in report.reason
    both = f"{FAST}\nadmission: {{pickle: sandbox, python: sandbox}}"
    version = log(lab, "kernel-pickled", "sklearn", model, x, spec=both, serialization_format="pickle")
    promoted(lab, "kernel-pickled", version, x[5:25])


@pytest.mark.slow
def test_a_python_model_that_samples_is_refused_with_what_to_set(lab: Lab) -> None:
    class Sampled(lab.mlflow.pyfunc.PythonModel):  # type: ignore[name-defined,misc]
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            return model_input + np.random.default_rng().normal(size=model_input.shape).astype(np.float32)

    version = log_python(lab, "sampled", Sampled(), some_rows(6), spec=PYTHON)
    reason = refused(lab, "sampled", version).reason
    assert "the model is not repeatable: to row 0 of the example rows" in reason
    assert "Seed what it samples" in reason
