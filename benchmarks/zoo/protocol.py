"""A Python model asked as MLflow's clients ask: the same body for MLflow's scoring server and for ours."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shiplift.runtime.admission import scan
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.guest.python.pyfunc import Model
from shiplift.runtime.model.contracts import LoggedModel, read_model
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.scoring import AnswerForm
from shiplift.runtime.serving.scoring.answers import body_of
from shiplift.runtime.serving.scoring.requests import JSON, ScoringRequest, read_other
from shiplift.runtime.serving.scoring.schema import InputSchema, schema_from

_UNPACKED_MB = 2048


def mlflow_s(folder: Path, asked: Any) -> Any:
    """What MLflow's scoring server answers to the body, decoded."""
    import mlflow.pyfunc
    from mlflow.pyfunc.scoring_server import invocations

    model = mlflow.pyfunc.load_model(str(folder))
    return _decoded(invocations(json.dumps(asked), JSON, model, model.metadata.get_input_schema()).response)


def ours(folder: Path, asked: Any) -> Any:
    """What production's scoring server answers to it, decoded, with the model in this process.

    Raises:
        NotAdmitted: the model's files are unsafe, or it lacks something.
        ExportFailed: MLflow can't load it, or it has no answer to the body.
    """
    (examples := folder.parent / "examples").mkdir()
    for name in ("input_example.json", "serving_input_example.json"):
        if (folder / name).is_file():
            (folder / name).rename(examples / name)
    logged = read_model(folder, examples, python=True)
    judged = scan.scan_files(folder, examples, pickle="sandbox", unpacked_mb=_UNPACKED_MB, python=True)
    if refused := scan.objections(judged):
        raise scan.refusal(refused)
    try:
        request = read_other(JSON, json.dumps(asked).encode(), _schema(logged))
        form, answer = _answered(folder, logged, request, ())
        if as_json := [part.tensor for part in form.parts if part.holds == "json"]:  # as the export does
            form, answer = _answered(folder, logged, request, as_json)
    except Exception as error:  # the author's code may raise anything
        raise ExportFailed(f"{type(error).__name__}: {error}", do="") from error
    return _decoded(body_of(form, [answer]))


def _answered(
    folder: Path, logged: LoggedModel, request: ScoringRequest, as_json: Sequence[str]
) -> tuple[AnswerForm, Arrays]:
    outputs = [spec.name for spec in logged.signature.outputs]
    model = Model({"model": str(folder), "outputs": outputs, "json": as_json, "listed": None})
    answer = model.answer(request.inputs, json.loads(request.params) if request.params else None)
    return AnswerForm.model_validate(model.form), answer


def _decoded(body: str | bytes) -> Any:
    """JSON, with whole numbers as floats: a column of both is one of floats."""
    return json.loads(body, parse_int=float)


def _schema(logged: LoggedModel) -> InputSchema:
    assert logged.scoring, "a Python model has a signature"
    return schema_from(logged.scoring.model_copy(update={"params_use": "passed"}), logged.signature)
