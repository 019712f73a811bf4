"""The forms of a version, from the fastest to the surest: the first that is proved right serves it.

`export_graph` tries those of a graph in one go, since they share a conversion. Where none is right, the library that
wrote the model serves it as it was logged. Its environment is made only then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shiplift.runtime.base import advice
from shiplift.runtime.base.errors import (
    ExportFailed,
    NotAdmitted,
    PolicyRefused,
    SandboxLimit,
    ShipliftError,
    SpecInvalid,
)
from shiplift.runtime.base.progress import progress
from shiplift.runtime.families.graph.export import export_graph
from shiplift.runtime.families.python.checks import check_python
from shiplift.runtime.families.python.export import export_python
from shiplift.runtime.families.work import Exporting
from shiplift.runtime.records.kinds.contract import DeclaredGraph
from shiplift.runtime.records.kinds.exported import Exported, ExportedGraph
from shiplift.runtime.records.model import FALL_BACK, Obstacle
from shiplift.runtime.records.proof import Form
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.document import ReleaseSpec

_BY_ITS_LIBRARY = (
    "Warning: the model's own library serves it, as fast as mlflow.pyfunc and without lower precisions, since no graph "
    "is right."
)
_CODE = "it would run the author's code in production ({})"

Work = Exporting[DeclaredGraph]


@dataclass(frozen=True, kw_only=True)
class FormRung:
    """A form to try: what makes it, why it is out of the question (None: it isn't), and what a report says of it."""

    form: Form
    make: Callable[[Work], Exported]
    obstacle: Callable[[Work], Obstacle | None] = lambda _: None
    notes: tuple[str, ...] = ()


RUNGS = (
    FormRung(form=Form(name="FP32 graph"), make=export_graph),
    FormRung(
        form=Form(name="Python"),
        make=export_python,
        obstacle=lambda work: work.contract.no_python,
        notes=(_BY_ITS_LIBRARY,),
    ),
)


def rungs_of(work: Work) -> Sequence[FormRung]:
    """The forms to try: Python is none where the spec or the flavor excludes it."""
    falls_back = work.conversion.fallback != "none" and work.version.flavor in FALL_BACK
    return RUNGS if falls_back else RUNGS[:1]


def export_first(work: Work, rungs: Sequence[FormRung]) -> Exported:
    """The first form that is proved right, with those that were dropped before it.

    One that answers rows which the original refuses is served where the next ones can't. One that takes more memory or
    time than the spec allows is dropped, too, unless it is the last.

    Raises:
        ExportFailed: none is; the message has each reason.
        SandboxLimit: the last one takes more memory or time than the spec allows.
    """
    dropped: list[Form] = []
    refusals: list[ShipliftError] = []
    answering: Exported | None = None
    for rung in rungs:
        try:
            made = _made(work, rung)
        except (ExportFailed, NotAdmitted, PolicyRefused, SandboxLimit) as error:
            if isinstance(error, SandboxLimit) and rung is rungs[-1]:
                raise
            refusals.append(error)
            dropped.append(rung.form.model_copy(update={"dropped": error.what}))
            progress(f"{rung.form.name} is dropped: {error.what}")
            continue
        if rung is not rungs[-1] and (found := _unrefused(made)):
            answering = made
            dropped += [each if each.dropped else each.model_copy(update={"dropped": found}) for each in made.forms]
            progress(f"{rung.form.name} serves only if nothing else can: {found}")
            continue
        forms = (*dropped, *(made.forms or (rung.form,)))
        return made.model_copy(update={"forms": forms, "notes": (*rung.notes, *made.notes)})
    if answering:
        return answering
    raise _refusal(dropped, refusals) from refusals[-1]


def _unrefused(made: Exported) -> str:
    """A row that clients may well send, and that the form answers though the original raises; empty if there is none.

    No guard parts such rows from others. The model's own library raises itself. Without it, a note warns of them.
    """
    found = made.proof.unrefused if isinstance(made, ExportedGraph) and made.proof else None
    return f"it answers what the model refuses: {found}" if found and found.likely else ""


def no_python(site: Site, spec: ReleaseSpec, own_code: str, unread: Obstacle | None) -> Obstacle | None:
    """Why a model's own library can't serve it; None: it can.

    `own_code` is the author's code that this would run, empty if the model is data alone. `unread` says what of the
    model can't be read.
    """
    if own_code and spec.admission.python != "sandbox":
        return Obstacle(what=_CODE.format(own_code), do=_one_line(site, spec))
    if unread:
        return unread
    if spec.export.preprocess:
        return Obstacle(what="it takes pixels, no files (`export.preprocess`)", do="Leave `export.preprocess` out.")
    try:
        check_python(site, spec)
    except (NotAdmitted, SpecInvalid) as error:
        return Obstacle(what=error.what, do=error.do)
    return None


def _one_line(site: Site, spec: ReleaseSpec) -> str:
    modes = {"pickle": spec.admission.pickle, "python": "sandbox"}
    line = ", ".join(f"{name}: {mode}" for name, mode in modes.items() if mode == "sandbox")
    if "sandbox" in site.policy.python:
        return f"Write `admission: {{{line}}}` in the spec."
    return f"This site allows no `admission: {{{line}}}`: ask its owner for `policy.python`, or log the model as data."


def _made(work: Work, rung: FormRung) -> Exported:
    """One form.

    Raises:
        ExportFailed, NotAdmitted, PolicyRefused: it can't serve the model, or is not right.
    """
    if obstacle := rung.obstacle(work):
        raise ExportFailed(obstacle.what, do=obstacle.do)
    return rung.make(work)


def _refusal(dropped: Sequence[Form], refusals: Sequence[ShipliftError]) -> ExportFailed:
    """All reasons as one error, with what to do about each."""
    first, *others = dropped
    if refusals[0].do in advice.OF_THE_MODEL:
        return ExportFailed(first.dropped.rstrip("."), do=refusals[0].do)
    also = (f"; its own library can't serve it either: {each.dropped.rstrip('.')}" for each in others)
    do = (f" Or let its own library serve it: {each.do}" for each in refusals[1:])
    return ExportFailed(first.dropped.rstrip(".") + "".join(also), do=refusals[0].do + "".join(do))
