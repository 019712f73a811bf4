"""A logged model scanned, converted and proved in this process, and asked fresh rows: no server and no sandbox.

One that has no right graph is answered by its own library, as in production, but within this process.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shiplift.runtime.admission import conversion, exact_trees, scan, verification
from shiplift.runtime.admission.allowed import Pickle
from shiplift.runtime.admission.examples import missing_example
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.guest.graphs.guards import Guards
from shiplift.runtime.guest.python.pyfunc import Model
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.contracts import LoggedModel, read_model
from shiplift.runtime.model.tensors import Arrays, dump_npz, numpy_type
from shiplift.runtime.records.guards import Guard
from shiplift.runtime.records.proof import OfferedGraph
from shiplift.runtime.records.tensor import TensorSpec
from shiplift.runtime.records.trees import TreesForm
from shiplift.runtime.spec.model import Conversion

_SEED = 20240229
_UNPACKED_MB = 2048


@dataclass(frozen=True, kw_only=True)
class Export:
    """A model that was exported: what answers by output name, the inputs that clients send, and the right form.

    `reason` says why no graph is right, if its own library answers.
    """

    answer: Callable[[Arrays], Arrays]
    inputs: tuple[TensorSpec, ...]
    form: str
    reason: str = ""

    def dtype(self, spec: TensorSpec) -> np.dtype[Any]:
        """An input's type in numpy."""
        return numpy_type(spec.datatype)


def export(folder: Path, work: Path, *, pickle: Pickle) -> Export:
    """Exports the MLflow model in `folder` as a release does, except for the confinement; `work` gets its files.

    Raises:
        NotAdmitted: its files are unsafe, or it lacks something.
        ExportFailed: it does not become a graph that answers the same, and MLflow can't load it.
    """
    os.environ.setdefault("PROMPTFOO_DISABLE_TELEMETRY", "1")  # as in the sandbox, where modelaudit runs otherwise
    (examples := work / "examples").mkdir(parents=True)
    for name in ("input_example.json", "serving_input_example.json"):
        if (folder / name).is_file():
            (folder / name).rename(examples / name)
    logged = read_model(folder, examples)
    judged = scan.scan_files(folder, examples, pickle=pickle, unpacked_mb=_UNPACKED_MB)
    if refused := scan.objections(judged):
        raise scan.refusal(refused)
    example = logged.example if logged.example is not None else missing_example(folder, logged)[0]
    (work / "example.npz").write_bytes(dump_npz(example))
    try:
        return _graph(folder, work, logged)
    except ExportFailed as error:
        return _python(folder, logged, error)


def _python(folder: Path, logged: LoggedModel, error: ExportFailed) -> Export:
    """The model as its own library serves it."""
    try:
        names = [spec.name for spec in logged.signature.outputs]
        model = Model({"model": str(folder), "outputs": names, "listed": None})
    except Exception as other:  # MLflow may raise anything
        why = " ".join(str(other).split())[:300]
        raise ExportFailed(f"{error.what}; its own library can't serve it either: {why}", do=error.do) from other
    return Export(answer=model.answer, inputs=logged.signature.inputs, form="Python", reason=error.what)


def _graph(folder: Path, work: Path, logged: LoggedModel) -> Export:
    made = conversion.convert(
        folder=str(folder),
        flavor=logged.flavor,
        signature=logged.signature.model_dump(mode="json"),
        example=str(work / "example.npz"),
        out=str(work),
        settings=Conversion().model_dump(mode="json"),
        tabular=logged.tabular,
        seed=_SEED,
    )
    proved = verification.verify(
        written=str(work),
        script="",
        out=str(work),
        **{name: made[name] for name in ("graphs", "sets", "questions", "left_out", "guards", "trees")},
        text="",
    )
    offered = OfferedGraph.model_validate(made["graphs"][proved["served"]])
    guards = Guards(Guard.model_validate(each).entry() for each in _guards(proved))
    if proved["form"] == "exact trees":
        session: Any = exact_trees.checked(work, TreesForm.model_validate(made["trees"]), offered.signature)
    else:
        session = onnx_models.session(work / offered.folder / "model.onnx")

    def answer(sent: Arrays) -> Arrays:
        if why := guards.reason(sent):
            raise ValueError(why)
        return onnx_models.answer(session, sent)

    return Export(answer=answer, inputs=offered.signature.inputs, form=proved["form"])


def _guards(proved: dict[str, Any]) -> list[Any]:
    """The guards in front of a graph that was proved."""
    return list((proved["proof"] or {}).get("guards", ()))
