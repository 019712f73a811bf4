"""The champion is what production serves and a signed promotion confirms, even if its aliases were moved by hand."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.base.errors import (
    Aborted,
    ArtifactCorrupt,
    AwaitingApproval,
    GoldenMismatch,
    NotFound,
    NothingToRollBack,
    PromotionConflict,
    RegistryHeld,
    Rejected,
    StillInUse,
    VersionReplaced,
)
from shiplift.runtime.base.progress import listening
from shiplift.runtime.records.baking import Baking
from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.records.decision import Decision
from shiplift.runtime.records.deployment import Endpoint
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import LoadPoint, LoadReport
from shiplift.runtime.records.model import ModelVersion
from shiplift.runtime.records.promotion import Abort, Beside, Champion, Moving, Promotion
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.retirement import Dependent, Retired, Retirement, Retiring, Traffic
from shiplift.runtime.records.serving import EarlierVersion, EarlierVersions
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import GateEvidence, Scored, Verdict
from shiplift.runtime.serving import reinstate as reinstating
from shiplift.runtime.serving import rolling_back
from shiplift.runtime.serving.abort import aborted
from shiplift.runtime.serving.champion import champion_state
from shiplift.runtime.serving.machine import baking as noted
from shiplift.runtime.serving.machine import moving
from shiplift.runtime.serving.production import Production
from shiplift.runtime.serving.retired import require_not_retired
from shiplift.runtime.spec.baking import Bake
from shiplift.runtime.spec.groups import Delivery
from shiplift.runtime.spec.promoting import Promoting
from shiplift.runtime.spec.serving_settings import Rollout
from shiplift.runtime.store.artifacts import ArtifactStore, tree_digest
from shiplift.runtime.store.ledger import PROMOTION, Ledger
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.terms import CHALLENGER, CHAMPION, PREVIOUS, TAG, VersionInfo
from shiplift.steps import find_champion as finding
from shiplift.steps import promote as promoting
from shiplift.steps import retire as retiring
from shiplift.steps.rollback import rollback
from tests.unit.examples import check, deployment, model_version, package, site
from tests.unit.runtime.store.test_ledger import Runs

ENDPOINT = Endpoint(http="http://127.0.0.1:1", grpc="127.0.0.1:2")


class Aliases(Runs):
    """A registry with five versions, whose aliases the tests can move."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, int] = {}
        self.tags: dict[int, dict[str, str]] = {}
        self.versions_there = {1, 2, 3, 4, 5}
        self.registered: dict[int, float] = {}
        self.files: dict[int, str] = {}
        self.runs: dict[int, str] = {}
        self.calls = 0

    def register_again(self, version: int, *, files: str, same_run: bool = False) -> None:
        """Deletes the model, and registers another version under the same number."""
        self.registered[version] = self.registered.get(version, 1.0) + 1
        self.files[version] = files
        self.runs |= {} if same_run else {version: "another run"}
        self.names.clear()

    def pipelines(self) -> list[VersionInfo]:
        return []

    def versions(self, name: str) -> list[VersionInfo]:
        numbers = sorted(self.versions_there)
        infos = ((number, self.version(name, number)) for number in numbers)
        return [
            replace(info, tags={f"{TAG}{key}": text for key, text in self.tags.get(number, {}).items()})
            for number, info in infos
        ]

    def version(self, name: str, version: int) -> VersionInfo:
        if version not in self.versions_there:
            raise NotFound(f"the registry has no version {version} of model {name!r}", do="-")
        info = super().version(name, version)
        run_id = self.runs.get(version, info.run_id)
        return replace(info, created_at=self.registered.get(version, 1.0), run_id=run_id)

    def download_model(self, info: VersionInfo, to: Path, *, limit_mb: float) -> Path:
        assert limit_mb
        to.mkdir()
        (to / "MLmodel").write_text(self.files.get(info.version, "as registered"))
        return to

    def alias(self, _name: str, alias: str) -> int:
        return self.names.get(alias, 0)

    def move_alias(self, name: str, alias: str, version: int) -> None:
        if version and self.names.get(alias) != version:
            self.version(name, version)
            self.calls += 1
            self.names[alias] = version
        elif not version and self.names.pop(alias, 0):
            self.calls += 1

    def tag(self, name: str, version: int, **tags: str) -> None:
        self.version(name, version)
        self.tags.setdefault(version, {}).update(tags)


