"""The views that anybody may see: the models, a model, a release."""

import asyncio
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from shiplift.pipelines.page import plots
from shiplift.pipelines.page.actions import fitting
from shiplift.pipelines.page.addresses import number_in, text_in, version_in
from shiplift.pipelines.page.asking import CachedAnswer
from shiplift.pipelines.page.doors import Access
from shiplift.pipelines.page.figures import Figures
from shiplift.pipelines.page.overview import ModelRow
from shiplift.pipelines.page.reading import PageReader, Records
from shiplift.pipelines.page.rendering import render
from shiplift.runtime.base.errors import NotFound

_ROWS = 25
_TRENDS_S = 0.3
# A report has its style and its charts within it, and no script.
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox allow-same-origin"


class Views:
    """The handlers of the pages. They raise what `PageReader` raises, and `UsageError` for a wrong address."""

    def __init__(self, reading: PageReader, access: Access) -> None:
        self._reading, self._access = reading, access

    async def models(self, request: Request) -> Response:
        """Every model, a page of them at a time, and what is under way."""
        told = await self._reading.overview()
        sought = request.query_params.get("find", "")
        found = [row for row in told.value.models if sought.casefold() in row.model.casefold()]
        pages = max(1, -(-len(found) // _ROWS))
        number = min(number_in(request, "page", 1), pages)
        shown = found[(number - 1) * _ROWS : number * _ROWS]
        rows = [(row, _Trends.of(figures, row)) for row, figures in zip(shown, await self._figures(shown), strict=True)]
        ailing = [row for row in told.value.models if row.ails]
        variables = {"rows": rows, "found": len(found), "page": number, "pages": pages, "find": sought}
        return _page("models.html.j2", told, overview=told.value, ailing=ailing, **variables)

    async def model(self, request: Request) -> Response:
        """A model: its versions, and their figures."""
        told = await self._reading.model(text_in(request, "name"))
        figures = await self._reading.figures(told.value.model)
        happened = await self._reading.model_events(told.value.model)
        about = {
            "view": told.value,
            "happened": happened,
            "figures": figures,
            "charts": _charts(figures),
            "acts": self._access.acts,
        }
        return _page("model.html.j2", told, **about)

    async def release(self, request: Request) -> Response:
        """A version: its release under way, or how its newest one ended."""
        name, number = version_in(request)
        model = await self._reading.model(name)
        version = model.value.version(number)
        if version is None:
            raise NotFound(f"{name!r} has no version {number}", do="Go back to the model.")
        about = {"view": model.value, "version": version, "actions": fitting(version) if self._access.acts else {}}
        if version.under_way:
            return _page("under_way.html.j2", model, **about)
        try:
            told = await self._reading.records(name, number)
        except NotFound:
            return _page("not_released.html.j2", model, **about)
        return _page(
            "release.html.j2",
            told,
            records=told.value,
            chart=_search_chart(told.value),
            asks=self._access.acts,
            **about,
        )

    async def report(self, request: Request) -> Response:
        """The report page of a release, as the release wrote it."""
        name, number = version_in(request)
        told = await self._reading.records(name, number)
        text = await asyncio.to_thread(_file, told.value.report.report)
        return HTMLResponse(text, headers={"content-security-policy": _REPORT_POLICY})

    async def _figures(self, rows: list[ModelRow]) -> list[dict[int, Figures]]:
        """The figures of each row. Reports that only the registry has take many questions: they come with a reload."""
        return await asyncio.gather(*(self._reading.figures(row.model, patience_s=_TRENDS_S) for row in rows))


class _Trends:
    """What a row of the list shows of a model's figures: those of the champion, and how they developed."""

    def __init__(self, now: Figures | None, p99: Any, score: Any) -> None:
        self.now, self.p99, self.score = now, p99, score

    @classmethod
    def of(cls, figures: dict[int, Figures], row: ModelRow) -> "_Trends":
        """The trends of a model."""
        p99 = plots.trend(_p99(figures), "ms")
        return cls(figures.get(row.champion), p99, plots.trend(_scores(figures), ""))


def problem_page(title: str, what: str, do: str, *, again: bool = False) -> str:
    """A page that says what went wrong, and what to do; `again`: it loads itself again until that is over."""
    return render("problem.html.j2", title=title, what=what, do=do, again=again, told=None)


def _page(template: str, told: CachedAnswer[Any], **variables: Any) -> Response:
    return HTMLResponse(render(template, told=told, **variables))


def _charts(figures: dict[int, Figures]) -> list[tuple[str, Any]]:
    metric = next((each.metric for each in reversed(figures.values()) if each.metric), "score")
    charts = [
        ("p99 over versions", plots.over_versions("p99", "ms", _p99(figures))),
        (f"{metric} over versions", plots.over_versions(metric, "", _scores(figures))),
    ]
    return [(caption, chart) for caption, chart in charts if chart]


def _p99(figures: dict[int, Figures]) -> list[tuple[int, float]]:
    return [(version, each.p99_ms) for version, each in figures.items() if each.p99_ms is not None]


def _scores(figures: dict[int, Figures]) -> list[tuple[int, float]]:
    return [(version, each.score) for version, each in figures.items() if each.score is not None]


def _search_chart(records: Records) -> Any:
    if records.tuned is None:
        return ""
    return plots.search_chart(records.tuned, records.admitted.slo.p99_ms if records.admitted else None)


def _file(path: str) -> str:
    file = Path(path)
    if not path or not file.is_file():
        raise NotFound("this release has no report page", do="`shiplift rerun` writes one.")
    return file.read_text()
