"""The rung of exact trees: nothing is built for it, and it is scored as all others are."""

from dataclasses import dataclass
from pathlib import Path

from shiplift.runtime.base.errors import MissingTool, QuantizeFailed
from shiplift.runtime.base.progress import progress
from shiplift.runtime.host.processor import usable_cores
from shiplift.runtime.precision.evaluation import Validation
from shiplift.runtime.precision.timing import RunnableCandidate, TimedForest
from shiplift.runtime.records.precision import Built
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.trees import TreesForm


@dataclass(frozen=True, kw_only=True)
class Trees:
    """The checkpoint of an ensemble, and how its scores become answers."""

    file: Path
    form: TreesForm


def scored(
    trees: Trees, signature: Signature, folder: str, validation: Validation
) -> tuple[Built, RunnableCandidate | None]:
    """The candidate, whose files are in `folder`, and what to time it with (None: it answers no numbers).

    Raises:
        MissingTool: this environment has no treelite.
        QuantizeFailed: the checkpoint is not a sound forest of the signature.
    """
    run = RunnableCandidate(
        file=trees.file,
        outputs=tuple(spec.name for spec in signature.outputs),
        engine="trees",
        forest=TimedForest(form=trees.form, signature=signature),
    )
    progress("scoring exact trees")
    evaluation = validation.evaluate(run.session(threads=usable_cores()))
    scores = evaluation.model_dump(include={"score", "score_error", "resamples", "samples", "relative_error"})
    fields = scores | {"slices": evaluation.slices, "dropped": evaluation.problem}
    built = Built(engine="trees", precision="fp32", method="as trained", folder=folder, **fields)
    return built, None if evaluation.problem else run


def without(problem: MissingTool | QuantizeFailed) -> Built:
    """The candidate that can't be had, with the reason."""
    return Built(engine="trees", precision="fp32", dropped=problem.what)
