"""`shiplift gate`: past releases judged again under a changed policy, from what was measured then. Nothing is run.

A release keeps the evidence of its verdict; the file's sections `policy`, `slo`, `quality` and `data` take the place of
those it was released with, and sections that the file leaves out stay as they were.
"""

from pathlib import Path
from typing import TypeVar

from rich.table import Table
from rich.text import Text

from shiplift.pipelines.commands import console
from shiplift.pipelines.commands.releases import report_pages as pages
from shiplift.pipelines.engines.local import engine as control
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.gates import policy
from shiplift.runtime.gates.policy import Limits
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.model import Exported
from shiplift.runtime.records.precision import Candidates
from shiplift.runtime.records.release import ReleaseReport, stage_keys
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.verdict import Check, Evidence, Outcome, Scored, Verdict
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.spec.document import ReleaseSpec, parse
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry import Registry

R = TypeVar("R", bound=Record)
_SECTIONS = ("quality", "data", "slo", "policy")


class Flip(Record):
    """A check whose verdict is another one under the changed policy; `before` or `after` is empty where there is none.

    `reason` is that of the verdict after.
    """

    name: str
    before: str
    after: str
    measured: float | None
    limit_before: float | None
    limit_after: float | None
    reason: str


class Replayed(Record):
    """One release judged again."""

    model: str
    version: int
    release: str
    before: Outcome
    after: Outcome
    checks: tuple[Check, ...]
    flips: tuple[Flip, ...]
    note: str = ""


class Replay(Record):
    """Every release judged again, newest first, and how many verdicts would be another."""

    policy: str
    releases: tuple[Replayed, ...]
    flipped: int

    @property
    def outcome(self) -> Outcome:
        """The newest release's verdict under the policy."""
        return self.releases[0].after


def replay(home: Path, name: str, file: str, text: str) -> Replay:
    """One version's release (`MODEL/VERSION`), or all of a model's, judged by the sections of a spec's text.

    Raises:
        SpecInvalid: the text is no spec.
        NotFound: there is no such release, or it kept no evidence.
    """
    changed = parse(text)
    model, version = control.split(name)
    reports = [control.report_of(home, model, version)] if version else _all(home, model)
    found = [_one(home, report, changed) for report in reports]
    replayed = tuple(one for one in found if one)
    if not replayed:
        raise NotFound(f"{name} has no release with kept measurements", do=f"Run `shiplift rerun {name}` first.")
    return Replay(policy=file, releases=replayed, flipped=sum(one.before != one.after for one in replayed))


def _all(home: Path, model: str) -> list[ReleaseReport]:
    """The newest report of each version that was released."""
    releases = Releases(home)
    versions = {done.version for name in releases.of(model) if (done := releases.result(name))}
    if not versions:
        versions = {info.version for info in Registry(stack.require(home).registry_uri).versions(model)}
    found = []
    for version in sorted(versions, reverse=True):
        try:
            found.append(control.report_of(home, model, version))
        except NotFound:  # registered, and never released
            continue
    return found


def _one(home: Path, report: ReleaseReport, changed: ReleaseSpec) -> Replayed | None:
    ledger = Ledger(pages.site_of(home), Request(model=report.model, version=report.version))
    keys = stage_keys(report.stages)

    def kept(stage: str, kind: type[R]) -> R | None:
        return ledger.recall(keys[stage], stage, kind) if stage in keys else None

    admitted = kept("admit", Admitted)
    given = kept("gate", Verdict)
    exported, candidates = kept("export", Exported), kept("quantize", Candidates)
    evidence = given.evidence if given else _early(report, exported, candidates)
    if admitted is None or evidence is None:
        return None
    then = {name: getattr(admitted, name) for name in _SECTIONS}
    now = {name: getattr(changed, name) for name in _SECTIONS if name in changed.model_fields_set}
    before = policy.verdict(evidence, Limits(**then))
    after = policy.verdict(evidence, Limits(**then | now))
    return Replayed(
        model=report.model,
        version=report.version,
        release=report.release,
        before=before.outcome,
        after=after.outcome,
        checks=after.checks,
        flips=_flips(before, after),
        note="" if evidence.load_report else "it ended before it was measured under load: only its quality is judged",
    )


def _early(report: ReleaseReport, exported: Exported | None, candidates: Candidates | None) -> Evidence | None:
    """What is known of a release whose quality stopped it."""
    if exported is None or candidates is None:
        return None
    best = next(iter(candidates.kept or candidates.candidates))
    scored = Scored(
        version=report.version,
        target=candidates.target,
        score=best.score,
        samples=best.samples,
        metric=candidates.metric,
        validation=candidates.validation,
        slices=best.slices,
    )
    return Evidence(parity=exported.parity, challenger=scored)


def _flips(before: Verdict, after: Verdict) -> tuple[Flip, ...]:
    old, new = ({check.name: check for check in one.checks} for one in (before, after))
    return tuple(
        Flip(
            name=name,
            before=_word(one),
            after=_word(other),
            measured=next(c.measured for c in (other, one) if c),
            limit_before=one.limit if one else None,
            limit_after=other.limit if other else None,
            reason=other.reason if other else "",
        )
        for name in dict.fromkeys([*old, *new])
        if _word(one := old.get(name)) != _word(other := new.get(name))
    )


def _word(check: Check | None) -> str:
    if check is None:
        return ""
    return f"{check.verdict} (warning)" if check.severity == "warn" else str(check.verdict)


def show(found: Replay) -> None:
    """The releases, what would flip, and why, on stdout."""
    for one in found.releases:
        arrow = f"{one.before} -> {one.after}" if one.before != one.after else f"{one.after}, as before"
        console.stdout.print(
            Text.assemble((arrow, console.style(str(one.after))), f"  {one.model} version {one.version}")
        )
        if one.note:
            console.stdout.print(one.note, markup=False)
        if one.flips:
            console.stdout.print(_table(one.flips))
    console.stdout.print(f"{found.flipped} of {len(found.releases)} verdicts would flip", markup=False)


def _table(flips: tuple[Flip, ...]) -> Table:
    table = Table(
        "check", "before", "after", "measured", "limit", "why", box=None, padding=(0, 3, 0, 0), header_style="dim"
    )
    for flip in flips:
        limits = f"{console.number(flip.limit_before)} -> {console.number(flip.limit_after)}"
        table.add_row(
            flip.name, flip.before or "-", flip.after or "-", console.number(flip.measured), limits, flip.reason
        )
    return table
