"""Judges past releases again by another policy, from their stored measurements. It runs nothing.

A release stores the evidence for its verdict. The sections `policy`, `slo`, `quality` and `data` of the given file
replace those of the release's spec. Sections that the file leaves out stay as they were.
"""

from shiplift.pipelines.engines.protocol import Engine
from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.gates import policy
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.precision import Candidates
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.verdict import Check, GateEvidence, Outcome, Scored, Verdict
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.spec.document import ReleaseSpec, parse
from shiplift.runtime.spec.groups import Requirements
from shiplift.runtime.store.history import History
from shiplift.runtime.store.registry.terms import model_and_version

_SECTIONS = ("quality", "data", "slo", "policy", "rollout")


class Flip(Record):
    """A check whose verdict changes under the new policy. `before` or `after` is empty if only the other has the check.

    `reason` explains the new verdict.
    """

    name: str
    before: str
    after: str
    measured: float | None
    limit_before: float | None
    limit_after: float | None
    reason: str


class Replayed(Record):
    """A release judged again."""

    model: str
    version: int
    release: str
    before: Outcome
    after: Outcome
    checks: tuple[Check, ...]
    flips: tuple[Flip, ...]
    note: str = ""


class Replay(Record):
    """Every release judged again, newest first, and how many verdicts would change.

    `verified` is false if the signatures of the measurements could not be checked.
    """

    policy: str
    releases: tuple[Replayed, ...]
    flipped: int
    verified: bool = True

    @property
    def outcome(self) -> Outcome:
        """The newest release's verdict under the policy."""
        return self.releases[0].after


def replay(engine: Engine, name: str, file: str, text: str) -> Replay:
    """Judges a version's release (`MODEL/VERSION`), or all of a model's, by the sections of a spec's text.

    Raises:
        SpecInvalid: the text is not a valid spec.
        NotFound: the release does not exist, or it stored no evidence.
    """
    changed = parse(text)
    model, version = model_and_version(name)
    reports = [engine.report(model, version)] if version else engine.reports(model)
    judged = [_judged(engine, report, changed) for report in sorted(reports, key=lambda report: -report.version)]
    releases = tuple(release for release in judged if release)
    if not releases:
        raise NotFound(f"{name} has no release with stored measurements", do=f"Run `shiplift rerun {name}` first.")
    flipped = sum(release.before != release.after for release in releases)
    return Replay(policy=file, releases=releases, flipped=flipped, verified=engine.verified)


def _judged(engine: Engine, report: ReleaseReport, changed: ReleaseSpec) -> Replayed | None:
    history = engine.history(report)
    admitted, verdict = history.last(Admitted), history.last(Verdict)
    evidence = verdict.evidence if verdict else _early(report, history)
    if admitted is None or evidence is None:
        return None
    old = {name: getattr(admitted, name) for name in _SECTIONS}
    new = {name: getattr(changed, name) for name in _SECTIONS if name in changed.model_fields_set}
    old["shadow"] = admitted.promoting.shadow
    new |= {"shadow": changed.promotion.shadow} if "promotion" in changed.model_fields_set else {}
    before = policy.verdict(evidence, Requirements(**old))
    after = policy.verdict(evidence, Requirements(**old | new))
    return Replayed(
        model=report.model,
        version=report.version,
        release=report.release,
        before=before.outcome,
        after=after.outcome,
        checks=after.checks,
        flips=_flips(before, after),
        note="" if evidence.load_report else "the release ended before the load test: only quality is judged",
    )


def _early(report: ReleaseReport, history: History) -> GateEvidence | None:
    """The evidence of a release that ended because of its quality, before its load test."""
    exported, candidates = history.last(Exported), history.last(Candidates)
    if exported is None or candidates is None:
        return None
    best = next(iter(candidates.kept or candidates.candidates))
    scored = Scored(
        version=report.version,
        target=candidates.target,
        score=best.score,
        resamples=best.resamples,
        samples=best.samples,
        metric=candidates.metric,
        validation=candidates.validation,
        slices=best.slices,
    )
    return GateEvidence(parity=exported.parity, challenger=scored)


def _flips(before: Verdict, after: Verdict) -> tuple[Flip, ...]:
    old, new = ({check.name: check for check in verdict.checks} for verdict in (before, after))
    pairs = {name: (old.get(name), new.get(name)) for name in [*old, *new]}
    return tuple(_flip(name, was, now) for name, (was, now) in pairs.items() if _word(was) != _word(now))


def _flip(name: str, was: Check | None, now: Check | None) -> Flip:
    return Flip(
        name=name,
        before=_word(was),
        after=_word(now),
        measured=next(check.measured for check in (now, was) if check),
        limit_before=was.limit if was else None,
        limit_after=now.limit if now else None,
        reason=now.reason if now else "",
    )


def _word(check: Check | None) -> str:
    if check is None:
        return ""
    return f"{check.verdict} (warning)" if check.severity == "warn" else str(check.verdict)
