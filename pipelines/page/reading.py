"""What each view asks the engine, through `AnswerCache`: the answers of `shiplift status` and `shiplift report`."""

from dataclasses import dataclass

from shiplift.pipelines.engines.protocol import Engine
from shiplift.pipelines.engines.replay import Replay, replay
from shiplift.pipelines.page.asking import AnswerCache, CachedAnswer
from shiplift.pipelines.page.figures import Figures, figures_of
from shiplift.pipelines.page.overview import ModelView, Overview, model_view, overview_of
from shiplift.runtime.base.errors import NotFound, ShipliftError, Temporary
from shiplift.runtime.events.event import ModelEvent
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import LoadReport, Tuned
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.store.registry.terms import check_name

_EVENTS = 10
_PATIENT = 5  # times of the patience that other questions get
_REPORTS_S = 10.0  # releases end rarely, and a model may have many


@dataclass(frozen=True, kw_only=True)
class Records:
    """A release's report, and what is still known of its records; `missing` says why they can't be read.

    `forms` are the names of those that were packaged, as in `shiplift ask --form`.
    """

    report: ReleaseReport
    admitted: Admitted | None = None
    exported: Exported | None = None
    tuned: Tuned | None = None
    package: Package | None = None
    load_report: LoadReport | None = None
    forms: tuple[str, ...] = ()
    missing: str = ""

    @property
    def kind(self) -> str:
        """The kind of model; empty: unknown."""
        known = self.package or (self.admitted and self.admitted.contract)
        return known.kind if known else ""


class PageReader:
    """The answers for the views of one engine. Methods raise what `AnswerCache.ask` raises."""

    def __init__(self, engine: Engine, asking: AnswerCache) -> None:
        self._engine, self._asking = engine, asking

    def forget(self) -> None:
        """Makes the next view ask again: something was changed."""
        self._asking.forget()

    async def overview(self) -> CachedAnswer[Overview]:
        """The first page."""
        return await self._asking.ask("overview", lambda: overview_of(self._engine.status(None)))

    async def model(self, name: str) -> CachedAnswer[ModelView]:
        """A model and its versions."""
        check_name(name)
        return await self._asking.ask(("model", name), lambda: model_view(name, self._engine.status(name)))

    async def figures(self, name: str, *, patience_s: float | None = None) -> dict[int, Figures]:
        """The figures of a model's versions; empty if they can't be read, or not within `patience_s`."""
        return figures_of(await self.reports(name, patience_s=patience_s))

    async def reports(self, name: str, *, patience_s: float | None = None) -> list[ReleaseReport]:
        """The newest report of each of a model's versions; empty if they can't be read, or not within `patience_s`."""
        try:
            told = await self._asking.ask(
                ("reports", name), lambda: self._engine.reports(name), fresh_s=_REPORTS_S, patience_s=patience_s
            )
        except ShipliftError:
            return []
        return told.value

    async def model_events(self, name: str) -> tuple[ModelEvent, ...]:
        """What happened to a model lately, the newest first; empty if that can't be read."""

        def asked() -> tuple[ModelEvent, ...]:
            return tuple(self._engine.model_events(name, newest=_EVENTS, follow=False))

        try:
            told = await self._asking.ask(("model_events", name), asked)
        except ShipliftError:
            return ()
        return tuple(reversed(told.value))

    async def served(self, name: str) -> ServedModel:
        """Where a model answers MLflow's clients, and what it takes.

        Raises:
            NotFound: production does not serve it there.
        """
        told = await self._asking.ask("served", self._engine.discover_all)
        for each in told.value:
            if each.model == name and each.invocations:
                return each
        raise NotFound(f"production does not serve {name!r}", do="Release a version of it first.")

    async def kind(self, name: str, version: int) -> str:
        """The kind of a version's model; empty: it can't be read. A form depends on it, so it is waited for."""
        for _ in range(_PATIENT):
            try:
                return (await self.records(name, version)).value.kind
            except Temporary:  # records are many small files, which a busy machine takes seconds to read
                continue
            except ShipliftError:
                break
        return ""

    async def limits(self, name: str) -> Admitted:
        """The sections of a model's newest release whose spec is known, with its limits.

        Raises:
            NotFound: there is none.
        """
        check_name(name)
        return (await self._asking.ask(("limits", name), lambda: self._limits(name))).value

    async def replay(self, name: str, spec: str) -> CachedAnswer[Replay]:
        """A model's releases, judged by other sections of a spec."""
        return await self._asking.ask(("replay", name, spec), lambda: replay(self._engine, name, "what if", spec))

    def _limits(self, name: str) -> Admitted:
        for report in sorted(self._engine.reports(name), key=lambda each: -each.version):
            if admitted := self._engine.history(report).last(Admitted):
                return admitted
        raise NotFound(f"{name!r} has no release whose limits are known", do="Release a version of it first.")

    async def records(self, name: str, version: int) -> CachedAnswer[Records]:
        """How a version's newest release ended, and its records."""
        check_name(name)
        return await self._asking.ask(("records", name, version), lambda: self._records(name, version))

    def _records(self, name: str, version: int) -> Records:
        report = self._engine.report(name, version)
        try:
            history = self._engine.history(report)
            packages = history.last(Packages)
            return Records(
                report=report,
                admitted=history.last(Admitted),
                exported=history.last(Exported),
                tuned=history.last(Tuned),
                package=history.package,
                load_report=history.last(LoadReport),
                forms=tuple(each.variant for each in packages.packages) if packages else (),
            )
        except ShipliftError as error:
            return Records(report=report, missing=str(error))
