"""A metric by the model's author, in its own process: its scores, and how each kind of failure is reported."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.precision.scoring import author_metric

RMSE = """
import numpy as np
def score(labels, predictions):
    return np.sqrt(np.mean((labels - predictions[:, 0]) ** 2))
"""
LABELS = np.arange(50, dtype=np.float64)
OUTPUTS: dict[str, Any] = {"out": (LABELS + np.where(LABELS % 2 == 0, 1, -1))[:, None]}


def write(folder: Path, code: str) -> Path:
    file = folder / "score.py"
    file.write_text(code)
    return file


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's half runs in this process: nothing of it ends or kills it."""

    def main(file: Path, folder: Path, _: int) -> int:
        author_metric.main(file, folder)
        return 0

    monkeypatch.setattr(author_metric, "_in_child", main)


def test_its_score_and_resamples_are_those_of_the_function(tmp_path: Path) -> None:
    score, resamples = author_metric.scored(write(tmp_path, RMSE), OUTPUTS, LABELS)
    assert score == 1
    assert resamples == (1.0,) * 200
    weighted = "def score(labels, predictions):\n    return float(((predictions[:, 0] - labels) > 0).mean())"
    score, resamples = author_metric.scored(write(tmp_path, weighted), OUTPUTS, LABELS)
    assert score == 0.5
    assert np.std(resamples) == pytest.approx(math.sqrt(0.25 / 50), rel=0.2)


@pytest.mark.usefixtures("here")
def test_several_outputs_are_a_dictionary_and_texts_stay_texts(tmp_path: Path) -> None:
    code = "def score(labels, predictions):\n    return (predictions['b'] == labels).mean() + predictions['a'].max()"
    outputs: dict[str, Any] = {"a": np.array([1, 2]), "b": np.array(["x", "y"], dtype=object)}
    assert author_metric.scored(write(tmp_path, code), outputs, np.array(["x", "z"]))[0] == 2.5


@pytest.mark.usefixtures("here")
def test_a_resample_without_a_score_is_left_out(tmp_path: Path) -> None:
    code = """
import math
def score(labels, predictions):
    if len(labels) != len(set(labels.tolist())) and min(labels) > 0:
        raise ValueError("there is no 0")
    return 1.0 if len(set(labels.tolist())) > 30 else math.nan
"""
    score, resamples = author_metric.scored(write(tmp_path, code), OUTPUTS, LABELS)
    assert score == 1
    assert any(math.isnan(value) for value in resamples)
    assert {1.0} == {value for value in resamples if not math.isnan(value)}


MISTAKES = (
    ("score = 3", "has no function `score(labels, predictions)`"),
    ("def score(labels, predictions):\n    return labels[99]", "raised IndexError in line 2"),
    ("def score(labels, predictions):\n    return True", "returned bool, not a number"),
    ("def score(labels, predictions):\n    return float('nan')", "returned nan, which is not a finite number"),
    ("def score(:", "raised SyntaxError"),
    ("import no_such_module", "raised ModuleNotFoundError in line 1"),
    ("def score(labels):\n    return 1", "raised TypeError"),
    ("def score(labels, predictions):\n    return 'good'", "returned str, not a number"),
    ("def score(labels, predictions):\n    return labels", "returned ndarray, not a number"),
    ("def score(labels, predictions):\n    return float('inf')", "returned inf, which is not a finite number"),
)


@pytest.mark.parametrize(("code", "what"), MISTAKES)
@pytest.mark.usefixtures("here")
def test_what_is_no_score_is_an_error_that_says_what_it_was(tmp_path: Path, code: str, what: str) -> None:
    _require_error(tmp_path, code, what)


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("def score(labels, predictions):\n    return labels[99]", "raised IndexError in line 2"),
        ("import os\ndef score(labels, predictions):\n    os._exit(3)", "ended with exit code 3 instead of a score"),
        ("import os\ndef score(labels, predictions):\n    os.kill(os.getpid(), 9)", "was killed"),
    ],
)
def test_so_is_an_end_of_its_process(tmp_path: Path, code: str, what: str) -> None:
    _require_error(tmp_path, code, what)


def _require_error(tmp_path: Path, code: str, what: str) -> None:
    with pytest.raises(DataInvalid) as error:
        author_metric.scored(write(tmp_path, code), OUTPUTS, LABELS)
    assert f"metric score.py {what}" in error.value.what
    assert error.value.do


def test_an_answer_that_its_author_forged_is_no_number_either(tmp_path: Path) -> None:
    forged = """
import os, pathlib
def score(labels, predictions):
    pathlib.Path("answer.json").write_text('{"score": [1], "resamples": 2}')
    os._exit(0)
"""
    with pytest.raises(DataInvalid, match="ended with exit code 0 instead of a score"):
        author_metric.scored(write(tmp_path, forged), OUTPUTS, LABELS)


def test_a_metric_that_never_ends_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(author_metric, "LIMIT_S", 0.5)
    with pytest.raises(DataInvalid, match=r"metric score\.py took over 0.5 s for 50 samples"):
        author_metric.scored(write(tmp_path, "def score(labels, predictions):\n    while True: pass"), OUTPUTS, LABELS)


@pytest.mark.usefixtures("here")
def test_a_slow_metric_has_a_score_and_no_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(author_metric, "_RESAMPLING_S", 0.0)
    code = "def score(labels, predictions):\n    return 1.0"
    assert author_metric.scored(write(tmp_path, code), OUTPUTS, LABELS) == (1.0, ())
