"""The shadow's step: when it copies requests, when not, and which results are kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.shadowing import Shadowed
from shiplift.runtime.spec.groups import Requirements, Shadowing
from shiplift.runtime.spec.measurement import Slo
from shiplift.runtime.spec.model import Data, Quality
from shiplift.runtime.spec.rules import Policy
from shiplift.runtime.spec.shadowing import Shadow
from shiplift.steps import shadow as module
from tests.unit.examples import champion, comparison, deployment, exported, load_report, point, site

WANTED = Shadow.model_validate({"for": 0.01, "min_requests": 1})
MEASURED = load_report(point(), comparison=comparison())
SEEN = Shadowed(champion=1, requests=500, p99_ratios=(1.0, 1.0), uncompared="it is not")


class Place:
    """A place that has seen a shadow."""

    def __init__(self, seen: Shadowed) -> None:
        self.seen, self.begun = seen, 0

    @contextmanager
    def mirroring(self, *_: object) -> Iterator["Place"]:
        self.begun += 1
        yield self

    def look(self) -> Shadowed:
        return self.seen


def shadowed(
    home: Path,
    seen: Shadowed = SEEN,
    *,
    wanted: Shadow | None = WANTED,
    slo: Slo | None = None,
    before: Champion | None = None,
    serves: int = 1,
) -> tuple[Shadowed, int]:
    place = Place(seen)
    limits = Requirements(quality=Quality(), data=Data(), slo=slo or Slo(), policy=Policy(), shadow=wanted)
    with (
        mock.patch.object(module, "shadow_place", return_value=place),
        mock.patch.object(module, "production") as production,
    ):
        production.return_value.serving.return_value = serves
        known = champion() if before is None else before
        found = module.shadow(site(home), Shadowing.of(limits), exported(), deployment(), MEASURED, known)
    return found, place.begun


def test_without_the_section_nothing_happens(tmp_path: Path) -> None:
    assert shadowed(tmp_path, wanted=None) == (Shadowed(), 0)


def test_a_version_that_another_check_refuses_is_not_shadowed_and_a_rerun_looks_again(tmp_path: Path) -> None:
    found, begun = shadowed(tmp_path, slo=Slo(p99_ms=0.001))
    assert (found.champion, found.momentary, begun) == (0, True, 0)


@pytest.mark.parametrize(("before", "serves"), [(Champion(), 0), (None, 0), (None, 7)])
def test_without_a_champion_there_is_nothing_to_shadow(tmp_path: Path, before: Champion | None, serves: int) -> None:
    found, begun = shadowed(tmp_path, before=before, serves=serves)
    assert begun == 0
    assert found.why_not.startswith("there is nothing to shadow")
    assert not found.momentary


def test_a_shadow_that_passes_is_kept_and_another_one_is_made_again(tmp_path: Path) -> None:
    assert not shadowed(tmp_path, SEEN)[0].momentary
    assert shadowed(tmp_path, SEEN.model_copy(update={"failed": 100}))[0].momentary
