"""Asks a logged model a few rows again, each alone: what `mlflow.pyfunc` answers, in a sandbox."""

from pathlib import Path
from typing import Any

from shiplift.runtime.admission.pyfunc_answers import as_logged
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.guest.python.pyfunc import Model
from shiplift.runtime.model.python.asking import asking, restored, settings_of
from shiplift.runtime.model.tensors import Arrays, dump_npz, feeds, load_npz
from shiplift.runtime.proof.file import in_file
from shiplift.runtime.proof.settings import Ask, alone, count_of
from shiplift.runtime.records.tensor import TensorSpec

ANSWERS, ROWS = "answers.npz", "rows"


def ask_library(*, model: str, rows: str, inputs: list[dict[str, Any]], out: str) -> dict[str, Any]:
    """Asks the model as MLflow loads it here. Writes `out/answers.npz`, as `proof.file` says. A sandbox entry.

    `rows` are arrays by the name of an input, or else in the order of `inputs`.

    Raises:
        ExportFailed: the model does not load.
    """
    specs = tuple(TensorSpec.model_validate(spec) for spec in inputs)
    try:
        loaded = Model({"model": model, "outputs": []})
    except Exception as error:
        raise ExportFailed(
            f"mlflow.pyfunc does not load the model: {type(error).__name__}: {' '.join(str(error).split())[:300]}",
            do="Load it with `mlflow.pyfunc.load_model`, and correct what that says.",
        ) from error
    names = as_logged(loaded.names, specs)

    def ask(given: Arrays) -> Arrays:
        answers: Arrays = loaded.answer({name: given[own] for name, own in names.items()})
        return answers

    return _written(ask, feeds(load_npz(Path(rows)), specs), out)


def ask_process(  # noqa: PLR0913 - an entry takes JSON by name
    *,
    code: str,
    environment: str,
    model: str,
    read: list[str],
    rows: str,
    inputs: list[dict[str, Any]],
    answers_as: dict[str, Any],
    memory_mb: int,
    limit_s: float,
    allow_without: list[str],
    out: str,
) -> dict[str, Any]:
    """The same in the model's own environment, in a process like the one that serves it. A sandbox entry.

    Raises:
        ExportFailed: the model does not load.
    """
    specs = [TensorSpec.model_validate(spec) for spec in inputs]
    settings = settings_of(model, [], read, memory_mb, allow_without, answers_as)
    with asking(code, environment, settings) as host:

        def ask(given: Arrays) -> Arrays:
            host.start()
            answers: Arrays = host.ask(given, limit_s)
            return answers

        return _written(ask, restored(load_npz(Path(rows)), specs), out)


def _written(ask: Ask, rows: Arrays, out: str) -> dict[str, Any]:
    answers = alone(ask, rows)
    named = in_file({ROWS: rows}, {ROWS: answers}, {ROWS: ("",) * count_of(rows)})
    (Path(out) / ANSWERS).write_bytes(dump_npz(named))
    return {"asked": count_of(rows)}
