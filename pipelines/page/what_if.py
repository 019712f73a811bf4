"""What if: past releases judged by other limits, from what was measured then. It runs and changes nothing."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from shiplift.pipelines.page.addresses import text_in
from shiplift.pipelines.page.reading import PageReader
from shiplift.pipelines.page.rendering import render
from shiplift.runtime.base.errors import NotFound, ShipliftError, UsageError
from shiplift.runtime.spec.admitted import Admitted


@dataclass(frozen=True, kw_only=True)
class LimitField:
    """A limit that the form asks for: its place in a spec, what it is for people, and its value now (empty: none)."""

    section: str
    field: str
    label: str
    value: str = ""

    @property
    def name(self) -> str:
        """Its name in the form."""
        return f"{self.section}.{self.field}"


_LIMITS = (
    LimitField(section="slo", field="p99_ms", label="p99 at most, in ms"),
    LimitField(section="slo", field="throughput_per_s", label="throughput at least, in inferences per second"),
    LimitField(section="slo", field="memory_mb", label="memory at most, in MiB"),
    LimitField(section="quality", field="min_score", label="score: at least, or at most for a loss"),
)


class WhatIf:
    """The handler of "what if". The address has the limits, so an answer can be shared."""

    def __init__(self, reading: PageReader) -> None:
        self._reading = reading

    async def show(self, request: Request) -> Response:
        """The form with the newest release's limits; with limits, how they would have judged the releases."""
        name = text_in(request, "name")
        admitted = await self._reading.limits(name)
        given = {each.name: request.query_params[each.name] for each in _LIMITS if each.name in request.query_params}
        replayed, wrong = None, ""
        if given:
            try:
                told = await self._reading.replay(name, spec_of(admitted, given))
                replayed = told.value
            except NotFound:
                raise
            except ShipliftError as error:
                wrong = str(error)
        about = {"name": name, "limits": limits_of(admitted, given), "replay": replayed, "wrong": wrong}
        return HTMLResponse(render("what_if.html.j2", told=None, **about))


def limits_of(admitted: Admitted, given: Mapping[str, str]) -> tuple[LimitField, ...]:
    """The limits of the form: those given, else those of a release."""
    return tuple(replace(each, value=given.get(each.name, _now(admitted, each))) for each in _LIMITS)


def spec_of(admitted: Admitted, given: Mapping[str, str]) -> str:
    """A spec with a release's sections, in which the limits are those given; empty ones are left out.

    Raises:
        UsageError: one is not a finite number.
    """
    sections: dict[str, dict[str, Any]] = {
        section: getattr(admitted, section).model_dump(mode="json", exclude_defaults=True)
        for section in ("slo", "quality")
    }
    for limit in _LIMITS:
        text = given.get(limit.name, _now(admitted, limit)).strip()
        sections[limit.section].pop(limit.field, None)
        if text:
            sections[limit.section][limit.field] = _number(limit, text)
    return str(yaml.safe_dump(sections))


def _now(admitted: Admitted, limit: LimitField) -> str:
    value = getattr(getattr(admitted, limit.section), limit.field)
    return "" if value is None else f"{value:.12g}"


def _number(limit: LimitField, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{limit.label}: {text[:50]!r} is not a number", do="Correct it, or leave it empty.")
    return number
