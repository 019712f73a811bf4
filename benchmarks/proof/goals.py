"""The goals of issue 42, and which of them results miss."""

import fnmatch
from collections.abc import Iterator, Sequence

from benchmarks.proof.results import Depth, Result, Results

_MODELS = {"a": 40, "c": 60}
_SABOTAGES, _UNCAUGHT = 60, 1
_SHARE, _SECONDS = 0.1, 3.0  # of a release's time, or in all


def missed(results: Results, parts: str, only: Sequence[str] = ()) -> list[str]:
    """The goals that the results miss; numbers of models count only if all were to be run."""
    depth: Depth = "released" if any(result.depth == "released" for result in results.cases) else "exported"
    cases = [result for result in results.cases if result.depth == depth and _fits(result.name, only)]
    return [
        *(line for part in "ac" if part in parts for line in _of_models(part, cases, whole=not only)),
        *(_of_sabotages(results, only) if "b" in parts else ()),
        *(_of_time(cases) if "d" in parts and depth == "released" else ()),
    ]


def _fits(name: str, only: Sequence[str]) -> bool:
    return not only or any(fnmatch.fnmatchcase(name, pattern) for pattern in only)


def _of_models(part: str, cases: Sequence[Result], *, whole: bool) -> Iterator[str]:
    own = [result for result in cases if result.part == part]
    if whole and len(own) < _MODELS[part]:
        yield f"part {part} has {len(own)} models, the goal is {_MODELS[part]}"
    for result in own:
        if not result.good:
            yield f"{result.name}: {result.outcome}: {result.first or result.reason}"


def _of_sabotages(results: Results, only: Sequence[str]) -> Iterator[str]:
    own = [sabotage for sabotage in results.sabotages if _fits(sabotage.model, only)]
    uncaught = [sabotage for sabotage in own if not sabotage.caught]
    if not only and len(own) < _SABOTAGES:
        yield f"there are {len(own)} sabotages, the goal is {_SABOTAGES}"
    if len(uncaught) > _UNCAUGHT * max(1, len(own) // _SABOTAGES):
        yield from (f"{sabotage.name}: not caught: {sabotage.what}" for sabotage in uncaught)


def _of_time(cases: Sequence[Result]) -> Iterator[str]:
    for result in cases:
        if result.proof_seconds > max(_SECONDS, _SHARE * result.seconds):
            yield f"{result.name}: the proof took {result.proof_seconds:g} s of {result.seconds:g} s"
