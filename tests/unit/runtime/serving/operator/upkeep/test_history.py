"""Old revisions are deleted; what serves, may serve again or is new stays."""

from dataclasses import replace
from typing import Any

from tests.unit.runtime.serving.operator.world import World, name_of


def serving(many: int, **spec: Any) -> World:
    """A world with so many old revisions, of which the first serves."""
    world = World(**spec)
    world.now = 100_000.0
    world.revisions = {name_of(version): recorded(world, version) for version in range(1, many + 1)}
    world.run(60, until=World.settled)
    world.run(10)
    return world


def recorded(world: World, version: int, *, new: bool = False) -> Any:
    return replace(world.revision(version), history_of="digits", created_at=world.now if new else float(version))


def test_the_newest_and_what_serves_stay() -> None:
    world = serving(15)
    assert set(world.revisions) == {name_of(1), *(name_of(version) for version in range(6, 16))}
    world.writes.clear()
    world.run(30)
    assert world.writes == []


def test_the_limit_is_in_the_spec_and_what_served_before_stays() -> None:
    world = serving(6, revision_history_limit=1)
    assert set(world.revisions) == {name_of(1), name_of(6)}
    world.revisions[name_of(7)] = recorded(world, 7, new=True)
    world.want(7)
    world.run(300, until=World.settled)
    world.now += 1000
    for version in (8, 9):
        world.revisions[name_of(version)] = replace(recorded(world, version), created_at=world.now - 950 + version)
    world.run(60)
    assert world.status.previous_revision == name_of(1)
    assert set(world.revisions) == {name_of(1), name_of(7), name_of(9)}


def test_what_failed_stays() -> None:
    world = serving(3, revision_history_limit=0)
    world.revisions[name_of(2)] = recorded(world, 2, new=True)
    world.broken.add(name_of(2))
    world.want(2)
    world.run(200)
    world.now += 2000
    world.run(30)
    assert world.status.failed_revision == name_of(2)
    assert set(world.revisions) == {name_of(1), name_of(2)}


def test_a_revision_that_was_just_written_and_one_that_no_promotion_wrote_stay() -> None:
    world = serving(3, revision_history_limit=0)
    assert set(world.revisions) == {name_of(1)}
    world.revisions[name_of(8)] = recorded(world, 8, new=True)
    world.revisions[name_of(9)] = world.revision(9)
    world.run(60)
    assert set(world.revisions) == {name_of(1), name_of(8), name_of(9)}
