"""How a release ended, in the words of its report."""

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.gates.report import Story
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.release import Ending
from shiplift.runtime.records.verdict import Outcome, Verdict


def not_served(ending: Ending, deployed: tuple[str, ...]) -> tuple[str, ...]:
    """The targets that a stage ran for or was skipped for, except the deployed ones."""
    names = dict.fromkeys(run.target for run in ending.stages if run.target)
    return tuple(name for name in names if name not in deployed) if deployed else ()


def outcome_of(ending: Ending, *, promoted: bool) -> tuple[Outcome, int, str]:
    """The outcome of a release, the exit code of its command, and the reason."""
    if ending.failure:
        outcome = Outcome.FAIL if ending.failure.about_model else Outcome.INCONCLUSIVE
        return outcome, ending.failure.exit_code, ending.failure.message
    verdict: Verdict | None = ending.verdict
    if verdict and verdict.outcome is not Outcome.PASS:
        return verdict.outcome, verdict.outcome.exit_code, "; ".join(verdict.reasons)
    if promoted:
        return Outcome.PASS, Outcome.PASS.exit_code, "every check passed"
    return Outcome.INCONCLUSIVE, ShipliftError.exit_code, "it did not finish"


def proof_seconds(ending: Ending, story: Story) -> float:
    """How long this release's export and tuning proved; a cached stage proved nothing anew."""
    ran = {run.name for run in ending.stages if not run.cached}
    served = story.package.proof if story.package else None
    seconds = {
        Exported.parameter(): story.exported.proof_seconds if story.exported else 0.0,
        Tuned.parameter(): served.seconds if served else 0.0,
    }
    return round(sum(each for record, each in seconds.items() if ending.givers.get(record) in ran), 3)
