from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.composition.checked import Unusable
from shiplift.runtime.records.deployment import Endpoint
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.promotion import Promotion
from shiplift.runtime.spec.pipeline import PipelineMember
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.members import Promoted
from shiplift.runtime.store.registry.rest import RestRegistry
from shiplift.runtime.store.registry.terms import TAG, VersionInfo
from tests.unit.examples import package


@dataclass
class Versions:
    """What is asked of a registry: versions with their outcomes, and aliases."""

    outcomes: dict[int, str]
    named: dict[str, int] = field(default_factory=dict)

    def version(self, name: str, version: int) -> VersionInfo | None:
        if version not in self.outcomes:
            return None
        outcome = self.outcomes[version]
        tags = {f"{TAG}outcome": outcome, f"{TAG}reason": "p99 is too high"} if outcome else {}
        return VersionInfo(name=name, version=version, source="", run_id="", created_at=0, tags=tags)

    def aliases(self, name: str) -> dict[str, int]:
        return self.named

    def newest_of(self, name: str) -> VersionInfo:
        if not self.outcomes:
            raise NotFound(f"the registry has no versions of model {name!r}", do="Register one.")
        newest = self.version(name, max(self.outcomes))
        assert newest is not None
        return newest


def promotion(info: VersionInfo, **changes: Any) -> Promotion:
    return Promotion(
        model=info.name,
        version=info.version,
        alias="champion",
        endpoint=Endpoint(http="http://127.0.0.1:1", grpc="127.0.0.1:2"),
        package=package(version=info.version),
        **changes,
    )


def found(
    outcomes: dict[int, str],
    *,
    serves: int = 0,
    aliases: dict[str, int] | None = None,
    store: ArtifactStore | None = None,
    unfinished: bool = False,
    genuine: bool = True,
    **wanted: Any,
) -> Package | Unusable:
    changes: dict[str, Any] = {"unfinished": "promotion"} if unfinished else {}
    promoted = Promoted(
        registry=cast("RestRegistry", Versions(outcomes, aliases or {})),
        champion=lambda _: serves,
        promotion=lambda info: promotion(info, **changes) if genuine else None,
        store=store,
    )
    return promoted.find(PipelineMember(**{"model": "digits"} | wanted))


PINNED: dict[str, Any] = {"follow": "pinned"}


def test_the_champion_is_what_production_serves() -> None:
    version = found({1: "promoted", 2: "promoted"}, serves=1, aliases={"champion": 2})
    assert isinstance(version, Package)
    assert version.version == 1


def test_without_production_s_word_it_is_what_the_alias_names() -> None:
    version = found({1: "promoted", 2: "promoted"}, aliases={"champion": 2})
    assert isinstance(version, Package)
    assert version.version == 2


def test_a_version_may_be_named_and_an_alias_too() -> None:
    outcomes = {1: "promoted", 2: "promoted"}
    by_number = found(outcomes, serves=2, version=1, **PINNED)
    by_alias = found(outcomes, serves=2, aliases={"previous": 1}, alias="previous", **PINNED)
    assert by_number == by_alias == package(version=1)


def test_the_champion_counts_however_a_later_run_of_it_ended() -> None:
    assert isinstance(found({1: "cancelled"}, serves=1), Package)


@pytest.mark.parametrize(
    ("outcomes", "options", "what"),
    [
        ({}, {}, "no versions of model 'digits'"),
        ({1: "refused"}, {}, "'digits' has no champion"),
        ({1: "promoted"}, {"alias": "stable", **PINNED}, "'digits' has no stable"),
        ({1: "promoted"}, {"version": 2, **PINNED}, "no version 2 of 'digits': it was never registered, or deleted"),
        ({1: "refused"}, {"version": 1, **PINNED}, "version 1 of 'digits' is refused: p99 is too high"),
        ({1: ""}, {"version": 1, **PINNED}, "version 1 of 'digits' was never released"),
        ({1: "rolled back"}, {"version": 1, **PINNED}, "version 1 of 'digits' is rolled back"),
        ({1: "promoted"}, {"serves": 1, "genuine": False}, "no genuine record of the promotion"),
        ({1: "promoted"}, {"serves": 1, "unfinished": True}, "the promotion of version 1 of 'digits' has not ended"),
        ({1: "promoted"}, {"model": "a/b"}, "can't be a model's name"),
    ],
)
def test_why_a_version_can_t_be_a_member(outcomes: dict[int, str], options: dict[str, Any], what: str) -> None:
    answer = found(outcomes, **options)
    assert isinstance(answer, Unusable)
    assert what in answer.what
    assert answer.do


def test_a_version_whose_package_is_gone_was_retired(tmp_path: Path) -> None:
    answer = found({1: "promoted"}, serves=1, store=ArtifactStore(tmp_path.as_uri()))
    assert isinstance(answer, Unusable)
    assert "was retired" in answer.what
