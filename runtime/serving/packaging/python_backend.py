"""What the bundled server needs to run a Python model: a `model.py`, the logged model, and the process that runs it.

The package contains only a record of the model's environment. The environment itself lies beside the server's; a
machine that lacks it makes it from that record.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from shiplift.runtime.guest import python
from shiplift.runtime.model.python.bundle import write_bundle
from shiplift.runtime.model.tensors import numpy_type
from shiplift.runtime.records.model import PythonModel
from shiplift.runtime.records.scoring import Scoring
from shiplift.runtime.records.tensor import Datatype, Signature

PYTHON_MODEL = Path(python.__file__).with_name("python_model.py")
_SETTINGS, _LOGGED = "python.json", "mlflow"


def write_python_backend(
    to: Path, logged: Path, model: PythonModel, signature: Signature, scoring: Scoring | None
) -> Path:
    """Writes the files into the new folder `to`, and returns it; `logged` is MLflow's folder of the model.

    Raises:
        MissingTool: a library of the confinement is not installed here.
    """
    to.mkdir()
    write_bundle(to)
    shutil.copyfile(PYTHON_MODEL, to / "model.py")
    shutil.copytree(logged, to / _LOGGED)
    write_settings(
        to,
        signature,
        model.environment.digest,
        model.memory_mb,
        scoring,
        answers_as=model.answers_as,
    )
    return to


def write_settings(
    to: Path,
    signature: Signature,
    environment: str,
    memory_mb: int,
    scoring: Scoring | None = None,
    *,
    answers_as: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Writes the settings that `python_model.py` reads: the signature that clients see, and its process's limits.

    Of the `scoring`, these are the names of the logged parameters, and the form of the answer to those logged.
    `answers_as` is how its process makes outputs of answers (`PythonModel.answers_as`).
    """
    params = json.loads(scoring.params) if scoring and scoring.params else []
    answer = scoring.answer.model_dump(mode="json") if scoring and scoring.answer else None
    settings = {
        "environment": environment,
        "memory_mb": memory_mb,
        "inputs": [{"name": s.name, "rank": len(s.shape), "datatype": s.datatype} for s in signature.inputs],
        "outputs": [{"name": s.name, "type": _type(s.datatype)} for s in signature.outputs],
        "declared": [spec.name for spec in signature.outputs],
        **{key: value for key, value in answers_as.items() if value},
        **({"params": [param["name"] for param in params], "answer": answer} if params else {}),
    }
    (to / _SETTINGS).write_text(json.dumps(settings, indent=1) + "\n")


def _type(datatype: Datatype) -> str:
    return datatype if datatype == "BYTES" else numpy_type(datatype).str
