"""An order to retire a model outlives its command, once it has begun."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shiplift.pipelines.engines.local import retiring
from shiplift.runtime.base.errors import NotFound, StillInUse, Temporary
from shiplift.runtime.records.retirement import Retired, Retirement, Retiring
from shiplift.runtime.records.site import Site
from tests.unit.examples import site

ORDER = Retiring(retirement=Retirement(by="ana", reason="replaced", at=1e9))


class Room:
    """A machine whose next attempts to retire a model end as `endings` say; further ones succeed."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, *endings: BaseException) -> None:
        self.site: Site = site(home)
        self.endings, self.asked, self.told = list(endings), list[Retiring](), list[str]()
        self.begun = True
        monkeypatch.setattr(retiring, "retire", self._retire)
        monkeypatch.setattr(retiring, "_begun", lambda *_: self.begun)

    def _retire(self, _site: Site, model: str, order: Retiring) -> Retired:
        self.asked.append(order)
        if self.endings:
            raise self.endings.pop(0)
        return Retired(model=model, served=1, retirement=order.retirement)

    def sweep(self) -> None:
        retiring.finish(self.site, self.told.append)

    @property
    def noted(self) -> list[str]:
        return sorted(file.name for file in (Path(self.site.home) / "production" / "retiring").glob("*.json"))


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Room]:
    return lambda *endings: Room(tmp_path, monkeypatch, *endings)


def ordered(room: Room, error: type[BaseException] | None = None) -> None:
    if error is None:
        retiring.retired(room.site, "digits", ORDER)
    else:
        with pytest.raises(error):
            retiring.retired(room.site, "digits", ORDER)


def test_what_was_carried_out_or_refused_is_not_done_again(room: Callable[..., Room]) -> None:
    for ending in (None, StillInUse("it has clients", do="-"), NotFound("no such model", do="-")):
        place: Room = room(*([ending] if ending else []))
        ordered(place, type(ending) if ending else None)
        place.sweep()
        assert (len(place.asked), place.noted, place.told) == (1, [], [])


@pytest.mark.parametrize("ending", [KeyboardInterrupt(), Temporary("the registry is away", do="-")])
def test_what_had_begun_is_finished_by_the_sweep(room: Callable[..., Room], ending: BaseException) -> None:
    place = room(ending, Temporary("the registry is away", do="-"))
    ordered(place, type(ending))
    place.sweep()
    assert "half retired" in place.told[0]
    place.sweep()
    assert [order.force for order in place.asked] == [False, True, True]
    assert "retired by ana" in place.told[1]
    place.sweep()
    assert (len(place.asked), place.noted) == (3, [])


def test_what_had_not_begun_is_forgotten(room: Callable[..., Room]) -> None:
    place = room(KeyboardInterrupt())
    place.begun = False
    ordered(place, KeyboardInterrupt)
    place.sweep()
    assert (len(place.asked), place.noted, place.told) == (1, [], [])


def test_an_order_whose_command_still_runs_is_left_to_it(
    room: Callable[..., Room], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = room()

    def retire(*_: Any) -> Retired:
        place.sweep()
        return Retired(model="digits", served=1, retirement=ORDER.retirement)

    monkeypatch.setattr(retiring, "retire", retire)
    ordered(place)
    assert (place.asked, place.told) == ([], [])


def test_an_order_of_another_version_of_shiplift_is_forgotten(room: Callable[..., Room]) -> None:
    place = room()
    folder = Path(place.site.home) / "production" / "retiring"
    folder.mkdir(parents=True)
    (folder / "digits.json").write_text("{}")
    place.sweep()
    assert (place.asked, place.noted) == ([], [])
