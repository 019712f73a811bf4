"""A package for each candidate that can pass, for every kind of model.

The quality gates are applied here too, against the limit and the champion's score: a precision that can't pass is not
packaged, and if none can pass, the release ends before the load test.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shiplift.runtime.base.progress import progress
from shiplift.runtime.confinement.policy import EVALUATE, Entry
from shiplift.runtime.confinement.workplace import workplace
from shiplift.runtime.families.packaging.maker import Maker
from shiplift.runtime.families.work import Packaging
from shiplift.runtime.gates.judge import Judge
from shiplift.runtime.gates.quality import jpeg_notes, scored
from shiplift.runtime.precision.limits import limits_of
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.verdict import Outcome, Packages
from shiplift.runtime.serving.packaging.earlier_versions import Incumbent
from shiplift.runtime.serving.triton.repository import has_guards

ANSWER = Entry("shiplift.runtime.model.golden:answer_golden", EVALUATE)


def judged_packages(work: Packaging[Any], maker: Maker[Any]) -> Packages:
    """One package per kept candidate that can pass, in order, with the configuration that tuning starts from.

    Raises:
        StorageFull: no space is left.
        ArtifactCorrupt: a model is missing or altered.
        QuantizeFailed: a TensorRT plan is for another target.
        SandboxLimit: answering the golden requests takes more memory or time than the spec allows.
        SpecInvalid: the spec asks for something that the model or the target lacks.
    """
    target, candidates = work.target.name, work.candidates
    judge = _judge(work)
    checks = judge.verdict(work.exported.parity)
    if any(check.verdict is not Outcome.PASS for check in checks):
        return Packages(target=target, packages=(), checks=checks)
    maker.check_lengths()
    servable = [each for each in maker.servable(candidates.kept) if each.model is not None and judge.passes(each)]
    limits = limits_of(work.quantization, "answering the golden requests", work.site.policy)
    with workplace(ANSWER, Path(work.site.home), work.site.sandbox) as place:
        answered = maker.answers(place, servable, limits)
        progress("writing the packages")
        incumbent = _incumbent(work, place.folder / "champion")
        packages = tuple(
            maker.make(place.folder / f"package-{index}", candidate, answered[index], incumbent)
            for index, candidate in enumerate(servable)
        )
    notes = (*judge.notes(), *jpeg_notes(candidates.jpegs), *_refusals(packages), *_unguarded(work))
    return Packages(target=target, packages=packages, checks=checks, notes=notes)


def _judge(work: Packaging[Any]) -> Judge:
    before = work.champion.package
    return Judge(
        version=work.version.version,
        target=work.target.name,
        candidates=work.candidates,
        quality=work.quality,
        data=work.data,
        champion=scored(before) if before else None,
        worse=work.score_target.worse,
    )


def _incumbent(work: Packaging[Any], to: Path) -> Incumbent | None:
    """Fetches the champion's package into a folder, if earlier versions are to be served beside the new one.

    If the version is the champion itself, the package is its own, and the same earlier versions are served again.
    """
    before = work.champion.own or work.champion.package
    if before is None or not work.serving.keeps_versions:
        return None
    return Incumbent(package=before, tree=work.store.fetch(before.repository, to))


def _unguarded(work: Packaging[Any]) -> Iterator[str]:
    """A warning if the target's server lacks the guards that the export proved."""
    guarded = any(form.guarded and not form.dropped for form in work.exported.forms)
    if guarded and not has_guards(work.serving, work.target.server):
        yield "Warning: this server has no guards: it may answer rows that the model refuses"


def _refusals(packages: Sequence[Package]) -> Iterator[str]:
    """Why packages lack what the spec asks for; engines often share a reason."""
    refused: dict[tuple[str, str], list[str]] = {}
    for built in packages:
        if built.padding and built.padding.refused and not built.padding.buckets:
            refused.setdefault(("no buckets of lengths for ", built.padding.refused), []).append(built.described)
        if built.earlier.refused:
            refused.setdefault(("", built.earlier.refused), []).append(built.described)
    for (what, reason), names in refused.items():
        yield f"{what}{', '.join(names)}: {reason}"
