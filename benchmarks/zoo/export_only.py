"""`--export-only`: each case exported in a process of its own, without a server, and its graph asked fresh rows."""

import importlib
import json
import multiprocessing
import re
import subprocess
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.zoo import protocol
from benchmarks.zoo.answers import named
from benchmarks.zoo.case import Case, Logged
from benchmarks.zoo.cases import estimators
from benchmarks.zoo.cases.estimators import Impossible
from benchmarks.zoo.exporting import Export, export
from benchmarks.zoo.results import Result
from shiplift.runtime.admission.conversion import PRELOAD_FOR
from shiplift.runtime.admission.scan import scan_files
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.model.tensors import Arrays, as_input
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare
from shiplift.runtime.records.tensor import TensorSpec

_SECONDS = 240.0
_IN_A_CASE = re.compile(r"\S*/zoo-case-[^/]+/(work/)?")  # its folder, which says nothing
_IMPORTED = (
    *(
        "mlflow.pyfunc",
        "mlflow.sklearn",
        "mlflow.catboost",
        "mlflow.lightgbm",
        "mlflow.xgboost",
        "modelaudit.core",
        "onnxruntime",
        "skl2onnx",
        "skops.io",
        "treelite",
    ),
    *("shiplift.runtime.admission.conversion", "shiplift.runtime.admission.verification"),
    *("sklearn.ensemble", "sklearn.impute", "sklearn.pipeline", "sklearn.utils._test_common.instance_generator"),
)


def results(cases: list[Case]) -> Iterator[Result]:
    """How each case ends, without those that scikit-learn itself can't fit; everything is imported once, here."""
    _warm(torch=any(case.flavor == "pytorch" for case in cases))
    commit = _commit()
    for case in cases:
        started = time.monotonic()
        if result := _apart(case):
            seconds = round(time.monotonic() - started, 1)
            yield result.model_copy(update={"input": case.input, "seconds": seconds, "commit": commit})


def _commit() -> str:
    """The commit of this checkout, short; with a plus if files differ from it."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip()


def _warm(*, torch: bool) -> None:
    """Imports what cases need, and scans a small model: the scanner imports most of itself when it meets a file."""
    for name in (*_IMPORTED, *(PRELOAD_FOR["pytorch"] if torch else ())):
        importlib.import_module(name)
    from sklearn.dummy import DummyClassifier

    rows = np.zeros((2, 2))
    with TemporaryDirectory(prefix="zoo-warm-") as folder:
        model = estimators.logged(DummyClassifier().fit(rows, [0, 1]), rows, rows)
        assert model.save
        model.save(path=f"{folder}/model")
        (examples := Path(folder) / "examples").mkdir()
        scan_files(Path(folder) / "model", examples, pickle="sandbox", unpacked_mb=64)


def _apart(case: Case) -> Result | None:
    """A case in a process of its own, which is ended when its time is up; None if it is impossible."""
    processes = multiprocessing.get_context("fork")
    ours, theirs = processes.Pipe(duplex=False)
    process = processes.Process(target=_send, args=(case, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(_SECONDS):
            return _ended(case, "failed", f"it did not end in {_SECONDS:g} s")
        told = ours.recv()
        return Result.model_validate_json(told) if told else None
    except EOFError:
        return _ended(case, "failed", "its process crashed")
    finally:
        process.kill()
        process.join()


def _send(case: Case, to: Connection) -> None:
    warnings.simplefilter("ignore")
    with TemporaryDirectory(prefix="zoo-case-") as folder:
        try:
            result: Result | None = _result(case, Path(folder))
        except Impossible:
            result = None
        except ShipliftError as error:
            result = _ended(case, "refused", error.what)
        except Exception as error:  # a case must not end the others
            result = _ended(case, "failed", f"{type(error).__name__}: {error}")
        to.send(result.model_dump_json() if result else "")


def _ended(case: Case, outcome: Any, reason: str = "") -> Result:
    return Result(
        name=case.name, flavor=case.flavor, outcome=outcome, reason=_IN_A_CASE.sub("", " ".join(reason.split()))[:600]
    )


def _result(case: Case, folder: Path) -> Result:
    (built := folder / "built").mkdir()
    logged = case.build(built)
    try:
        assert logged.save, "the case can't be saved by itself"
        logged.save(path=str(folder / "model"))
        expected = _expected(case, logged, folder / "model")
    except Exception as error:
        raise Impossible(str(error)) from error
    if case.flavor == "pyfunc":
        return _by_protocol(case, expected, protocol.ours(folder / "model", logged.question))
    exported = export(folder / "model", folder / "work", pickle="sandbox")
    wrong, reason = _wrong(expected, exported.answer(sent(logged.question, exported)))
    ended = _ended(case, "failed" if wrong else "exported", reason or exported.reason)
    return ended.model_copy(update={"form": exported.form, "rows": len(expected.errors), "wrong": wrong})


def _by_protocol(case: Case, expected: Any, given: Any) -> Result:
    """How two decoded answers of scoring servers compare."""
    right = json.dumps(expected, sort_keys=True) == json.dumps(given, sort_keys=True)  # NaN equals itself there
    reason = "" if right else f"MLflow answers {json.dumps(expected)}, production {json.dumps(given)}"
    ended = _ended(case, "exported" if right else "failed", reason)
    return ended.model_copy(update={"form": "Python", "rows": 1, "wrong": int(not right)})


def _expected(case: Case, logged: Logged, folder: Path) -> Any:
    """What MLflow answers to the fresh rows: to a request's body, the decoded body of its scoring server."""
    if case.flavor == "pyfunc":
        return protocol.mlflow_s(folder, logged.question)
    if logged.original is not None:
        return Answers.of(logged.original)
    import mlflow

    prediction = mlflow.pyfunc.load_model(str(folder)).predict(logged.question)
    expected = Answers.of(named(prediction) if not hasattr(prediction, "toarray") else {"": prediction.toarray()})
    return replace(expected, noise=logged.noise)


def _wrong(expected: Answers, actual: Arrays) -> tuple[int, str]:
    """How many rows the graph's first outputs answer otherwise, and the first of them."""
    names = list(expected.outputs)
    served = Answers.of(dict(zip(names, actual.values(), strict=False)))
    found = compare(expected, served, ("fresh",) * len(expected.errors))
    return sum(each.rows for each in found.wrong), str(found.first or "")


def sent(question: Any, exported: Export) -> Arrays:
    """Rows as clients send them: a matrix, or a column for each input."""
    if hasattr(question, "toarray"):
        question = question.toarray()
    if not hasattr(question, "columns"):
        return {spec.name: np.ascontiguousarray(question).astype(exported.dtype(spec)) for spec in exported.inputs}
    return {spec.name: column(question[spec.name], spec) for spec in exported.inputs}


def column(values: Any, spec: TensorSpec) -> Any:
    """A column of a data frame as clients send it: (rows, 1) of the input's type."""
    return as_input(np.asarray(values).reshape(-1, 1), spec)
