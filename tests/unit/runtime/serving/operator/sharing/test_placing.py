"""Placement: plans respect the limits, converge, and never move anything when nothing has changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.serving.operator.sharing.placing import (
    PlacementLimits,
    PlacementPlan,
    SharedServer,
    Tenant,
    place,
)

LIMITS = PlacementLimits(memory_mb=1000, models=4)


def tenant(name: str, **changes: object) -> Tenant:
    made = Tenant(group=f"{name}-1", service=name, flavor="cpu", memory_mb=100, load=0.1, may_join=True, may_stay=True)
    return replace(made, **changes)  # type: ignore[arg-type]


@dataclass
class Town:
    """A cluster that follows each plan at once."""

    tenants: dict[str, Tenant]
    limits: PlacementLimits = LIMITS
    servers: dict[str, SharedServer] = field(default_factory=dict)
    now: float = 10_000.0
    made: int = 0
    moves: int = 0
    barred: tuple[frozenset[str], ...] = ()

    def plan(self) -> PlacementPlan:
        return place(list(self.tenants.values()), list(self.servers.values()), self.limits, self.now, self.barred)

    def turn(self) -> bool:
        """Follows a plan; returns whether anything has changed."""
        plan = self.plan()
        for group, server in plan.assigned.items():
            self.moves += self.tenants[group].at != server
            self.tenants[group] = replace(self.tenants[group], at=server)
        for name in plan.unused:
            del self.servers[name]
        if plan.create:
            self.made += 1
            name = f"s{self.made}"
            self.servers[name] = SharedServer(name=name, members=plan.create, made_at=self.now)
        self.now += 61
        moved = any(place_now != before for place_now, before in zip(self.homes(), plan.assigned.values(), strict=True))
        return bool(plan.create or plan.unused or moved)

    def homes(self) -> list[str]:
        return [each.at for each in self.tenants.values()]

    def settle(self, turns: int = 200) -> int:
        for count in range(turns):
            before = self.homes()
            if not self.turn() and before == self.homes():
                return count
        raise AssertionError(f"no end in {turns} turns: {self.servers}")

    def together(self) -> Mapping[str, set[str]]:
        sets: dict[str, set[str]] = {}
        for each in self.tenants.values():
            if each.at:
                sets.setdefault(each.at, set()).add(each.service)
        return sets


def town(*tenants: Tenant, **changes: object) -> Town:
    return Town({each.group: each for each in tenants}, **changes)  # type: ignore[arg-type]


def test_what_may_share_a_server_does() -> None:
    here = town(tenant("a"), tenant("b"), tenant("c"), tenant("busy", may_join=False, may_stay=False))
    here.settle()
    assert list(here.together().values()) == [{"a", "b", "c"}]


def test_one_model_alone_keeps_its_own_pods() -> None:
    here = town(tenant("a"))
    here.settle()
    assert not here.servers


def test_flavors_memory_models_and_load_are_respected() -> None:
    assert not town(tenant("a"), tenant("b", flavor="gpu")).plan().create
    assert not town(tenant("a", memory_mb=500), tenant("b", memory_mb=301)).plan().create
    assert town(tenant("a", memory_mb=500), tenant("b", memory_mb=300)).plan().create
    assert not town(tenant("a", load=0.4), tenant("b", load=0.21)).plan().create
    assert len(town(*map(tenant, "abcde")).plan().create) == 4


def test_a_newcomer_joins_and_its_neighbours_move_once() -> None:
    here = town(tenant("a"), tenant("b"))
    here.settle()
    here.moves = 0
    here.tenants["c-1"] = tenant("c")
    here.settle()
    assert list(here.together().values()) == [{"a", "b", "c"}]
    assert (here.moves, len(here.servers)) == (3, 1)


def test_a_new_revision_takes_the_place_of_the_former_one() -> None:
    here = town(tenant("a"), tenant("b"))
    here.settle()
    del here.tenants["a-1"]
    here.tenants["a-2"] = tenant("a", group="a-2")
    here.settle()
    assert {server.members for server in here.servers.values()} == {frozenset({"a-2", "b-1"})}


def test_no_other_move_begins_during_a_move_or_just_after_it() -> None:
    here = town(tenant("a"), tenant("b"), tenant("c"), tenant("d"), tenant("e"), tenant("f"))
    here.turn()
    assert here.plan().assigned["a-1"] == "s1"
    assert not here.plan().create
    here.turn()
    here.servers["s1"] = replace(here.servers["s1"], made_at=here.now - 59)
    assert not here.plan().create
    here.now += 1
    assert here.plan().create == {"e-1", "f-1"}


def test_a_move_that_can_not_be_made_does_not_stop_the_others_for_ever() -> None:
    here = town(tenant("a"), tenant("b"))
    here.settle()
    here.tenants["c-1"] = tenant("c")
    here.turn()
    here.tenants |= {each.group: each for each in map(tenant, "de")}
    assert not here.plan().create
    here.now += 600
    assert here.plan().create


def test_what_may_not_stay_leaves_and_comes_back_when_it_may_join() -> None:
    here = town(tenant("a"), tenant("b"), tenant("c"))
    here.settle()
    here.tenants["a-1"] = replace(here.tenants["a-1"], may_join=False, may_stay=False)
    here.settle()
    assert here.tenants["a-1"].at == ""
    assert list(here.together().values()) == [{"b", "c"}]


def test_two_servers_that_fit_into_one_merge_only_once_they_are_calm() -> None:
    here = town(*map(tenant, "abcde"))
    here.tenants |= {each.group: each for each in (tenant("f"),)}
    here.settle()
    assert sorted(map(len, here.together().values())) == [2, 4]
    for name in "abc":
        del here.tenants[f"{name}-1"]
    assert not here.plan().create
    here.now += 1800
    here.settle()
    assert list(here.together().values()) == [{"d", "e", "f"}]


def test_models_that_outgrow_a_server_leave_it_even_if_none_of_them_fits_alone() -> None:
    here = town(tenant("a"), tenant("b"), tenant("c"))
    here.settle()
    assert list(here.together().values()) == [{"a", "b", "c"}]
    here.tenants["a-1"] = replace(here.tenants["a-1"], memory_mb=801)
    here.tenants["b-1"] = replace(here.tenants["b-1"], load=0.61)
    here.settle()
    assert [here.tenants[group].at for group in ("a-1", "b-1")] == ["", ""]
    assert here.tenants["c-1"].at


def test_a_set_whose_server_does_not_start_is_not_tried_again() -> None:
    here = town(tenant("a", memory_mb=300), tenant("b", memory_mb=200), tenant("c"))
    here.barred = (frozenset({"a-1", "b-1", "c-1"}),)
    assert here.plan().create == {"a-1", "b-1"}
    here.barred = (*here.barred, frozenset({"a-1", "b-1"}))
    assert here.plan().create in ({"a-1", "c-1"}, {"b-1", "c-1"})


sizes = st.tuples(
    st.integers(10, 900), st.floats(0, 0.7), st.sampled_from(["cpu", "big"]), st.booleans(), st.booleans()
)


def from_sizes(drawn: list[tuple[int, float, str, bool, bool]]) -> list[Tenant]:
    return [
        tenant(f"m{at}", memory_mb=memory, load=load, flavor=flavor, may_join=joins, may_stay=joins or stays)
        for at, (memory, load, flavor, joins, stays) in enumerate(drawn)
    ]


@given(st.lists(sizes, max_size=12), st.lists(sizes, max_size=12))
def test_plans_respect_the_limits_converge_and_then_nothing_moves(
    first: list[tuple[int, float, str, bool, bool]], second: list[tuple[int, float, str, bool, bool]]
) -> None:
    here = town(*from_sizes(first))
    here.settle()
    changed = {each.group: each for each in from_sizes(second)}
    here.tenants = {
        group: replace(each, at=here.tenants[group].at if group in here.tenants else "")
        for group, each in changed.items()
    }
    here.settle()
    for name, services in here.together().items():
        home = [each for each in here.tenants.values() if each.at == name]
        if len(home) > 1:
            assert sum(each.memory_mb for each in home) <= 800
            assert sum(each.load for each in home) <= 0.6
            assert len(services) <= 4
            assert len({each.flavor for each in home}) == 1
        assert here.servers[name].members >= {each.group for each in home}
    here.now += 10_000
    here.settle()
    homes, servers = here.homes(), dict(here.servers)
    for _ in range(5):
        here.now += 10_000
        here.turn()
    assert (here.homes(), here.servers) == (homes, servers)
