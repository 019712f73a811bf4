"""The forms in which a model may be served, tried in turn: a graph, its exact trees, another graph, and so on.

The first that answers as the original does is served. Of those before it, the first difference is kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from shiplift.runtime.admission import exact_trees
from shiplift.runtime.admission.proving import THREADS, Asked, limited, prove
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.host.processor import usable_cores
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import feeds
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.guards.learning import learned
from shiplift.runtime.proof.guards.proposals import renamed
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.records.guards import Guard
from shiplift.runtime.records.proof import Form, FormName, OfferedGraph, Proof
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.records.trees import TreesForm


@dataclass(frozen=True, kw_only=True)
class RightForm:
    """The form that is right, and where its graph is among those offered; the trees of that signature may be, too.

    `trees_differ` says how they are not; empty if they are right, or there are none.
    """

    at: int
    form: FormName
    proof: Proof | None = None
    dropped: tuple[Form, ...] = ()
    trees_differ: str = ""

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The guards in front of it."""
        return self.proof.guards if self.proof else ()


@dataclass(kw_only=True)
class FormQuestions:
    """What all forms are asked: the recorded rows with the original's answers, by set.

    `folder` holds the graphs and the forest, which is served as `trees` says. `proposed` are guards that the model
    suggests, in the names of its inputs, and `taken` rows that it answers, which no guard may refuse because it does.
    `far` are rows far from all others: a form that answers some otherwise is limited to what it answers rightly.
    """

    folder: Path
    recorded: Mapping[str, tuple[Questions, Answers]]
    trees: TreesForm | None
    proposed: tuple[Guard, ...] = ()
    taken: Asked = ()
    far: Asked = ()
    _proved: dict[tuple[TensorSpec, ...], Proof | str] = field(default_factory=dict)

    def first_right(self, graphs: Sequence[OfferedGraph]) -> RightForm:
        """Tries each graph, and after it the trees with its signature.

        Raises:
            ExportFailed: none is right.
        """
        dropped: list[Form] = []
        for at, graph in enumerate(graphs):
            known = graph.signature.inputs in self._proved
            trees = self._of_trees(graph.signature)
            try:
                proof = self._of_graph(graph)
                return RightForm(
                    at=at,
                    form=graph.name,
                    proof=proof,
                    dropped=tuple(dropped),
                    trees_differ=trees if isinstance(trees, str) else "",
                )
            except ExportFailed as error:
                dropped.append(Form(name=graph.name, dropped=error.what))
                last = error
            if isinstance(trees, Proof):
                return RightForm(at=at, form="exact trees", proof=trees, dropped=tuple(dropped))
            if trees and not known:
                dropped.append(Form(name="exact trees", dropped=trees))
        raise _none_right(dropped, last)

    def _of_graph(self, graph: OfferedGraph) -> Proof:
        file = self.folder / graph.folder / "model.onnx"
        if self.trees:
            exact_trees.require_own_splits(self.folder, onnx.load(file).graph)
        running, threaded = onnx_models.session(file), None
        if onnx_models.stored_bytes(file) <= onnx_models.LARGE_BYTES:
            threaded = onnx_models.session(file, threads=THREADS)
        asked = self.asked_of(graph.signature.inputs)
        batches = graph.signature.batch != 1
        guards = self._guards(asked, graph.signature.inputs)
        guards = limited(running, _fed(self.far, graph.signature.inputs), asked, guards, batches=batches)
        return prove(running, threaded, asked, guards, batches=batches)

    def _of_trees(self, signature: Signature) -> Proof | str:
        """The proof of the forest with a signature, or how it differs; empty if there is none."""
        if self.trees is None:
            return ""
        if signature.inputs not in self._proved:
            self._proved[signature.inputs] = self._trees_proved(signature, self.trees)
        return self._proved[signature.inputs]

    def _trees_proved(self, signature: Signature, form: TreesForm) -> Proof | str:
        running = exact_trees.checked(self.folder, form, signature)
        if isinstance(running, str):
            return running
        most = min(THREADS, usable_cores())  # treelite refuses more than there are cores
        try:
            asked = self.asked_of(signature.inputs)
            guards = self._guards(asked, signature.inputs)
            return prove(running, replace(running, threads=most), asked, guards, batches=True)
        except ExportFailed as error:
            return error.what

    def _guards(self, asked: Asked, inputs: tuple[TensorSpec, ...]) -> tuple[Guard, ...]:
        """The guards in front of a form with these inputs."""
        names = list(next(iter(self.recorded.values()))[0].inputs)
        return learned([*asked, *_fed(self.taken, inputs)], renamed(self.proposed, names, inputs))

    def asked_of(self, inputs: tuple[TensorSpec, ...]) -> Asked:
        """The rows that a form with these inputs is asked, with the dtypes and names of these."""
        return _fed(list(self.recorded.values()), inputs)


def _fed(asked: Asked, inputs: tuple[TensorSpec, ...]) -> Asked:
    """The rows with the dtypes and names of these inputs."""
    return [(replace(questions, inputs=feeds(questions.inputs, inputs)), right) for questions, right in asked]


def _none_right(dropped: Sequence[Form], last: ExportFailed) -> ExportFailed:
    """The error of the last form if there is but one, or what all of them answer."""
    if len(dropped) == 1:
        return last
    return ExportFailed("; ".join(f"{each.name}: {each.dropped}" for each in dropped), do=last.do)
