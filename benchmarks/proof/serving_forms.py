"""What an export would serve, as a function of tensors: the graph, exact trees, a front with its graph, or Python."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.proof.case import Form
from benchmarks.proof.exporting import Workshop
from benchmarks.proof.sabotages.mutation import Files
from shiplift.runtime.guest.graphs.guards import Guards
from shiplift.runtime.model import onnx_models, trees_models
from shiplift.runtime.model.python.asking import asking, settings_of
from shiplift.runtime.model.python.bundle import write_bundle
from shiplift.runtime.model.python.environments import readable
from shiplift.runtime.model.tensors import Arrays, feeds
from shiplift.runtime.model.text.fronts import load_front
from shiplift.runtime.proof.settings import Ask
from shiplift.runtime.records.guards import Guard
from shiplift.runtime.records.kinds.exported import (
    Exported,
    ExportedGraph,
    ExportedImage,
    ExportedPython,
    ExportedText,
)
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.trees import CHECKPOINT

_PYTHON_S = 30.0


@dataclass(frozen=True, kw_only=True)
class ServedForm:
    """A form, how to ask it, its first output, and whether it takes batches."""

    form: Form
    ask: Ask
    first: str
    batches: bool


@contextmanager
def forms_of(workshop: Workshop, exported: Exported, prefix: Path, work: Path) -> Iterator[list[ServedForm]]:
    """Every form of an export, as long as the context lasts; `prefix` is the environment of Python models."""
    if isinstance(exported, ExportedPython):
        with _python(workshop, exported, prefix, work) as form:
            yield [form]
        return
    folder = workshop.store.fetch(exported.model, work / "model")
    running = onnx_models.session(folder / "model.onnx")
    if isinstance(exported, ExportedText | ExportedImage):
        front, _ = load_front(workshop.store.fetch(exported.front.files, work / "front"))
        yield [_front(front, exported.front.signature, running)]
        return
    assert isinstance(exported, ExportedGraph)
    guards = exported.proof.guards if exported.proof else ()
    forms = [] if exported.form == "exact trees" else [_of("graph", running, exported.signature, guards)]
    if exported.trees:
        file = workshop.store.fetch(exported.trees.files, work / "trees") / CHECKPOINT
        trees = trees_models.session(file, exported.trees.form, exported.signature)
        forms.append(_of("trees", trees, exported.signature, guards))
    yield forms


def written_ask(files: Files, version: Exported, *, trees: bool) -> Ask:
    """How to ask the graph, or the trees, that a proof is given.

    Raises:
        ShipliftError, or what the engine does: it does not load.
    """
    written = files.folder / "written"
    if trees:
        assert isinstance(version, ExportedGraph)
        assert version.trees
        form = version.trees.form
        return _of(
            "trees", trees_models.session(written / "trees" / CHECKPOINT, form, version.signature), version.signature
        ).ask
    running = onnx_models.session(files.graph)
    if isinstance(version, ExportedText | ExportedImage):
        return _front(load_front(written / "text")[0], version.front.signature, running).ask
    return _of("graph", running, version.signature).ask


def _of(form: Form, running: Any, signature: Signature, guards: Sequence[Guard] = ()) -> ServedForm:
    judge = Guards(guard.entry() for guard in guards)

    def ask(inputs: Arrays) -> Arrays:
        fed = feeds(inputs, signature.inputs)
        if why := judge.reason(fed):
            raise ValueError(why)
        return onnx_models.answer(running, fed)

    return ServedForm(
        form=form,
        ask=ask,
        first=signature.outputs[0].name,
        batches=signature.batch != 1,
    )


def _front(front: Any, signature: Signature, running: Any) -> ServedForm:
    def ask(inputs: Arrays) -> Arrays:
        samples = front.samples(feeds(inputs, signature.inputs))
        answers: Arrays = front.run(samples, lambda tensors: onnx_models.answer(running, tensors))
        return answers

    return ServedForm(form="graph", ask=ask, first=signature.outputs[0].name, batches=True)


@contextmanager
def _python(workshop: Workshop, exported: ExportedPython, prefix: Path, work: Path) -> Iterator[ServedForm]:
    source, code = workshop.store.fetch(exported.model, work / "source"), write_bundle(work / "code")
    signature, names = exported.signature, [spec.name for spec in exported.signature.outputs]
    settings = settings_of(
        str(source), names, readable(prefix, code, source), exported.python.memory_mb, [], exported.python.answers_as
    )
    with asking(str(code), str(prefix), settings) as host:
        yield ServedForm(
            form="python",
            ask=lambda inputs: host.ask(feeds(inputs, signature.inputs), _PYTHON_S),
            first=names[0],
            batches=signature.batch != 1,
        )
