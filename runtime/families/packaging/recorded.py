"""Golden answers recorded by the export, for models that none of our engines can run in the sandbox."""

from collections.abc import Sequence

from shiplift.runtime.confinement.policy import SandboxLimits
from shiplift.runtime.confinement.workplace import Workplace
from shiplift.runtime.families.packaging.draft import GoldenAnswers
from shiplift.runtime.families.packaging.maker import E, Maker
from shiplift.runtime.model.tensors import GOLDEN_SAMPLES, batch_of
from shiplift.runtime.records.precision import Candidate


class RecordedMaker(Maker[E]):
    """Makes packages whose golden answers are the original's own."""

    def answers(self, place: Workplace, candidates: Sequence[Candidate], limits: SandboxLimits) -> list[GoldenAnswers]:  # noqa: ARG002
        """The recorded answers, the same for each candidate."""
        outputs = {spec.name: self.arrays[f"output/{spec.name}"] for spec in self.work.exported.signature.outputs}
        recorded = batch_of(outputs, GOLDEN_SAMPLES)
        return [GoldenAnswers(outputs=recorded, padding=self.refusal(candidate)) for candidate in candidates]
