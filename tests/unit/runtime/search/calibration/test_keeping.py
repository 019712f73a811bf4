from pathlib import Path

import pytest

from shiplift.runtime.records.calibration import Calibrating, Calibration
from shiplift.runtime.records.site import Site
from shiplift.runtime.search.calibration import keeping, measuring
from shiplift.runtime.store.tuning_cache import tuning_cache
from tests.unit import examples
from tests.unit.examples import calibration


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return examples.site(tmp_path)


def made(*, quick: bool = False, at: float = 0.0) -> Calibration:
    return calibration(quick=quick, measured_at=at)


def test_a_calibration_is_found_again_for_the_same_hardware_and_libraries(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping.keep(site, [["avx2"], 2], made(at=7))
    assert keeping.known(site, [["avx2"], 2]) == made(at=7)
    assert keeping.known(site, [["avx2"], 4]) is None
    monkeypatch.setattr(keeping, "versions", lambda: {"openvino": "2099.1"})
    assert keeping.known(site, [["avx2"], 2]) is None


def test_one_that_cannot_be_read_is_none(site: Site) -> None:
    keeping.keep(site, [], made())
    (file,) = Path(site.home, "calibration").rglob("*.json")
    with tuning_cache(site, f"calibration {file.parent.name}", file.parent) as folder:
        (folder / file.name).write_text('{"of": "another version"}')
    assert keeping.known(site, []) is None


@pytest.mark.parametrize(
    ("kept", "calibrating", "again"),
    [
        (None, Calibrating(), True),
        (made(), Calibrating(), False),
        (made(), Calibrating(quick=True), False),
        (made(), Calibrating(force=True), True),
        (made(quick=True), Calibrating(quick=True), False),
        (made(quick=True), Calibrating(), True),
    ],
)
def test_what_is_known_is_not_measured_again(
    kept: Calibration | None,
    calibrating: Calibrating,
    again: bool,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured(_: Site, *, quick: bool) -> Calibration:
        return made(quick=quick, at=9)

    monkeypatch.setattr(measuring, "measured", measured)
    if kept:
        keeping.keep(site, keeping.this_hardware(), kept)
    found = measuring.calibrated(site, calibrating)
    assert (found.measured_at == 9) == again
    assert keeping.known(site, keeping.this_hardware()) == found
