"""The export of models that become a graph: the logged model as ONNX, and the proof that both give the same answers.

One sandbox loads and converts, another one compares. The first ran the model's code, so its files are opened only
inside a sandbox, and it has no part in the proof. For texts and images, the first sandbox also writes the front around
their graph.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shiplift.runtime.base.progress import measuring, progress
from shiplift.runtime.confinement.policy import EVALUATE, Entry
from shiplift.runtime.confinement.workplace import Workplace, workplace
from shiplift.runtime.families.known_data import known_data
from shiplift.runtime.families.work import Exporting
from shiplift.runtime.host.outputs import require_regular
from shiplift.runtime.model.text.fronts import takes_images
from shiplift.runtime.records.guards import Guard, told
from shiplift.runtime.records.kinds.contract import DeclaredGraph, DeclaredImage, DeclaredText
from shiplift.runtime.records.kinds.exported import ExportedGraph, ExportedImage, ExportedText, Front
from shiplift.runtime.records.model import Isolation, ParityCase
from shiplift.runtime.records.proof import Form, OfferedGraph, Proof
from shiplift.runtime.records.scoring import answered_as
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.trees import NOT_EXACT, ExactTrees, TreesForm

CONVERT = Entry("shiplift.runtime.admission.conversion:convert")
VERIFY = Entry("shiplift.runtime.admission.verification:verify", EVALUATE)
_SEED = 20240229
_UNREFUSED = (
    "Warning: the model refuses rows that its graph answers: {}. Clients that send such rows get an answer, where the "
    "model gives an error."
)

GraphWork = Exporting[DeclaredGraph] | Exporting[DeclaredText] | Exporting[DeclaredImage]


@dataclass(frozen=True, kw_only=True)
class _Converted:
    """The first sandbox's report: `seen` is the signature that clients of a front see, `sets` the answered inputs.

    `trees` is how the model is served as exact trees, if it is an ensemble of these. `answer` is the form of
    what pyfunc answers, unchecked. It asked the original for `asking_seconds`.
    """

    graphs: tuple[OfferedGraph, ...]
    seen: Signature | None
    sets: list[str]
    questions: list[str]
    left_out: list[str]
    guards: list[dict[str, Any]]
    notes: tuple[str, ...]
    isolation: Isolation
    trees: TreesForm | None
    answer: Any
    asking_seconds: float


def export_graph(work: GraphWork) -> ExportedGraph | ExportedText | ExportedImage:
    """Converts the version, and proves that both models answer alike: see `admission.proving`.

    Raises:
        ExportFailed: the model does not load, convert or run, or its graph answers differently.
        SandboxLimit: the model needs more memory or time than the spec allows.
        ArtifactCorrupt: the files differ from those admitted.
    """
    home, sandbox, torchscript = Path(work.site.home), work.site.sandbox, work.conversion.torchscript
    # Both start now, so that the second one's imports run while the first one converts.
    with (
        workplace(CONVERT, home, sandbox) as converting,
        workplace(VERIFY, home, sandbox) as verifying,
        measuring(),
    ):
        converted = _convert(converting, work)
        written = verifying.folder / "written"
        _take(converting.sandbox.work, written, converted, torchscript=torchscript)
        started = time.monotonic()
        result, _ = verifying.sandbox.run(
            {
                "written": str(written),
                "graphs": [graph.model_dump(mode="json") for graph in converted.graphs],
                "script": str(written / "torchscript" / "model.pt") if torchscript else "",
                "sets": converted.sets,
                "questions": converted.questions,
                "left_out": converted.left_out,
                "guards": converted.guards,
                "text": str(written / "text") if converted.seen else "",
                "trees": converted.trees.model_dump(mode="json") if converted.trees else None,
                "out": str(verifying.sandbox.work),
            },
            work.limits("comparing both models"),
        )
        require_regular(verifying.sandbox.work, "reference.npz", "asked.npz")
        served = converted.graphs[int(result["served"])]
        dropped = tuple(Form.model_validate(each) for each in result["dropped"])
        common = {
            "model": work.store.put_tree(written / served.folder),
            "signature": served.signature,
            "opset": result["opset"],
            "graph": result["graph"],
            "parity": tuple(ParityCase.model_validate(case) for case in result["parity"]),
            "reference": work.store.put_file(verifying.sandbox.work / "reference.npz"),
            "isolation": converted.isolation,
            "scoring": answered_as(work.contract.scoring, converted.answer),
            "proof_seconds": round(converted.asking_seconds + time.monotonic() - started, 3),
            "notes": (
                *work.contract.notes,
                *converted.notes,
                *served.notes,
                *_doubt(result["trees"]),
            ),
        }
        if converted.seen:
            return _with_front(work, converted.seen, written, common)
        proof = Proof.model_validate(result["proof"])
        if proof.unrefused:
            common["notes"] = (*common["notes"], _UNREFUSED.format(proof.unrefused))
        serving = Form(name=result["form"], guarded=told(proof.guards))
        return ExportedGraph(
            **common,
            proof=proof,
            asked=work.store.put_file(verifying.sandbox.work / "asked.npz"),
            torchscript=work.store.put_tree(written / "torchscript") if torchscript else None,
            trees=_exact_trees(work, converted, written) if not result["trees"] else None,
            form=result["form"],
            forms=_forms(dropped, serving, converted, result["trees"]),
        )


def _forms(dropped: Sequence[Form], form: Form, converted: _Converted, trees_differ: str) -> tuple[Form, ...]:
    """The forms that were tried: the exact trees beside a right graph, too."""
    beside = converted.trees and form.name != "exact trees" and not any(each.name == "exact trees" for each in dropped)
    trees = (Form(name="exact trees", dropped=trees_differ),) if beside else ()
    return (*dropped, form, *trees)


def _doubt(difference: str) -> tuple[str, ...]:
    """A note if the forest answers otherwise than the original."""
    return (NOT_EXACT.format(why=difference),) if difference else ()


def _exact_trees(work: GraphWork, converted: _Converted, written: Path) -> ExactTrees | None:
    if converted.trees is None:
        return None
    return ExactTrees(form=converted.trees, files=work.store.put_tree(written / "trees"))


def _take(made: Path, to: Path, converted: _Converted, *, torchscript: bool) -> None:
    """Moves the first sandbox's results to a folder of the second one."""
    forest = ("trees/checkpoint.tl", "trees.npz") if converted.trees else ()
    require_regular(made, *(f"{graph.folder}/model.onnx" for graph in converted.graphs), "answers.npz", *forest)
    to.mkdir()
    fronts = ("text", "texts.npz") if converted.seen else ()
    trees = ("trees", "trees.npz") if converted.trees else ()
    graphs = (graph.folder for graph in converted.graphs)
    for name in (*graphs, "answers.npz", *(["torchscript"] if torchscript else []), *fronts, *trees):
        (made / name).rename(to / name)


