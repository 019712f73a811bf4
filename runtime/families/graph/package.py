"""The package of a graph: the candidate's model, or the original as TorchScript if PyTorch serves it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.families.graph import fil
from shiplift.runtime.families.graph.answers import GraphAnswers
from shiplift.runtime.families.packaging.draft import Draft
from shiplift.runtime.model.sequences import hide_states
from shiplift.runtime.model.tensors import Arrays, dump_npz, load_npz, under
from shiplift.runtime.proof.file import from_file, in_file, sets_in
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.guards import Guard
from shiplift.runtime.records.kinds.exported import ExportedGraph
from shiplift.runtime.records.kinds.package import GraphPackage
from shiplift.runtime.records.precision import Candidate
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.records.trees import TreesForm
from shiplift.runtime.serving.triton.config import positional
from shiplift.runtime.serving.triton.repository import write_package


class GraphMaker(GraphAnswers[ExportedGraph]):
    """Makes packages to which clients send tensors."""

    def visible(self) -> tuple[Signature, Mapping[str, TensorSpec]]:
        """The graph's signature, without the states of a model with sequences."""
        return hide_states(self.work.exported.signature, self.work.serving.sequence_batching)

    def servable(self, kept: Sequence[Candidate]) -> list[Candidate]:
        """All candidates; for models with states, only ONNX Runtime's, whose backend alone serves them."""
        offered = super().servable(kept)
        if not self.work.serving.sequence_batching:
            return offered
        target = self.work.target
        stateless = [candidate for candidate in offered if candidate.engine not in ("openvino", "trees")]
        if kept and not stateless:
            raise SpecInvalid(
                f"target {target.name} has `engine: {target.engine}`, which serves no models with states",
                do="Set `engine: onnxruntime`, or leave `serving.sequence_batching` out.",
            )
        return stateless

    def padding_problem(self, candidate: Candidate) -> str:
        """The general reasons, and that the requests of a sequence are not padded."""
        if self.work.serving.sequence_batching:
            return "the requests of a sequence are not padded"
        return super().padding_problem(candidate)

    def forest(self) -> TreesForm | None:
        """How the ensemble's trees answer."""
        return self.work.exported.trees.form if self.work.exported.trees else None

    def model_of(self, candidate: Candidate) -> Artifact:
        """The candidate's ONNX file or plan; TorchScript if PyTorch serves."""
        if not self.native:
            return super().model_of(candidate)
        if self.work.exported.torchscript is None:
            raise SpecInvalid(
                f"target {self.work.target.name} has `engine: pytorch`, but the model was exported only to ONNX",
                do="Set `export.torchscript: true`.",
            )
        return self.work.exported.torchscript

    def as_served(self, signature: Signature, inputs: Arrays, golden: Arrays) -> tuple[Signature, Arrays, Arrays]:
        """The same arrays. PyTorch's backend knows tensors by position, and NVIDIA's backend of trees one of each."""
        if self.work.target.engine == "trees" and self.work.target.server == "nvidia":
            return fil.as_served(signature, inputs, golden, self.forest())
        if not self.native:
            return signature, inputs, golden
        renamed, names = positional(signature)
        return (
            renamed,
            {names[f"input/{name}"].removeprefix("input/"): array for name, array in inputs.items()},
            {names[name]: array for name, array in golden.items()},
        )

    def write(self, draft: Draft) -> None:
        """Writes the model and its configuration."""
        write_package(
            draft.tree,
            draft.described,
            draft.model,
            self.work.target.server,
            example=draft.inputs,
            golden=draft.golden,
            guards=self._guards(),
        )

    def record(self, draft: Draft, common: dict[str, Any]) -> GraphPackage:
        """The record. It says whether requests belong to sequences."""
        return GraphPackage(**common, sequences=bool(draft.described.states), guards=self._guards())

    def _guards(self) -> tuple[Guard, ...]:
        """What the export proved to be in front of the graph."""
        return self.work.exported.proof.guards if self.work.exported.proof else ()

    def _named(self, asked: Arrays) -> Arrays:
        """Rows and answers in the names that clients of the target's server use."""
        tensors = {name: array for name, array in asked.items() if name.startswith(("input/", "output/"))}
        signature = self.work.exported.signature
        return self.as_served(signature, under("input/", tensors), tensors)[2]

    def served_questions(self) -> Artifact | None:
        """The proof's rows, in the names that the package has; none of a model with states, which rows don't have.

        Those that only guards refuse are left out for a server without any.
        """
        asked, work = self.work.exported.asked, self.work
        nvidia = work.target.server == "nvidia"
        renaming = self.native or (work.target.engine == "trees" and nvidia)
        unguarded = nvidia and bool(self._guards())
        if asked is None or self.visible()[1]:
            return None
        if not (renaming or unguarded):
            return asked
        arrays = load_npz(work.store.read(asked))
        arrays = _answered(arrays) if unguarded else arrays
        return work.store.put_bytes(dump_npz(self._renamed(arrays) if renaming else arrays))

    def _renamed(self, arrays: Arrays) -> Arrays:
        renamed: Arrays = {}
        for name in sets_in(arrays):
            own = under(f"{name}/", arrays)
            if all(f"output/{spec.name}" in own for spec in self.work.exported.signature.outputs):  # else no answers
                kept = {key: own[key] for key in ("errors", "origins")} | self._named(own)
                renamed |= {f"{name}/{key}": array for key, array in kept.items()}
        return renamed


def _answered(arrays: Arrays) -> Arrays:
    """The rows of a file of the proof that the original answers."""
    sets = {name: from_file(arrays, name) for name in sets_in(arrays)}
    rows = {name: np.flatnonzero(right.answered) for name, (_, right) in sets.items() if right.answered.any()}
    questions = {name: sets[name][0].take(at) for name, at in rows.items()}
    return in_file(
        {name: each.inputs for name, each in questions.items()},
        {name: sets[name][1].take(at) for name, at in rows.items()},
        {name: each.origins for name, each in questions.items()},
    )
