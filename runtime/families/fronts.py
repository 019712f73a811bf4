"""The package of a graph behind a front: clients send text or images, and the front turns them into tensors.

On the bundled server, both are one model. With `serving.tensors`, the graph is also served as a model of its own, for
clients that make the tensors. On NVIDIA's server it always is: the front runs in the Python backend there, and calls
the graph, which runs in the backend of its engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.names import TENSORS
from shiplift.runtime.base.progress import progress
from shiplift.runtime.families.graph.answers import GraphAnswers
from shiplift.runtime.families.packaging.draft import Draft, GoldenAnswers
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.model.python.layers import name_of
from shiplift.runtime.model.tensors import GOLDEN_SAMPLES, GRAPH, Arrays, batch_of, inputs_in, under
from shiplift.runtime.model.text.fronts import takes_images
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.kinds.exported import ExportedImage, ExportedText, Front
from shiplift.runtime.records.precision import Candidate
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.serving.packaging.front_backend import (
    pack_front_environment,
    write_front_backend,
    write_hosted_front_backend,
)
from shiplift.runtime.serving.triton.config import ModelDescription, of_called
from shiplift.runtime.serving.triton.repository import golden_arrays, write_model, write_package

F = TypeVar("F", ExportedText, ExportedImage)
_DIGITS = 24  # of a layer's digest, as its name


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

    @property
    def calls_graph(self) -> bool:
        """Whether the graph is a model of its own that the front calls."""
        return self.work.target.server == "nvidia"

    @property
    def serves_tensors(self) -> bool:
        """As the spec says, and always if the front calls the graph."""
        return self.work.serving.tensors or self.calls_graph

    def visible(self) -> tuple[Signature, Mapping[str, TensorSpec]]:
        """The front's signature: such models have no states."""
        return self.front.signature, {}

    def servable(self, kept: Sequence[Candidate]) -> list[Candidate]:
        """All candidates."""
        if self.work.serving.sequence_batching:
            raise SpecInvalid(
                "the model takes text, and has no states", do="Leave `serving.sequence_batching` out of the spec."
            )
        return list(kept)

    def requests(self, answered: GoldenAnswers) -> tuple[Arrays, Arrays]:
        """The front's requests; the graph's own are among the golden ones if it is served, too."""
        inputs = inputs_in(self.arrays, self.front.signature)
        graph = self._graph(answered.outputs)
        seen = {name: array for name, array in answered.outputs.items() if name not in graph}
        return inputs, golden_arrays(batch_of(inputs, GOLDEN_SAMPLES), seen) | graph

    def _graph(self, arrays: Arrays) -> Arrays:
        named = {name: array for name, array in arrays.items() if name.startswith(GRAPH)}
        return named if self.serves_tensors else {}

    def write(self, draft: Draft) -> None:
        """The graph with its front, or the front and the graph."""
        files = self.work.store.fetch(self.front.files, draft.folder / "text")
        if self.calls_graph:
            self._write_caller(draft, files)
        else:
            backend = write_front_backend(draft.folder / "backend", files)
            self._write(draft, draft.described, draft.model, backend)
        if self.serves_tensors:
            self._write_graph(draft)

    def _write_caller(self, draft: Draft, files: Path) -> None:
        """The front without its graph, and the environment that it runs in."""
        name = self.layer.sha256[:_DIGITS]
        signature = draft.described.signature
        backend = write_hosted_front_backend(draft.folder / "backend", files, signature, name)
        self._write(draft, _caller(draft.described), None, backend)
        self.work.store.fetch(self.layer, draft.tree / name_of(name))

    def _write(self, draft: Draft, described: ModelDescription, model: Path | None, backend: Path) -> None:
        server = self.work.target.server
        write_package(draft.tree, described, model, server, example=draft.inputs, golden=draft.golden, backend=backend)

    def _write_graph(self, draft: Draft) -> None:
        described = replace(
            draft.described,
            name=draft.described.name + TENSORS,
            signature=self.work.exported.signature,
            padding=None,
            config=of_called(draft.described.config) if self.calls_graph else draft.described.config,
            serving=draft.described.serving.model_copy(update={"labels": ()}),
        )
        example = under("input/", under(GRAPH, self._graph(draft.golden)))
        write_model(draft.tree, described, draft.model, self.work.target.server, example=example)

    @cached_property
    def layer(self) -> Artifact:
        """The front's environment, packed once for all candidates."""
        progress("packing the environment of the model's front")
        with scratch_folder(Path(self.work.site.home)) as folder:
            front = self.work.store.fetch(self.front.files, folder / "front")
            (folder / "packed").mkdir()
            packed = pack_front_environment(folder / "packed", images=takes_images(front))
            return self.work.store.put_file(packed)

    @property
    def tensors(self) -> Signature | None:
        """The graph's, if it is served, too."""
        return self.work.exported.signature if self.serves_tensors else None


def _caller(described: ModelDescription) -> ModelDescription:
    """The configuration of a front that calls its graph: it runs in Python, on the CPU.

    It takes no resources of the rate limiter, because its graph would wait for them. It has no warm-up, because the
    graph has its own.
    """
    serving = described.serving.model_copy(update={"rate_limiter": None, "warmup": False})
    return replace(
        described, engine="python", gpu=False, gpus=(), instance_groups=(), padding=None, profiles={}, serving=serving
    )
