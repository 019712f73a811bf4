from dataclasses import replace

import pytest

from shiplift.pipelines.engines.answers import Accepted
from shiplift.pipelines.triggers.approval_sweep import sweep
from shiplift.runtime.base.errors import AlreadyDecided, NotFound, ShipliftError, Temporary
from shiplift.runtime.records.decision import Decision
from shiplift.runtime.records.site import RegistryApprovals, SitePolicy
from shiplift.runtime.store.registry.terms import APPROVE_TAG, REJECT_TAG, VersionInfo

POLICY = SitePolicy(approvers=("ana",), approvals=RegistryApprovals(tags="trusted"))


class Registry:
    """Versions 1 of models with tags; those whose outcome says so wait."""

    def __init__(self, **models: dict[str, str]) -> None:
        self.models = {
            name: VersionInfo(name=name, version=1, source="", run_id="", created_at=1.0, tags=tags)
            for name, tags in models.items()
        }
        self.aliases: dict[str, str] = {}
        self.asked = 0

    def tagged(self, tag: str, value: str = "") -> list[VersionInfo]:
        self.asked += 1
        return [info for info in self.models.values() if info.tags.get(tag) == value]

    def version(self, name: str, version: int) -> VersionInfo | None:
        info = self.models.get(name) if version == 1 else None
        return replace(info, aliases=tuple(filter(None, [self.aliases.get(name)]))) if info else None

    def tag(self, name: str, version: int, **tags: str) -> None:
        assert version == 1
        self.models[name].tags.update({f"shiplift.{key}": text for key, text in tags.items()})


class Desk:
    """Hears decisions; some models fail."""

    def __init__(self, **failing: ShipliftError) -> None:
        self.failing = failing
        self.decided: dict[str, str] = {}
        self.told: list[str] = []

    def decide(self, info: VersionInfo, decision: Decision) -> Accepted:
        if info.name in self.failing:
            raise self.failing[info.name]
        self.decided[info.name] = decision.sentence
        return Accepted(name=f"release-{info.name}", created=False, queued=True)


def waiting(**tags: str) -> dict[str, str]:
    return {"shiplift.outcome": "waiting for approval"} | {f"shiplift.{key}": text for key, text in tags.items()}


def test_the_releases_of_versions_that_wait_go_on_as_the_registry_says() -> None:
    registry = Registry(
        yes=waiting(approve="ana: checked"),
        no=waiting(approve="ana", reject="ana: slow"),
        undecided=waiting(),
        done={"shiplift.outcome": "promoted", APPROVE_TAG: "ana"},
    )
    desk = Desk()
    sweep(registry, desk.decide, POLICY, tell=desk.told.append)
    assert desk.decided == {
        "yes": "approved by ana, says a tag in the registry: checked",
        "no": "rejected by ana, says a tag in the registry: slow",
    }
    assert desk.told[0].startswith("'yes' version 1 was approved by ana")


def test_an_alias_is_read_from_the_version_itself() -> None:
    registry, desk = Registry(yes=waiting()), Desk()
    registry.aliases["yes"] = "ok"
    sweep(registry, desk.decide, SitePolicy(approvals=RegistryApprovals(alias="ok")), tell=desk.told.append)
    assert desk.decided == {"yes": "approved by an alias in the registry: ok"}


def test_a_site_that_trusts_neither_does_not_even_look() -> None:
    registry, desk = Registry(yes=waiting(approve="ana")), Desk()
    sweep(registry, desk.decide, SitePolicy(approvers=("ana",)), tell=desk.told.append)
    assert (registry.asked, desk.decided) == (0, {})


def test_a_tag_that_does_not_count_is_told_once_where_it_was_set() -> None:
    registry, desk = Registry(other=waiting(approve="eve: fine")), Desk()
    for _ in range(3):
        sweep(registry, desk.decide, POLICY, tell=desk.told.append)
    assert len(desk.told) == 1
    assert "eve may not decide, only ana" in registry.models["other"].tags["shiplift.approval"]
    assert not desk.decided


def test_one_version_that_can_t_be_decided_about_is_not_the_others_trouble() -> None:
    models = {name: waiting(reject="ana") for name in ("busy", "gone", "last")}
    desk = Desk(busy=AlreadyDecided("another did", do="-"), gone=NotFound("it is gone", do="-"))
    sweep(Registry(**models), desk.decide, POLICY, tell=desk.told.append)
    assert list(desk.decided) == ["last"]
    assert "'gone' version 1 can't be decided about: it is gone" in desk.told[0]
    assert len(desk.told) == 2
    with pytest.raises(Temporary):
        sweep(Registry(**models), Desk(busy=Temporary("away", do="-")).decide, POLICY, tell=desk.told.append)


def test_both_tags_are_named_as_the_documentation_says() -> None:
    assert (APPROVE_TAG, REJECT_TAG) == ("shiplift.approve", "shiplift.reject")
