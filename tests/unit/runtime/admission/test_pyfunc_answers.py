from pathlib import Path
from typing import Any

import mlflow.sklearn
import numpy as np
import pytest
from mlflow.models import infer_signature
from sklearn.cluster import KMeans
from sklearn.linear_model import LinearRegression, LogisticRegression

from shiplift.runtime.admission.pyfunc_answers import Judged, judge
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model.contracts import read_model
from shiplift.runtime.model.conversion import loaders
from shiplift.runtime.proof.questions.question import Questions

ROWS = np.random.default_rng(5).normal(size=(60, 3))
CLASSES = (ROWS[:, 0] > 0).astype(np.int64)


def judged(folder: Path, model: Any, questions: Any = ROWS, **settings: Any) -> Judged:
    """What pyfunc answers of a model, logged plainly."""
    answer = getattr(model, settings.get("pyfunc_predict_fn", "predict"))(ROWS)
    mlflow.sklearn.save_model(
        model,
        folder,
        signature=infer_signature(ROWS, answer),
        input_example=ROWS[:4],
        pip_requirements=[],  # MLflow would load the model in another process to find them
        **settings,
    )
    logged = read_model(folder)
    specs = logged.signature.inputs
    original = loaders.load(folder, logged.flavor, specs, logged.signature.outputs, tabular=logged.tabular)
    asked = Questions(inputs={specs[0].name: questions}, origins=("range",) * len(questions))
    return judge(folder, original, specs, {"questions-0": asked})


def test_what_pyfunc_answers_is_among_the_outputs_of_the_loaded_model(tmp_path: Path) -> None:
    classifier = LogisticRegression().fit(ROWS, CLASSES)
    assert judged(tmp_path / "label", classifier).answered == "label"
    assert judged(tmp_path / "proba", classifier, pyfunc_predict_fn="predict_proba").answered == "probabilities"
    assert judged(tmp_path / "number", LinearRegression().fit(ROWS, ROWS[:, 1])).answered == "variable"
    assert judged(tmp_path / "cluster", KMeans(2, n_init=1).fit(ROWS)).answered == "variable"


def test_a_model_is_refused_that_answers_something_else_than_pyfunc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LinearRegression().fit(ROWS, ROWS[:, 1])
    answer = loaders.Sklearn.answer
    monkeypatch.setattr(loaders.Sklearn, "answer", lambda *asked: {"variable": answer(*asked)["variable"] + 1})
    with pytest.raises(ExportFailed, match=r"does not answer what mlflow\.pyfunc answers"):
        judged(tmp_path / "off", model)


def test_rows_that_both_refuse_say_nothing_and_a_model_that_cannot_be_asked_is_told(tmp_path: Path) -> None:
    classifier = LogisticRegression().fit(ROWS, CLASSES)
    impossible = np.full((2, 3), np.nan)
    left_out = judged(tmp_path / "nan", classifier, impossible).left_out
    assert len(left_out) == 1
    assert left_out[0].startswith("What mlflow.pyfunc answers was not asked: ValueError: Input X contains NaN")
    (tmp_path / "nan" / "MLmodel").write_text("flavors: {sklearn: {}}\n")
    assert judge(tmp_path / "nan", None, (), {}).left_out  # type: ignore[arg-type] # it isn't asked
