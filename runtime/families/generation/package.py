"""The package of a model that continues texts: an engine, the code around it, and the weights that it reads."""

from typing import Any

import numpy as np

from shiplift.runtime.families.packaging.draft import Draft, GoldenAnswers
from shiplift.runtime.families.packaging.questions import of_reference
from shiplift.runtime.families.packaging.recorded import RecordedMaker
from shiplift.runtime.model.generation.signature import ROOM, SURE
from shiplift.runtime.model.tensors import GOLDEN_SAMPLES, Arrays, batch_of, dump_npz
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.kinds.exported import ExportedGeneration
from shiplift.runtime.records.kinds.package import GenerationPackage
from shiplift.runtime.records.precision import Candidate
from shiplift.runtime.serving.packaging.generation_backend import write_generation_backend
from shiplift.runtime.serving.triton.repository import write_package


class GenerationMaker(RecordedMaker[ExportedGeneration]):
    """Makes packages that stream texts."""

    def padding_problem(self, candidate: Candidate) -> str:  # noqa: ARG002 - the same for each engine
        """Says that such a model needs no buckets."""
        return "a model that generates text already batches prompts of any length"

    def requests(self, answered: GoldenAnswers) -> tuple[Arrays, Arrays]:
        """The prompts; the golden ones come with the room that the context has after each."""
        inputs, golden = super().requests(answered)
        room = batch_of({ROOM: self.arrays[ROOM]}, GOLDEN_SAMPLES) if ROOM in self.arrays else {}
        return inputs, golden | room

    def served_questions(self) -> Artifact | None:
        """The prompts whose most likely tokens rounding can't change; none for engines that compute in 16 bits."""
        sure = np.flatnonzero(self.arrays[SURE]) if SURE in self.arrays else ()
        if self.work.target.writes or not len(sure):
            return None
        asked = {name: array[sure] for name, array in self.arrays.items()}
        return self.work.store.put_bytes(dump_npz(of_reference(asked, self.visible()[0])))

    def write(self, draft: Draft) -> None:
        """Writes the engine, with OpenVINO's model or with the weights as they were logged."""
        work, writes = self.work, self.work.target.writes
        logged = work.store.fetch(work.version.files, draft.folder / "logged") if writes else None
        write_package(
            draft.tree,
            draft.described,
            None if writes else draft.model,
            work.target.server,
            example=draft.inputs,
            golden=draft.golden,
            backend=write_generation_backend(draft.folder / "backend", draft.model, draft.candidate.engine, logged),
        )

    def record(self, draft: Draft, common: dict[str, Any]) -> GenerationPackage:  # noqa: ARG002 - the same for each draft
        """The record, which has no fields of its own."""
        return GenerationPackage(**common)
