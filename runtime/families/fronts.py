"""The package of a graph behind a front: what clients send is text or images, and the front makes tensors of them.

With `serving.tensors`, the graph is served beside it as a model of its own, for clients that make the tensors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.names import TENSORS
from shiplift.runtime.families.graph.answers import GraphAnswers
from shiplift.runtime.families.packaging.draft import Answered, Draft
from shiplift.runtime.model.golden import SAMPLES
from shiplift.runtime.model.tensors import GRAPH, Arrays, batch_of, inputs_in, under
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.kinds.exported import ExportedImage, ExportedText, Front
from shiplift.runtime.records.precision import Candidate
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.serving.packaging.text_backend import write_text_backend
from shiplift.runtime.serving.triton.repository import golden_arrays, write_model, write_package

F = TypeVar("F", ExportedText, ExportedImage)


class FrontMaker(GraphAnswers[F]):
    """Makes packages of graphs behind a front."""

    takes_text = True

    @property
    def front(self) -> Front:
        """What is around the graph."""
        return self.work.exported.front

    @property
    def reference(self) -> Artifact:
        """The texts or images, and what the original answered to them."""
        return self.front.reference

    def visible(self) -> tuple[Signature, Mapping[str, TensorSpec]]:
        """The front's signature: such models have no states."""
        return self.front.signature, {}

    def servable(self, kept: Sequence[Candidate]) -> list[Candidate]:
        """All, on the bundled server."""
        target = self.work.target
        if self.work.serving.sequence_batching:
            raise SpecInvalid(
                "the model takes text, and has no states", do="Leave `serving.sequence_batching` out of the spec."
            )
        if target.gpu or target.server != "bundled":
            raise SpecInvalid(
                f"target {target.name} can't serve a model that takes text: only the bundled server on a CPU can",
                do="Choose such a target, or log the model itself as pt2 or ONNX: clients then send tokens.",
            )
        return list(kept)

    def requests(self, answered: Answered) -> tuple[Arrays, Arrays]:
        """The front's requests; the graph's own are among the golden ones if it is served, too."""
        inputs = inputs_in(self.arrays, self.front.signature)
        graph = self._graph(answered.outputs)
        seen = {name: array for name, array in answered.outputs.items() if name not in graph}
        return inputs, golden_arrays(batch_of(inputs, SAMPLES), seen) | graph

    def _graph(self, arrays: Arrays) -> Arrays:
        named = {name: array for name, array in arrays.items() if name.startswith(GRAPH)}
        return named if self.work.serving.tensors else {}

    def write(self, draft: Draft) -> None:
        """The graph with its front, and by itself if the spec asks for that."""
        files = self.work.store.fetch(self.front.files, draft.folder / "text")
        server = self.work.target.server
        write_package(
            draft.tree,
            draft.described,
            draft.model,
            server,
            example=draft.inputs,
            golden=draft.golden,
            backend=write_text_backend(draft.folder / "backend", files),
        )
        if not self.work.serving.tensors:
            return
        described = replace(
            draft.described,
            name=draft.described.name + TENSORS,
            signature=self.work.exported.signature,
            padding=None,
            serving=draft.described.serving.model_copy(update={"labels": ()}),
        )
        example = under("input/", under(GRAPH, self._graph(draft.golden)))
        write_model(draft.tree, described, draft.model, server, example=example)

    @property
    def tensors(self) -> Signature | None:
        """The graph's, if it is served, too."""
        return self.work.exported.signature if self.work.serving.tensors else None
