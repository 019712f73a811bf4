"""The sandboxed half of packaging: the engines' answers to golden requests."""

from pathlib import Path
from typing import Any

from shiplift.runtime.base.progress import progress
from shiplift.runtime.model import onnx_models, openvino_models
from shiplift.runtime.model.sequences import answer_sequence
from shiplift.runtime.model.tensors import GRAPH, Arrays, batch_of, concatenate, dump_npz, load_npz
from shiplift.runtime.model.text.fronts import load_front
from shiplift.runtime.records.precision import Engine, Precision
from shiplift.runtime.records.tensor import TensorSpec

SAMPLES = 8


def answer_golden(
    *,
    models: list[dict[str, Any]],
    reference: str,
    inputs: list[str],
    outputs: list[str],
    states: dict[str, dict[str, Any]],
    text: str,
    tensors: bool,
    out: str,
) -> dict[str, Any]:
    """Answers the golden requests with each of `models`; writes `out/INDEX.npz` with the `outputs` by name.

    A model is an ONNX `file`, and the `engine` and `precision` that answer.

    The requests are the `inputs` in the NPZ `reference`, one sample each, since int8 answers may round differently in a
    larger batch. For a model with `states` (the output of each, by the input's name) they are the steps of a sequence.
    For a text model, whose requests are texts, `text` is the folder of what is around the graph; with `tensors` the
    graph's own requests and answers are written too, as `graph/input/NAME` and `graph/output/NAME`, with all texts
    padded to the longest. A sandbox entry.

    Raises:
        ExportFailed, QuantizeFailed: the engine does not load a model.
    """
    progress("answering the golden requests")
    arrays = load_npz(Path(reference))
    requests = batch_of({name: arrays[f"input/{name}"] for name in inputs}, SAMPLES)
    if text:
        return _answer_texts(models, outputs, requests, Path(text), Path(out), tensors=tensors)
    carried = {name: TensorSpec.model_validate(output) for name, output in states.items()}
    for index, model in enumerate(models):
        answers = answer_sequence(_session(outputs=outputs, **model), requests, carried)
        (Path(out) / f"{index}.npz").write_bytes(dump_npz(answers))
    return {"answered": len(models)}


def _answer_texts(
    models: list[dict[str, Any]], outputs: list[str], requests: Arrays, front: Path, out: Path, *, tensors: bool
) -> dict[str, Any]:  # fmt: skip
    """Each text's answers, one by one."""
    around, _ = load_front(front)
    samples = around.samples(requests)
    feeds = around.feeds(around.encode(around.read(samples))) if tensors else {}
    for index, model in enumerate(models):
        session = _session(outputs=outputs, **model)
        answers = [around.run([sample], lambda feeds: onnx_models.answer(session, feeds)) for sample in samples]  # noqa: B023
        graph = _of_graph(feeds, onnx_models.answer(session, feeds, step=1)) if tensors else {}
        (out / f"{index}.npz").write_bytes(dump_npz(concatenate(answers) | graph))
    return {"answered": len(models)}


def _of_graph(feeds: Arrays, answers: Arrays) -> Arrays:
    inputs = {f"{GRAPH}input/{name}": array for name, array in feeds.items()}
    return inputs | {f"{GRAPH}output/{name}": array for name, array in answers.items()}


def _session(*, file: str, engine: Engine, precision: Precision, outputs: list[str]) -> Any:
    if engine == "openvino":
        return openvino_models.session(Path(file), outputs, precision)
    return onnx_models.session(Path(file))
