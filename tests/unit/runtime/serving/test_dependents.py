from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shiplift.runtime.base.errors import Temporary
from shiplift.runtime.records.serving import BundleMember
from shiplift.runtime.serving import dependents
from shiplift.runtime.store.registry.terms import MEMBER_TAG, VersionInfo
from tests.unit.examples import package, site


def version(name: str, number: int, **tags: str) -> VersionInfo:
    return VersionInfo(name=name, version=number, source="", run_id="", created_at=0, tags=tags)


class Pipelines:
    """A registry of pipelines, and what production serves of each: the member's version, and whether it follows it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **serving: tuple[int, bool]) -> None:
        self.serving, self.away = serving, set[str]()
        self.known = [version(name, 1) for name in serving]
        monkeypatch.setattr(dependents, "production", lambda _: None)
        monkeypatch.setattr(dependents, "champion_state", lambda _site, name, *_: self.champion_state(name))

    def champion_state(self, name: str) -> Any:
        if name in self.away:
            raise Temporary("the registry is away", do="Wait.")
        number, follows = self.serving[name]
        member = BundleMember(name="part", served="base-1--x", model="base", version=number, follows=follows)
        return SimpleNamespace(promotion=SimpleNamespace(package=package(members=(member,))), champion=1)

    def pipelines(self) -> list[VersionInfo]:
        return self.known

    def version(self, name: str, number: int) -> VersionInfo:
        return next(each for each in self.known if (each.name, each.version) == (name, number))

    def register_again(self, info: VersionInfo, member: str) -> VersionInfo:
        newest = max(each.version for each in self.known if each.name == info.name)
        self.known.append(version(info.name, newest + 1, **{MEMBER_TAG: member}))
        return self.known[-1]


def released(registry: Any, tmp_path: Path, number: int = 2, model: str = "base") -> list[tuple[str, int]]:
    made = dependents.release_dependents(site(tmp_path), model, number, registry)
    return [(info.name, info.version) for info in made]


def test_only_pipelines_that_follow_the_model_and_serve_another_version_are_registered_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    registry = Pipelines(monkeypatch, ocr=(1, True), pinned=(1, False), current=(2, True))
    assert released(registry, tmp_path, model="other") == []
    assert released(registry, tmp_path) == [("ocr", 2)]


def test_the_same_champion_registers_a_pipeline_once_and_another_one_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    registry = Pipelines(monkeypatch, ocr=(1, True))
    assert released(registry, tmp_path) == [("ocr", 2)]
    assert released(registry, tmp_path) == []  # as after a last stage that was killed
    assert released(registry, tmp_path, 3) == [("ocr", 3)]


def test_a_pipeline_that_can_not_be_looked_up_does_not_affect_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    registry = Pipelines(monkeypatch, lost=(1, True), ocr=(1, True))
    registry.away = {"lost"}
    assert released(registry, tmp_path) == [("ocr", 2)]