class Place:
    """A production that can be told to refuse a package, to die after a move, and whose promotions can be aborted.

    `events` happen at the next moments of a promotion: "abort", "die" or nothing.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.events: list[str] = []
        self.package: Package | None = None
        self.refuses: set[int] = set()
        self.dies = False
        self.declared: list[int] = []
        self.capacity: Capacity | None = None
        self.quarantined: dict[int, str] = {}
        self.clients = Traffic()
        self.dropped: list[int] = []

    @contextmanager
    def lock(self, _model: str) -> Iterator[None]:
        yield

    def endpoint(self, _model: str) -> Endpoint:
        return ENDPOINT

    def serving(self, _model: str) -> int:
        return self.package.version if self.package else 0

    def quarantine(self, _model: str, version: int) -> str:
        return self.quarantined.get(version, "")

    def serves(self, package: Package, _others: Sequence[Beside] = ()) -> bool:
        return self.package == package

    def move(
        self,
        package: Package,
        _rollout: Rollout,
        capacity: Capacity | None = None,
        _others: Sequence[Beside] = (),
        requested_at: float | None = None,
    ) -> None:
        self.capacity, before = capacity, self.package
        if requested_at is not None:
            moving.begin(self.home, "digits", Moving(version=package.version, requested_at=requested_at))
        self.happen()
        if package.version in self.refuses:
            raise GoldenMismatch("it answers wrongly", do="-")
        self.package = package
        self.happen()
        known = moving.moving(self.home, "digits")
        if requested_at is not None and known and known.abort:
            self.package = before
            raise aborted(known.abort, "digits", package.version)
        if self.dies:
            raise KeyboardInterrupt

    def happen(self) -> None:
        event = self.events.pop(0) if self.events else ""
        if event == "abort":
            moving.abort(self.home, "digits", Abort(by="ana", reason="too slow"))
        if event == "die":
            raise KeyboardInterrupt

    def moving(self, model: str) -> Moving | None:
        return moving.moving(self.home, model)

    def abort(self, model: str, order: Abort) -> Moving | None:
        return moving.abort(self.home, model, order)

    def settle(self, model: str, version: int) -> None:
        moving.forget(self.home, model, version)

    def commit(self, model: str) -> None:
        self.happen()
        known = moving.commit(self.home, model)
        if known and known.abort:
            raise aborted(known.abort, model, known.version)
        self.happen()

    def bake(self, new: Baking) -> None:
        self.happen()
        noted.begin(self.home, new)

    def baking(self, model: str) -> Baking | None:
        return noted.baking(self.home, model)

    def baked(self, known: Baking) -> None:
        noted.change(self.home, known, lambda _now: known)

    def withdraw(self, _model: str) -> None:
        self.happen()
        self.package = None
        self.happen()

    def traffic(self, _model: str) -> Traffic:
        return self.clients

    def drop(self, package: Package) -> None:
        self.happen()
        self.dropped.append(package.version)

    def retire(self, _model: str) -> None:
        self.happen()

    def declare(
        self, package: Package, replicas: int, _capacity: Capacity | None = None, _others: Sequence[Beside] = ()
    ) -> bool:
        if self.package is None and replicas:
            self.declared.append(package.version)
        return self.package is None


class World:
    """A model whose versions are promoted and rolled back, and an author who moves its aliases by hand."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site: Site = site(home)
        self.registry, self.place = Aliases(), Place(home)
        self.held: list[RegistryHeld] = []
        self.rules = Promoting()
        monkeypatch.setattr(promoting, "RegistryLease", lambda *_: self)
        for module in (finding, promoting, rolling_back, reinstating, retiring):
            monkeypatch.setattr(module, "Registry", lambda _: self.registry)
            monkeypatch.setattr(module, "production", lambda _: self.place)

    def check(self) -> None:
        """As the registry's lease does."""
        if self.held:
            raise self.held[0]

    def judged(self, version: int) -> ModelVersion:
        """The version as the registry has it now."""
        info = self.registry.version("digits", version)
        with TemporaryDirectory() as folder:
            digest = tree_digest(self.registry.download_model(info, Path(folder) / "model", limit_mb=1))
        return model_version(version=version, digest=digest, registered_at=info.created_at)

    def champion(self, version: int = 5, **trigger: Any) -> Champion:
        return finding.find_champion(self.site, Request(model="digits", version=version), Trigger(**trigger)).champion

    def promote(
        self,
        version: int,
        evidence: GateEvidence | None = None,
        changes: Mapping[str, Any] | None = None,
        judged: ModelVersion | None = None,
        **trigger: Any,
    ) -> Promotion:
        verdict = Verdict.of((check(),)).model_copy(update={"evidence": evidence})
        return promoting.promote(
            self.site,
            Request(model="digits", version=version),
            Trigger(**trigger),
            judged or self.judged(version),
            verdict,
            deployment(version=version, **changes or {}),
            self.champion(version, **trigger),
            Delivery(promoting=self.rules),
        )

    def retire(self, version: int = 0, *, reason: str = "replaced", force: bool = False) -> Retired:
        order = Retiring(retirement=Retirement(by="ana", reason=reason, at=1e9), version=version, force=force)
        return retiring.retire(self.site, "digits", order)

    def rollback(self) -> Promotion:
        return rollback(self.site, "digits")

    def record(self, version: int) -> Promotion | None:
        registry = cast("Registry", self.registry)
        return Ledger(self.site, Request(model="digits", version=version), registry=registry).promotion()

    @property
    def aliases(self) -> tuple[int, int]:
        return self.registry.names.get(CHAMPION, 0), self.registry.names.get(PREVIOUS, 0)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Version 1 was promoted, then version 2."""
    world = World(tmp_path, monkeypatch)
    world.promote(1)
    world.promote(2)
    assert world.aliases == (2, 1)
    return world


HAND = [
    {CHAMPION: 3},
    {CHAMPION: 0},
    {PREVIOUS: 3},
    {PREVIOUS: 0},
    {CHAMPION: 1, PREVIOUS: 2},
    {CHAMPION: 4, PREVIOUS: 3},
]


def move_by_hand(world: World, aliases: dict[str, int]) -> None:
    for alias, version in aliases.items():
        world.registry.move_alias("digits", alias, version)


@pytest.mark.parametrize("aliases", HAND)
def test_a_challenger_is_compared_with_what_serves_wherever_the_alias_is(world: World, aliases: dict[str, int]) -> None:
    move_by_hand(world, aliases)
    assert world.champion() == Champion(version=2, package=package(version=2))
    assert world.champion(2) == Champion(version=1, package=package(version=1), own=package(version=2))


def test_a_package_with_other_files_of_an_earlier_version_is_not_promoted(world: World, tmp_path: Path) -> None:
    store = ArtifactStore(world.site.artifacts_uri)

    def tree(name: str, **models: str) -> dict[str, Any]:
        for path, text in models.items():
            file = tmp_path / name / "digits" / path.removeprefix("v") / "model.onnx"
            file.parent.mkdir(parents=True)
            file.write_text(text)
        return {"repository": store.put_tree(tmp_path / name)}

    earlier = {"earlier": EarlierVersions(versions=(EarlierVersion(version=3, precision="fp32"),))}
    world.promote(3, changes=tree("first", v3="three"))
    for number, other in enumerate(({"v3": "another", "v5": "five"}, {"v5": "five"})):
        with pytest.raises(ArtifactCorrupt, match="files of version 3 are not the ones that were promoted"):
            world.promote(5, changes=earlier | tree(f"altered-{number}", **other))
        assert (world.place.serving("digits"), world.aliases) == (3, (3, 2))
    second = earlier | tree("second", v3="three", v5="five")
    world.promote(5, changes=second)
    world.promote(5, changes=second)  # once more, as a rerun of the champion does
    assert (world.place.serving("digits"), world.aliases) == (5, (5, 3))


@pytest.mark.parametrize("aliases", HAND)
def test_a_rollback_goes_to_what_served_before_wherever_the_alias_is(world: World, aliases: dict[str, int]) -> None:
    move_by_hand(world, aliases)
    assert (world.rollback().version, world.aliases) == (1, (1, 2))
    assert world.place.serving("digits") == 1
    assert (world.rollback().version, world.aliases) == (2, (2, 1))


@pytest.mark.parametrize("aliases", HAND)
def test_a_promotion_replaces_what_serves_wherever_the_alias_is(world: World, aliases: dict[str, int]) -> None:
    move_by_hand(world, aliases)
    assert (world.promote(5).previous, world.aliases) == (2, (5, 2))


@pytest.mark.parametrize("aliases", HAND)
def test_what_was_moved_by_hand_is_moved_back_once_and_a_tag_says_why(world: World, aliases: dict[str, int]) -> None:
    move_by_hand(world, aliases)
    moved = reinstating.reinstate(world.site, "digits").moved
    assert world.aliases == (2, 1)
    assert {drift.alias for drift in moved} == set(aliases)
    alias, named = next(iter(aliases.items()))
    (drift,) = [drift for drift in moved if drift.alias == alias]
    right = 2 if alias == CHAMPION else 1
    assert drift.sentence.endswith(f"but production and its signed promotion say version {right}")
    tag = world.registry.tags[named or right]["drift"]
    assert drift.sentence in tag
    assert "`shiplift rollback`" in tag
    calls = world.registry.calls
    assert reinstating.reinstate(world.site, "digits").moved == ()
    assert world.registry.calls == calls


def test_an_alias_of_a_model_that_shiplift_never_served_is_nobody_s_business(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    move_by_hand(world, {CHAMPION: 3})
    assert reinstating.reinstate(world.site, "digits").moved == ()
    assert world.aliases == (3, 0)
    assert world.champion() == Champion()
    assert (world.promote(5).previous, world.aliases) == (0, (5, 0))


def test_a_champion_whose_record_is_gone_or_forged_is_not_compared_silently(world: World) -> None:
    world.registry.versions_there.remove(2)
    world.registry.names.pop(CHAMPION)
    with pytest.raises(PromotionConflict, match=r"production serves version 2 .*`shiplift rollback digits`"):
        world.champion()
    assert world.champion(allow_older=True) == Champion(version=2)
    assert (world.promote(5, allow_older=True).previous, world.aliases) == (2, (5, 0))


def test_a_deleted_champion_is_rolled_back(world: World) -> None:
    world.registry.versions_there.remove(2)
    world.registry.names.pop(CHAMPION)
    assert (world.rollback().version, world.aliases) == (1, (1, 0))
    with pytest.raises(NothingToRollBack):
        world.rollback()


def test_a_forged_record_makes_no_champion(world: World) -> None:
    world.registry.texts["run-digits-2", PROMOTION] = '{"record": "{}", "signature": "00"}'
    with pytest.raises(PromotionConflict):
        world.champion()


@pytest.mark.parametrize("fault", ["refuses", "dies"])
def test_a_failed_or_killed_promotion_leaves_a_champion_to_roll_back_to(world: World, fault: str) -> None:
    if fault == "refuses":
        world.place.refuses = {5}
        with pytest.raises(GoldenMismatch):
            world.promote(5)
        assert (world.champion(4).version, world.aliases) == (2, (2, 1))
        return
    world.place.dies = True
    with pytest.raises(KeyboardInterrupt):
        world.promote(5)
    world.place.dies = False
    assert world.aliases == (2, 1)
    assert world.champion(5).version == 2  # it resumes, and is compared with the same version
    assert (world.promote(5).previous, world.aliases) == (2, (5, 2))
    record = world.record(5)
    assert record is not None
    assert record.unfinished == ""


def test_a_package_that_production_refuses_does_not_replace_the_one_to_roll_back_to(world: World) -> None:
    world.place.refuses = {1}
    before = world.record(1)
    with pytest.raises(GoldenMismatch):
        world.rollback()
    assert (world.record(1), world.aliases) == (before, (2, 1))
    assert world.champion().version == 2


def test_a_killed_rollback_is_finished_not_undone(world: World) -> None:
    world.place.dies = True
    with pytest.raises(KeyboardInterrupt):
        world.rollback()
    world.place.dies = False
    assert (world.rollback().version, world.aliases) == (1, (1, 2))
    assert (world.rollback().version, world.aliases) == (2, (2, 1))


def test_a_promotion_under_way_is_not_called_drift(world: World) -> None:
    world.place.dies = True
    with pytest.raises(KeyboardInterrupt):
        world.promote(5)
    now = champion_state(world.site, "digits", cast("Registry", world.registry), cast("Production", world.place))
    assert (now.champion, now.previous, now.unfinished) == (5, 2, "promotion")
    assert reinstating.reinstate(world.site, "digits").moved == ()
    assert world.aliases == (5, 2)
    assert world.registry.names.get(CHALLENGER, 0) == 0


def test_a_version_deleted_during_its_release_is_not_promoted(world: World) -> None:
    world.registry.versions_there.remove(5)
    with pytest.raises(NotFound, match="no version 5"):
        world.promote(5)
    assert (world.place.serving("digits"), world.aliases) == (2, (2, 1))


def test_nothing_is_promoted_while_another_installation_holds_the_registry(world: World) -> None:
    world.held = [RegistryHeld("another installation holds it", do="-")]
    with pytest.raises(RegistryHeld):
        world.promote(5)
    assert (world.place.serving("digits"), world.aliases) == (2, (2, 1))


def test_a_champion_that_production_has_no_word_of_is_declared_from_its_promotion(world: World) -> None:
    world.place.package = None
    assert reinstating.reinstate(world.site, "digits").moved == ()
    assert world.place.declared == [2]
    ledger = Ledger(world.site, Request(model="digits", version=2), registry=cast("Registry", world.registry))
    promotion = world.record(2)
    assert promotion is not None
    ledger.put_promotion(promotion.model_copy(update={"unfinished": "promotion"}))
    reinstating.reinstate(world.site, "digits")
    assert world.place.declared == [2]


def test_a_promotion_says_what_a_replica_was_measured_to_take(world: World) -> None:
    point = LoadPoint(
        concurrency=1, throughput_per_s=100, p50_ms=1, p90_ms=1, p95_ms=1, p99_ms=1, queue_ms=0, compute_ms=1
    )
    report = LoadReport(
        points=(point,), failures=0, memory_mb=None, protocol="grpc", knee=1, max_rate_per_s=80, limit_ms=50
    )
    evidence = GateEvidence(parity=(), challenger=Scored(version=1, target="cpu"), load_report=report)
    world.promote(3, evidence=evidence)
    assert world.place.capacity == Capacity(peak_per_s=100, within_slo_per_s=80, p99_ms=50)
    world.promote(4)
    assert world.place.capacity is None
    assert world.rollback().capacity == world.place.capacity == Capacity(peak_per_s=100, within_slo_per_s=80, p99_ms=50)


@pytest.mark.parametrize("replaced", [{"registered": 2.0}, {"files": "others"}])
def test_a_version_that_was_replaced_during_its_release_is_not_promoted(world: World, replaced: dict[str, Any]) -> None:
    judged = world.judged(5)
    for name, value in replaced.items():
        getattr(world.registry, name)[5] = value
    with pytest.raises(VersionReplaced, match=r"version 5 of 'digits' .*`shiplift (release|rerun) digits/5`"):
        world.promote(5, judged=judged)
    assert (world.place.serving("digits"), world.aliases) == (2, (2, 1))
    assert world.promote(5).version == 5


def test_files_that_are_overwritten_during_the_rollout_get_no_alias(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged, move = world.judged(5), world.place.move

    def overwrite(*arguments: Any) -> None:
        move(*arguments)
        world.registry.files[5] = "others"

    monkeypatch.setattr(world.place, "move", overwrite)
    with pytest.raises(VersionReplaced, match="were overwritten"):
        world.promote(5, judged=judged)
    assert world.aliases == (2, 1)
    reinstating.reinstate(world.site, "digits")
    assert 5 not in world.aliases


@pytest.mark.parametrize("same_run", [False, True])
def test_a_version_with_the_number_of_a_deleted_champion_gets_no_alias_before_it_is_released(
    world: World, *, same_run: bool
) -> None:
    world.registry.register_again(2, files="others", same_run=same_run)
    assert world.record(2) is None
    assert reinstating.reinstate(world.site, "digits").moved == ()
    assert world.aliases == (0, 0)
    with pytest.raises(PromotionConflict, match="no genuine record"):
        world.champion(5)
    world.promote(5, allow_older=True)
    assert world.aliases == (5, 0)
    world.promote(2, allow_older=True)
    assert world.aliases == (2, 5)
    promotion = world.record(2)
    assert promotion is not None
    assert (promotion.registered_at, promotion.digest) == (2.0, world.judged(2).digest)


@pytest.mark.parametrize("change", ["registered again", "overwritten"])
def test_a_rollback_never_names_a_version_that_was_not_judged(world: World, change: str) -> None:
    if change == "overwritten":
        world.registry.files[1] = "others"
        with pytest.raises(VersionReplaced, match="were overwritten"):
            world.rollback()
        assert world.aliases == (2, 1)
    else:
        world.registry.register_again(1, files="others")
        with pytest.raises(NothingToRollBack):
            world.rollback()
        assert world.aliases == (2, 0)
    assert world.place.serving("digits") == 2


def test_an_alias_is_not_moved_back_to_files_that_were_overwritten(world: World) -> None:
    world.registry.files[2] = "others"
    move_by_hand(world, {CHAMPION: 4})
    reinstating.reinstate(world.site, "digits")
    assert world.aliases == (0, 1)


def test_a_promotion_of_an_earlier_shiplift_can_still_be_rolled_back_to(world: World) -> None:
    former = world.record(1)
    assert former is not None
    registry = cast("Registry", world.registry)
    ledger = Ledger(world.site, Request(model="digits", version=1), registry=registry)
    ledger.put_promotion(former.model_copy(update={"registered_at": 0.0, "digest": ""}))
    assert (world.rollback().version, world.aliases) == (1, (1, 2))


def test_a_version_that_production_refuses_gets_no_alias_though_it_has_the_champion_s_number(world: World) -> None:
    world.registry.register_again(2, files="others")
    world.place.refuses = {2}
    with pytest.raises(GoldenMismatch):
        world.promote(2, changes={"target": "another"}, allow_older=True)
    assert world.record(2) is None
    reinstating.reinstate(world.site, "digits")
    assert world.aliases == (0, 0)


# --- people's decisions ---


@given(st.lists(st.sampled_from(["", "abort", "die"]), max_size=10), st.sampled_from([(), (1, 2), (1, 5, 2)]))
def test_an_abort_that_came_in_time_gives_all_traffic_back(events: list[str], history: tuple[int, ...]) -> None:
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        world = World(Path(folder), patch)
        for version in history:
            world.promote(version, allow_older=True)
        before, aliases, recorded = world.place.package, world.aliases, world.record(5)
        world.place.events = events
        ending = None
        while ending is None:  # a killed promotion is run again
            try:
                world.promote(5, requested_at=7.0)
                ending = "promoted"
            except KeyboardInterrupt:
                continue
            except Aborted as error:
                ending = str(error)
        world.place.events = []
        known = moving.moving(Path(folder), "digits")
        assert known is not None
        if known.abort:
            assert ending.startswith("aborted by ana: too slow")
            assert (world.place.package, world.aliases) == (before, aliases)
            assert world.record(5) == recorded
        else:
            assert (ending, known.committed) == ("promoted", True)
            assert (world.place.serving("digits"), world.aliases) == (5, (5, aliases[0]))


def test_the_champion_s_own_package_serves_again_after_its_release_is_aborted(world: World) -> None:
    before, another = world.place.package, {"precision": "fp16"}
    world.place.events = ["", "", "abort"]  # all traffic has moved, and is not committed
    with pytest.raises(Aborted):
        world.promote(2, changes=another, requested_at=7.0)
    assert world.place.package == before
    record = world.record(2)
    assert record is not None
    assert (record.package, record.unfinished) == (before, "")


def test_a_version_that_needs_approval_is_promoted_once_a_person_approves(world: World) -> None:
    world.rules = Promoting(approval="required")
    yes = Decision(approved=True, by="ana", reason="checked")
    for decision in (yes, None):  # a decision counts only for what was already waiting
        with pytest.raises(AwaitingApproval):
            world.promote(5, decision=decision)
        assert (world.place.serving("digits"), world.aliases) == (2, (2, 1))
    assert world.registry.tags[5]["approval"].startswith("waiting until ")
    with pytest.raises(Rejected, match="rejected by bob"):
        world.promote(5, decision=Decision(approved=False, by="bob"))
    with pytest.raises(AwaitingApproval):
        world.promote(5)
    world.rollback()  # now the champion is another
    with pytest.raises(AwaitingApproval, match="the champion have changed since"):
        world.promote(5, decision=yes)
    assert world.promote(5, decision=yes).version == 5
    assert world.registry.tags[5]["approval"] == "approved by ana: checked"


def test_a_quarantined_version_that_would_serve_again_is_told(world: World) -> None:
    why = "it was quarantined: it crashed 3 times"
    told: list[str] = []
    world.place.quarantined = {1: why}
    with listening(lambda message, _: told.append(message)):
        assert (world.champion(1).quarantined, world.champion(2).quarantined) == (why, "")
        assert f"version 1 served before, and {why}" in told
        world.rollback()
    assert f"warning: version 1 served before, and {why}" in told


# --- retirement ---


def test_a_retired_model_is_brought_back_by_nothing_but_a_new_release(world: World) -> None:
    old = world.champion(3)  # a release that has begun
    retired = world.retire()
    assert (retired.served, retired.versions, retired.before) == (2, (1, 2), False)
    assert (world.place.package, world.aliases, world.place.dropped) == (None, (0, 0), [2, 1])
    assert world.registry.tags[2]["outcome"] == "retired"
    assert world.registry.tags[2]["retired"] == "retired by ana on 2001-09-09 01:46 UTC: replaced"
    assert all("retired" in world.registry.tags[version] for version in (1, 2, 3, 4, 5))

    again = world.retire(reason="another reason")
    assert (again.before, again.retirement) == (True, retired.retirement)
    move_by_hand(world, {CHAMPION: 2, PREVIOUS: 1})
    assert (world.champion(5), world.record(2), world.record(1)) == (Champion(), None, None)
    with pytest.raises(NothingToRollBack):
        world.rollback()
    assert reinstating.reinstate(world.site, "digits").moved == ()
    assert world.place.declared == []
    with pytest.raises(PromotionConflict, match=r"retired by ana .*after this release of version 3 had begun"):
        require_not_retired(world.site, cast("Registry", world.registry), Request(model="digits", version=3), old)

    world.registry.names.clear()
    world.promote(2)
    assert (world.place.serving("digits"), world.aliases) == (2, (2, 0))
    assert world.retire().before is False


def test_a_model_whose_service_was_deleted_by_hand_is_retired_as_the_version_that_served(world: World) -> None:
    world.place.package = None
    order = Retirement(by="someone with kubectl", at=1e9, version=2)
    retired = retiring.retire(world.site, "digits", Retiring(retirement=order, force=True))
    assert (retired.served, world.registry.tags[2]["outcome"], world.aliases) == (2, "retired", (0, 0))


def test_a_model_in_use_is_retired_only_if_told_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ocr = Dependent(pipeline="ocr", version=3, member_version=2, follows=True)
    monkeypatch.setattr(retiring, "dependents_of", lambda *_: (ocr,))
    world.place.clients = Traffic(requests=412, window_s=600, last_at=1e9)
    with pytest.raises(StillInUse) as refused:
        world.retire()
    assert "clients sent 412 requests in the last 600 s, the last one at 01:46:40 UTC" in refused.value.what
    assert "pipeline 'ocr' version 3 follows it" in refused.value.what
    assert (world.place.serving("digits"), world.aliases, world.record(2) is not None) == (2, (2, 1), True)
    world.place.clients = Traffic(unknown="nobody counted")
    with pytest.raises(StillInUse, match="is not known: nobody counted"):
        world.retire()
    assert world.retire(force=True).dependents == (ocr,)
    assert world.place.serving("digits") == 0


@pytest.mark.parametrize("moment", range(4))
def test_a_retirement_that_is_killed_goes_on_when_it_is_run_again(world: World, moment: int) -> None:
    world.place.events = [*[""] * moment, "die"]
    with pytest.raises(KeyboardInterrupt):
        world.retire(force=True)
    world.place.clients = Traffic(requests=1, window_s=1)  # what had begun is not asked for again
    assert world.retire(reason="again").retirement.reason == "replaced"
    assert (world.place.package, world.aliases) == (None, (0, 0))
    assert {1, 2} <= set(world.place.dropped)


def test_a_version_that_does_not_serve_leaves_nothing(world: World) -> None:
    with pytest.raises(StillInUse, match=r"version 2 of 'digits' is the champion.*`shiplift retire digits`"):
        world.retire(2, force=True)
    with pytest.raises(NotFound, match="version 4 of 'digits' was never promoted"):
        world.retire(4)
    assert world.retire(1).versions == (1,)
    assert (world.place.serving("digits"), world.aliases, world.place.dropped) == (2, (2, 0), [1])
    assert (world.retire(1).before, world.registry.tags[1]["outcome"]) == (True, "retired")
    with pytest.raises(NothingToRollBack):
        world.rollback()
    world.promote(3)
    assert world.aliases == (3, 2)


def test_a_version_that_is_served_beside_the_champion_is_not_retired(world: World) -> None:
    package_of = world.record(2)
    assert package_of
    both = {"earlier": EarlierVersions(versions=(EarlierVersion(version=1, precision="fp32"),))}
    changed = package_of.model_copy(update={"package": package_of.package.model_copy(update=both)})
    registry = cast("Registry", world.registry)
    Ledger(world.site, Request(model="digits", version=2), registry=registry).put_promotion(changed)
    with pytest.raises(StillInUse, match=r"version 1 .* is served beside version 2"):
        world.retire(1, force=True)


def test_what_never_served_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound, match="does not serve 'digits', and never did"):
        World(tmp_path, monkeypatch).retire()


# --- bakes ---


def baking_world(world: World) -> Baking:
    """Version 3 bakes after version 2."""
    world.rules = Promoting(bake=Bake(for_s=60))
    world.promote(3, requested_at=7.0)
    known = noted.baking(world.place.home, "digits")
    assert known is not None
    return known


def test_a_promotion_begins_the_bake_that_its_spec_asks_for(world: World) -> None:
    known = baking_world(world)
    assert (known.version, known.previous, known.for_s, known.state) == (3, 2, 60, "baking")
    assert [alarm.kind for alarm in known.alarms] == ["answers", "errors"]
    assert known.former == world.record(2)


def test_a_promotion_that_runs_again_goes_on_with_its_bake(world: World) -> None:
    known = baking_world(world)
    noted.change(world.place.home, known, lambda now: now.model_copy(update={"watched_s": 30.0}))
    world.promote(3, requested_at=7.0)
    assert noted.baking(world.place.home, "digits") == known.model_copy(update={"watched_s": 30.0})
    world.promote(3, requested_at=8.0)  # another release of the same version
    again = noted.baking(world.place.home, "digits")
    assert again is None or again.watched_s == 0


def test_a_first_version_has_nothing_to_go_back_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    world.rules = Promoting(bake=Bake(for_s=60))
    world.promote(1)
    assert noted.baking(tmp_path, "digits") is None


@pytest.mark.parametrize("back", [False, True], ids=["it serves", "its traffic went back"])
def test_a_bake_that_failed_is_rolled_back_once(world: World, back: bool) -> None:
    known = baking_world(world)
    world.place.baked(known.model_copy(update={"state": "alarmed", "reason": "too slow"}))
    if back:  # as the watch and the operator do, without the registry
        world.place.package = package(version=2)
    for _ in range(2):  # killed before it could be noted, it runs again
        reinstating.reinstate(world.site, "digits")
        assert world.aliases == (2, 3)
        assert world.place.package == package(version=2)
    tags = world.registry.tags[3]
    assert (tags["outcome"], tags["reason"]) == ("rolled back", "rolled back while baking: too slow")
    ended = noted.baking(world.place.home, "digits")
    assert ended is not None
    assert ended.state == "rolled back"


def test_an_alarm_rolls_back_no_other_version_than_the_one_that_baked(world: World) -> None:
    known = baking_world(world)
    alarmed = known.model_copy(update={"state": "alarmed", "reason": "too slow"})
    world.rules = Promoting()
    world.promote(4)
    world.place.baked(alarmed)
    reinstating.reinstate(world.site, "digits")
    assert world.aliases == (4, 3)
    ended = noted.baking(world.place.home, "digits")
    assert ended is not None
    assert ended.sentence.endswith("version 3 of 'digits' does not serve any more, but version 4")


def test_the_version_before_one_that_bakes_is_not_retired(world: World) -> None:
    baking_world(world)
    with pytest.raises(StillInUse, match="version 2 of 'digits' stays ready: version 3 is baking"):
        world.retire(2)
    assert world.retire(2, force=True).versions == (2,)
