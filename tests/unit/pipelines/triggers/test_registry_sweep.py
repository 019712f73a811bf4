from collections.abc import Iterator

import pytest

from shiplift.pipelines.engines.answers import Accepted
from shiplift.pipelines.triggers.registry_sweep import sweep
from shiplift.runtime.base.errors import NotAdmitted, ShipliftError, Temporary
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.store.registry.terms import VersionInfo


class Registry:
    """Newest versions, by model: when it was registered, and the release its tags name."""

    def __init__(self, **models: tuple[float, str]) -> None:
        self.models = models

    def newest(self) -> Iterator[VersionInfo]:
        for name, (created_at, release) in self.models.items():
            tags = {"shiplift.release": release} if release else {}
            yield VersionInfo(name=name, version=2, source="", run_id="", created_at=created_at, tags=tags)


class Desk:
    """Accepts releases; `known` are there already, and some models fail."""

    def __init__(self, known: tuple[str, ...] = (), **failing: ShipliftError) -> None:
        self.known, self.failing = known, failing
        self.accepted: list[str] = []
        self.told: list[str] = []

    def accept(self, request: Request, trigger: Trigger) -> Accepted:
        assert trigger.kind == "sweep"
        if request.model in self.failing:
            raise self.failing[request.model]
        assert request.registered_at > 0
        self.accepted.append(request.model)
        created = request.model not in self.known
        return Accepted(name=f"release-{request.model}", created=created, queued=created)


def test_what_has_no_release_and_is_new_enough_is_accepted() -> None:
    registry = Registry(new=(100, ""), old=(99.9, ""), done=(200, "release-done"), there=(100, ""))
    desk = Desk(known=("there",))
    accepted = sweep(registry, desk.accept, since=100, tell=desk.told.append)
    assert [release.name for release in accepted] == ["release-new"]
    assert desk.accepted == ["new", "there"]
    assert desk.told == ["the sweep found 'new' version 2: release-new"]


def test_one_model_that_can_t_be_released_is_not_the_others_trouble() -> None:
    desk = Desk(bad=NotAdmitted("its name can't be one", do="Rename it."))
    assert len(sweep(Registry(bad=(1, ""), good=(1, "")), desk.accept, since=0, tell=desk.told.append)) == 1
    assert "'bad' version 2 can't be released: its name can't be one" in desk.told[0]


def test_what_does_not_answer_ends_the_sweep_and_loses_nothing() -> None:
    desk = Desk(away=Temporary("the cluster does not answer", do="Wait."))
    with pytest.raises(Temporary):
        sweep(Registry(first=(1, ""), away=(1, ""), last=(1, "")), desk.accept, since=0, tell=desk.told.append)
    assert desk.accepted == ["first"]