def _with_front(
    work: GraphWork, seen: Signature, written: Path, common: dict[str, Any]
) -> ExportedText | ExportedImage:
    """The export of a graph behind a front. The front's own files say which front it is."""
    images = takes_images(written / "text")
    reference = work.store.put_file(written / "texts.npz")
    front = Front(files=work.store.put_tree(written / "text"), signature=seen, reference=reference)
    return ExportedImage(**common, front=front) if images else ExportedText(**common, front=front)


def _convert(place: Workplace, work: GraphWork) -> _Converted:
    """Converts in the sandbox, which runs the model's code."""
    contract, store = work.contract, work.store
    source = store.fetch(work.version.files, place.folder / "source")
    example = store.fetch(contract.example, place.folder / "example.npz")
    progress("converting to ONNX in the sandbox")
    started = time.monotonic()
    result, isolation = place.sandbox.run(
        {
            "folder": str(source),
            "flavor": work.version.flavor,
            "signature": contract.signature.model_dump(mode="json"),
            "example": str(example),
            "out": str(place.sandbox.work),
            "settings": work.conversion.model_dump(mode="json"),
            "tabular": isinstance(contract, DeclaredGraph) and contract.tabular,
            "seed": _SEED,
            "known": known_data(work, place) if isinstance(contract, DeclaredGraph) else None,
        },
        work.limits("loading or converting the model"),
    )
    return _Converted(
        graphs=tuple(OfferedGraph.model_validate(each) for each in result["graphs"]),
        seen=Signature.model_validate(result["text"]) if result["text"] else None,
        sets=[str(name) for name in result["sets"]],
        questions=[str(name) for name in result["questions"]],
        left_out=[str(reason) for reason in result["left_out"]],
        guards=[Guard.model_validate(guard).model_dump(mode="json") for guard in result["guards"]],
        notes=tuple(str(note) for note in result["notes"]),
        isolation=isolation,
        trees=TreesForm.model_validate(result["trees"]) if result["trees"] else None,
        answer=result["answer"],
        asking_seconds=min(max(0.0, float(result["asking_seconds"])), time.monotonic() - started),
    )
