"""Decides which models share a server: bin packing by measured memory and load, with as few moves as possible.

It is a pure function of the present state, so it arrives at the same plan wherever the operator was killed. It plans at
most one new server at a time, and none while a model is moving, or just after a server was made. A server that is in
order is never changed for a small gain.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

_FILLED = 0.8  # of a server's memory: the rest is for what load tests did not see
_MOST_LOAD = 0.6  # of one server's capacity, for all of its models together
_MOVE_S = 600.0  # how long to wait for a move: one that can't be made must not stop all others
_CALM_S = 1800.0  # how long a server exists at least before it is given up just to save room


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A revision's group as placement knows it.

    `flavor` describes how its server must be started: only tenants of the same flavor can share. `memory_mb` is the
    memory that it uses, `load` its part of one server's capacity. `at` is the server that serves it (empty: its own
    pods). `may_join`: it may move to a shared server; `may_stay`: it may remain on one.
    """

    group: str
    service: str
    flavor: str
    memory_mb: float
    load: float
    at: str = ""
    may_join: bool = False
    may_stay: bool = False


@dataclass(frozen=True, kw_only=True)
class SharedServer:
    """A shared server: its groups and when it was made, in seconds since the epoch."""

    name: str
    members: frozenset[str]
    made_at: float


@dataclass(frozen=True, kw_only=True)
class PlacementLimits:
    """What a server may hold, and for how long nothing moves after a server was made."""

    memory_mb: float
    models: int
    rest_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class PlacementPlan:
    """`assigned`: the server of each group, empty for pods of its own. `create`: the groups of a new server.

    `unused` are the servers that no group is assigned to or served from.
    """

    assigned: Mapping[str, str] = field(default_factory=dict)
    create: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()


def place(
    tenants: Sequence[Tenant],
    servers: Sequence[SharedServer],
    limits: PlacementLimits,
    now: float,
    barred: Iterable[frozenset[str]] = (),
) -> PlacementPlan:
    """The plan for the present state; `barred` are sets of groups whose server did not start."""
    by_age = sorted(servers, key=lambda server: (-server.made_at, server.name))
    assigned = {tenant.group: _server_of(tenant, by_age) if _may_stay(tenant, limits) else "" for tenant in tenants}
    used = {*assigned.values(), *(tenant.at for tenant in tenants)}
    unused = frozenset(server.name for server in servers if server.name not in used)
    young = {server.name for server in servers if now - server.made_at < _MOVE_S}
    moving = any(assigned[tenant.group] != tenant.at for tenant in tenants if assigned[tenant.group] in young)
    resting = any(now - server.made_at < limits.rest_s for server in servers)
    if moving or resting:
        return PlacementPlan(assigned=assigned, unused=unused)
    packing = _Packing(tenants, servers, limits, now, assigned, tuple(barred))
    return PlacementPlan(assigned=assigned, unused=unused, create=packing.next_set())


def _server_of(tenant: Tenant, newest_first: Sequence[SharedServer]) -> str:
    """The newest server that has the group."""
    return next((server.name for server in newest_first if tenant.group in server.members), "")


def _may_stay(tenant: Tenant, limits: PlacementLimits) -> bool:
    """Whether a group may be on a shared server; not if it has outgrown a whole one."""
    return tenant.may_stay and tenant.memory_mb <= limits.memory_mb * _FILLED and tenant.load <= _MOST_LOAD


@dataclass(frozen=True)
class _Packing:
    """One search for a better set of groups; every option is worth a move."""

    tenants: Sequence[Tenant]
    servers: Sequence[SharedServer]
    limits: PlacementLimits
    now: float
    assigned: Mapping[str, str]
    barred: tuple[frozenset[str], ...]

    def next_set(self) -> frozenset[str]:
        """The groups of the next server to make; empty if nothing needs to change."""
        for options in (self._joined(), self._founded(), self._split(), self._merged(), self._renewed()):
            candidates = [option for option in options if option and not self._exists(option)]
            if candidates:
                return frozenset(tenant.group for tenant in min(candidates, key=_order))
        return frozenset()

    # --- options, the most valuable first ---

    def _joined(self) -> list[list[Tenant]]:
        """Existing servers, filled up with tenants that have none."""
        homes = [self._on(server) for server in self.servers]
        grown = [(home, self._filled(home)) for home in homes if home and self._fits(home)]
        return [after for home, after in grown if len(after) > len(home)]

    def _founded(self) -> list[list[Tenant]]:
        """New servers for at least two tenants that have none."""
        sets = [self._filled([first]) for first in self._homeless()]
        return [each for each in sets if len(each) > 1]

    def _split(self) -> list[list[Tenant]]:
        """For each server that is too full, the tenants that fit: limits may have been lowered, or loads have risen."""
        sets = []
        for server in self.servers:
            home = self._on(server)
            if home and not self._fits(home):
                part: list[Tenant] = []
                for tenant in _largest_first(home):
                    part += [tenant] if self._fits([*part, tenant]) else []
                sets.append(part)
        return sets

    def _merged(self) -> list[list[Tenant]]:
        """Pairs of servers whose tenants fit into one, which saves a server."""
        calm = [server for server in self.servers if self._is_calm(server) and self._on(server)]
        unions = [[*self._on(left), *self._on(right)] for left, right in combinations(calm, 2)]
        return [union for union in unions if self._fits(union)]

    def _renewed(self) -> list[list[Tenant]]:
        """Servers without their unused models, if those are at least half of them."""
        return [
            home
            for server in self.servers
            if self._is_calm(server) and (home := self._on(server)) and 2 * len(home) <= len(server.members)
        ]

    # --- the present state ---

    def _on(self, server: SharedServer) -> list[Tenant]:
        return [tenant for tenant in self.tenants if self.assigned[tenant.group] == server.name]

    def _homeless(self) -> list[Tenant]:
        return _largest_first(t for t in self.tenants if t.may_join and not self.assigned[t.group])

    def _is_calm(self, server: SharedServer) -> bool:
        return self.now - server.made_at >= _CALM_S

    def _exists(self, option: Sequence[Tenant]) -> bool:
        groups = frozenset(tenant.group for tenant in option)
        return any(server.members == groups for server in self.servers)

    # --- what fits ---

    def _filled(self, home: list[Tenant]) -> list[Tenant]:
        """The tenants of a server and as many without one as fit, the largest first."""
        filled = list(home)
        for tenant in self._homeless():
            if tenant not in filled and self._fits([*filled, tenant]) and not self._is_barred([*filled, tenant]):
                filled.append(tenant)
        return filled

    def _fits(self, tenants: Sequence[Tenant]) -> bool:
        return (
            len(tenants) <= self.limits.models
            and len({tenant.flavor for tenant in tenants}) == 1
            and len({tenant.service for tenant in tenants}) == len(tenants)
            and sum(tenant.memory_mb for tenant in tenants) <= self.limits.memory_mb * _FILLED
            and sum(tenant.load for tenant in tenants) <= _MOST_LOAD
        )

    def _is_barred(self, tenants: Sequence[Tenant]) -> bool:
        groups = frozenset(tenant.group for tenant in tenants)
        return any(each <= groups for each in self.barred)


def _order(option: Sequence[Tenant]) -> tuple[int, float, list[str]]:
    """Most models first, then most memory. Names break ties, so that the order is the same every time."""
    return -len(option), -sum(t.memory_mb for t in option), sorted(t.group for t in option)


def _largest_first(tenants: Iterable[Tenant]) -> list[Tenant]:
    return sorted(tenants, key=lambda tenant: (-tenant.memory_mb, tenant.group))
