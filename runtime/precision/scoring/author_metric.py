"""The author's own metric: a Python file with `def score(labels, predictions) -> float`, run in a process of its own.

It is the author's code, so it runs only inside the sandbox, and its process inherits the sandbox's rules. The process
exists so that it can be killed: an endless loop, an exit or a crash is an error of the metric, not of the release.
"""

import importlib.util
import json
import math
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.base.files import read_regular
from shiplift.runtime.base.text import printable
from shiplift.runtime.host.processes import inherited, own_module, start_child
from shiplift.runtime.model.tensors import Arrays, dump_npz, load_npz
from shiplift.runtime.precision.scoring.bootstrap import RESAMPLES, resampled, rounded

LIMIT_S = 60.0  # for the score and its resamples together
_RESAMPLING_S = 20.0  # a slower metric gets no interval
_MOST_ROWS = 10_000
_MAX_ANSWER_BYTES, _MAX_LOG_BYTES = 1 << 16, 1 << 20
_Scores = tuple[float, tuple[float, ...]]
_ADVICE = "Correct the file, and log it again."


def scored(file: Path, outputs: Arrays, labels: NDArray[Any]) -> _Scores:
    """The score by the metric in a file, and the scores of resamples (none if the metric is too slow for them).

    The metric gets the labels as logged, and the output as an array, or several outputs as a dictionary of arrays.

    Raises:
        DataInvalid: the file has no such function; it raised, ended, took too long, or returned no finite number.
    """
    with TemporaryDirectory(prefix="metric-") as folder:
        answer = _run(file, outputs, labels, Path(folder))
    if "error" in answer:
        raise DataInvalid(f"metric {file.name} {printable(answer['error'], limit=500)}", do=_ADVICE)
    return float(answer["score"]), tuple(float(value) for value in answer["resamples"])


def _run(file: Path, outputs: Arrays, labels: NDArray[Any], folder: Path) -> dict[str, Any]:
    arrays = {f"output/{name}": array for name, array in outputs.items()} | {"labels": labels}
    (folder / "arrays.npz").write_bytes(dump_npz(arrays))
    return _answer(file, folder, _in_child(file, folder, len(labels)))


def _in_child(file: Path, folder: Path, samples: int) -> int:
    """Runs `main` in a process of its own; returns its exit code."""
    command = own_module("shiplift.runtime.precision.scoring.author_metric", file, folder)
    environment = {**inherited(), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    child = start_child(command, environment=environment, log=folder / "log", folder=folder, own_session=False)
    try:
        child.wait(LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise DataInvalid(
            f"metric {file.name} took over {LIMIT_S:g} s for {samples} samples", do="Make it faster, or log fewer."
        ) from error
    finally:
        child.kill()
        child.wait()
    return child.returncode


def _answer(file: Path, folder: Path, code: int) -> dict[str, Any]:
    """Reads the child's answer. The author's code may have written anything, or nothing."""
    try:
        answer = json.loads(read_regular(folder / "answer.json", _MAX_ANSWER_BYTES))
        if isinstance(answer.get("error"), str):
            return {"error": answer["error"]}
        resamples = [float(value) for value in answer["resamples"]]
        return {"score": float(answer["score"]), "resamples": resamples}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        how = "was killed: it took too much memory" if code == -9 else f"ended with exit code {code}"
        said = printable(_last_line(folder / "log"), limit=300)
        what = f"metric {file.name} {how} instead of a score{f': {said}' if said else ''}"
        raise DataInvalid(what, do=_ADVICE) from error


def _last_line(log: Path) -> str:
    try:
        lines = read_regular(log, _MAX_LOG_BYTES).decode(errors="replace").strip().splitlines()
    except (OSError, ValueError):
        return ""
    return lines[-1] if lines else ""


# --- in the child ---


def main(file: Path, folder: Path) -> None:
    """Scores the arrays in a folder, and writes the answer beside them."""
    arrays = load_npz(folder / "arrays.npz")
    labels = arrays.pop("labels")
    outputs = {name.removeprefix("output/"): array for name, array in arrays.items()}
    try:
        score, resamples = _scores(_function(file), file, outputs, labels)
        answer: dict[str, Any] = {"score": score, "resamples": resamples}
    except _Wrong as error:
        answer = {"error": str(error)}
    (folder / "answer.json").write_text(json.dumps(answer))


class _Wrong(Exception):
    """Says what is wrong with the author's metric."""


def _function(file: Path) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location("author_metric_file", file)
    if spec is None or spec.loader is None:
        raise _Wrong("is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _Wrong(_raised(error, file)) from error
    function: Callable[..., Any] | None = getattr(module, "score", None)
    if not callable(function):
        raise _Wrong("has no function `score(labels, predictions)`")
    return function


def _scores(function: Callable[..., Any], file: Path, outputs: Arrays, labels: NDArray[Any]) -> _Scores:
    names = list(outputs)

    def evaluate(labels: NDArray[Any], *arrays: NDArray[Any]) -> float:
        predictions = arrays[0] if len(arrays) == 1 else dict(zip(names, arrays, strict=True))
        return _number(function, file, labels, predictions)

    def evaluate_some(*rows: NDArray[Any]) -> float:
        try:
            return evaluate(*rows)
        except _Wrong:  # for example an area under a curve with only one class
            return math.nan

    rows = (labels, *outputs.values())
    started = time.monotonic()
    score = evaluate(*rows)
    if not math.isfinite(score):
        raise _Wrong(f"returned {score}, which is not a finite number")
    if (time.monotonic() - started) * RESAMPLES > _RESAMPLING_S or len(labels) < 2:
        return score, ()
    return score, rounded(resampled(evaluate_some, rows, score, _MOST_ROWS))


def _number(function: Callable[..., Any], file: Path, labels: Any, predictions: Any) -> float:
    try:
        score = function(labels, predictions)
    except Exception as error:
        raise _Wrong(_raised(error, file)) from error
    if isinstance(score, bool) or not isinstance(score, int | float | np.integer | np.floating):
        raise _Wrong(f"returned {type(score).__name__}, not a number")
    return float(score)


def _raised(error: BaseException, file: Path) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    where = f" in line {lines[-1]}" if lines else ""
    return f"raised {type(error).__name__}{where}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    np.seterr(all="ignore")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
