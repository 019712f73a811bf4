"""The sandboxed half of packaging: the engines' answers to golden requests."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shiplift.runtime.base.progress import progress
from shiplift.runtime.model import onnx_models, openvino_models, padding, trees_models
from shiplift.runtime.model.sequences import answer_sequence
from shiplift.runtime.model.small_graph import INPUT, OUTPUT, write_small_graph, write_small_samples
from shiplift.runtime.model.tensors import GOLDEN_SAMPLES, GRAPH, Arrays, batch_of, concatenate, dump_npz, load_npz
from shiplift.runtime.model.text.fronts import load_front, takes_images
from shiplift.runtime.records.precision import Engine, Precision
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.records.trees import TreesForm

PRELOAD = ("openvino",)
_REHEARSED: tuple[Engine, ...] = ("onnxruntime", "openvino")


def answer_golden(
    *,
    models: list[dict[str, Any]],
    reference: str,
    inputs: list[str],
    outputs: list[str],
    states: dict[str, dict[str, Any]],
    text: dict[str, Any] | None,
    lengths: dict[str, Any] | None,
    out: str,
) -> dict[str, Any]:
    """Answers the golden requests with each of `models`; writes `out/INDEX.npz` with the `outputs` by name.

    A model is a `file`, the `engine` and `precision` that answer, and for `trees` their `form` and `signature`. With
    `lengths`, padding is proven for each model that has a tolerance there; the proofs are returned by index.

    The requests are the `inputs` in the NPZ `reference`, one sample each, since int8 answers may round differently in a
    larger batch. For a model with `states` (the output of each, by the input's name) they are the steps of a sequence.
    For a text model, whose requests are texts, `text` has the `front`, the folder of the files around the graph. If its
    `tensors` are requested, the graph's own requests and answers are written too, as `graph/input/NAME` and
    `graph/output/NAME`, with all texts padded to the longest. A sandbox entry.

    Raises:
        ExportFailed, QuantizeFailed: the engine does not load a model.
    """
    progress("answering the golden requests")
    arrays = load_npz(Path(reference))
    requests = batch_of({name: arrays[f"input/{name}"] for name in inputs}, GOLDEN_SAMPLES)
    if text:
        front, tensors = Path(text["front"]), bool(text["tensors"])
        return _answer_texts(models, outputs, requests, front, Path(out), lengths, tensors=tensors)
    carried = {name: TensorSpec.model_validate(output) for name, output in states.items()}
    proofs: dict[str, Any] = {}
    for index, model in enumerate(models):
        running = _session(outputs=outputs, **model)
        answers = answer_sequence(running, requests, carried)
        (Path(out) / f"{index}.npz").write_bytes(dump_npz(answers))
        proofs |= _proof(running, requests, index, lengths)
    return {"answered": len(models), "padding": proofs}


def _answer_texts(
    models: list[dict[str, Any]],
    outputs: list[str],
    requests: Arrays,
    front: Path,
    out: Path,
    lengths: dict[str, Any] | None,
    *,
    tensors: bool,
) -> dict[str, Any]:
    """Each text's answers, one by one. Padding is proven with the tokens of the longest."""
    around, _ = load_front(front)
    samples = around.samples(requests)
    feeds = around.feeds(around.encode(around.read(samples))) if tensors else {}
    proofs: dict[str, Any] = {}
    for index, model in enumerate(models):
        session = _session(outputs=outputs, **model)
        answers = [around.run([sample], lambda feeds: onnx_models.answer(session, feeds)) for sample in samples]  # noqa: B023
        graph = _of_graph(feeds, onnx_models.answer(session, feeds, step=1)) if tensors else {}
        (out / f"{index}.npz").write_bytes(dump_npz(concatenate(answers) | graph))
        if lengths and not takes_images(front):
            proofs |= _text_proof(session, around, samples, index, lengths)
    return {"answered": len(models), "padding": proofs}


def _text_proof(running: Any, around: Any, samples: list[Any], index: int, lengths: dict[str, Any]) -> dict[str, Any]:
    """The same for a text model, whose tokenizer pads; the `lengths` in tokens are kept for tuning."""
    tokens = around.encode(around.read(samples))
    longest = max(tokens, key=lambda encoding: len(encoding.ids))
    buckets = lengths["buckets"]
    if not lengths["every"]:
        buckets = [bucket for bucket in buckets if bucket <= around.settings["max_tokens"]]
    proof = _proof(running, around.feeds([longest]), index, lengths | {"pad": around.padding(), "buckets": buckets})
    sizes = tuple(len(encoding.ids) for encoding in tokens)
    return {key: value | {"pad": {}, "cut": (), "lengths": sizes} for key, value in proof.items()}


def _proof(running: Any, example: Arrays, index: int, lengths: dict[str, Any] | None) -> dict[str, Any]:
    """The proof for a model: a `Padding` as JSON by its index; empty if none is requested."""
    tolerance = (lengths or {}).get("tolerances", {}).get(str(index))
    if lengths is None or tolerance is None:
        return {}
    progress("proving that padding changes no answer")
    proven = padding.prove(
        running, example, lengths["pad"], lengths["buckets"], tolerance, every=bool(lengths["every"])
    )
    return {str(index): proven.model_dump(mode="json")}


def _of_graph(feeds: Arrays, answers: Arrays) -> Arrays:
    inputs = {f"{GRAPH}input/{name}": array for name, array in feeds.items()}
    return inputs | {f"{GRAPH}output/{name}": array for name, array in answers.items()}


def _session(
    *, file: str, engine: Engine, precision: Precision, outputs: list[str], trees: dict[str, Any] | None
) -> Any:
    if trees:
        form, signature = TreesForm.model_validate(trees["form"]), Signature.model_validate(trees["signature"])
        return trees_models.session(Path(file), form, signature)
    if engine == "openvino":
        return openvino_models.session(Path(file), outputs, precision)
    return onnx_models.session(Path(file))


def rehearse(_flavor: str) -> None:
    """Lets each engine answer with a small graph, so that it has done what only its first graph costs."""
    _rehearsed()


@cache
def _rehearsed() -> None:
    """The rehearsal, once: it is the same for every flavor."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_small_graph(file := folder / "model.onnx")
        shared = {"file": str(file), "precision": "fp32", "trees": None}
        answer_golden(
            models=[shared | {"engine": engine} for engine in _REHEARSED],
            reference=str(write_small_samples(folder / "reference.npz", GOLDEN_SAMPLES, prefix="input/")),
            inputs=[INPUT],
            outputs=[OUTPUT],
            states={},
            text=None,
            lengths=None,
            out=name,
        )
