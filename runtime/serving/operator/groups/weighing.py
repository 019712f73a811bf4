"""Splits a revision's traffic over its groups in proportion to the capacity of their ready pods, from load tests.

Ready pods count, not wanted ones: a group whose pods are starting or have died gets no share meanwhile, and gets it
back as they become ready. So routes change with pods, while a revision's share, and what was measured of it, stays.
If each revision has one group, the routes are in percent, as versions of Shiplift without groups wrote them.
"""

from collections.abc import Mapping

from shiplift.runtime.serving.kubernetes.objects.front import weights_of
from shiplift.runtime.serving.kubernetes.objects.names import Object
from shiplift.runtime.serving.operator.evidence import Weights
from shiplift.runtime.serving.operator.observed import Observed, TargetPods
from shiplift.runtime.serving.operator.repair import is_right, key_of

_FINE = 100  # weights per percent in routes, if a revision of the service has several groups
_ROUTES = ("GRPCRoute", "HTTPRoute")


def backends(observed: Observed, weights: Weights) -> dict[str, int]:
    """The weights of groups in routes, for these shares of revisions in percent."""
    if not any(map(observed.several, weights)):
        return dict(weights)
    return {
        name: weight
        for revision, percent in weights.items()
        for name, weight in _within(observed, revision, percent * _FINE).items()
    }


def by_revision(observed: Observed, weights: Mapping[str, int]) -> Weights:
    """The shares of revisions in percent, from the weights of their groups in a route."""
    shares: Weights = {}
    for name, weight in weights.items():
        revision = observed.revision_of(name)
        shares[revision] = shares.get(revision, 0) + weight
    if sum(shares.values()) != 100 * _FINE:
        return shares
    return {revision: round(share / _FINE) for revision, share in shares.items()}


def powers(observed: Observed, revision: str) -> dict[str, float]:
    """Each group's capacity now, in requests per second, or in pods if a group was not measured.

    If no pod is ready, each group counts as one pod: requests have to go somewhere.
    """
    groups = observed.groups(revision)
    each = {group.name: _capacity(group) for group in groups}
    if not all(each.values()):
        each = dict.fromkeys(observed.names(revision), 1.0)
    ready = {name: len(observed.ready_in(name)) for name in each}
    return {name: each[name] * (ready[name] if any(ready.values()) else 1) for name in each}


def split(total: int, powers: Mapping[str, float]) -> dict[str, int]:
    """Splits a whole number in proportion, by largest remainder, so that the parts add up to it.

    A group with any power gets at least 1, if there is enough for all of them: the largest part gives it up.
    """
    serving = [name for name, power in powers.items() if power > 0]
    if not serving:
        return dict.fromkeys(powers, 0)
    exact = {name: total * (powers[name] / sum(powers.values())) for name in serving}
    parts = {name: int(exact[name]) for name in serving}
    by_remainder = sorted(serving, key=lambda name: (parts[name] - exact[name], name))
    for name in by_remainder[: total - sum(parts.values())]:
        parts[name] += 1
    for name in serving if total >= len(serving) else ():
        if not parts[name]:
            parts[max(parts, key=lambda each: parts[each])] -= 1
            parts[name] = 1
    return {name: parts.get(name, 0) for name in powers}


def is_rebalanced(observed: Observed, body: Object) -> bool:
    """Whether a route differs from its live one only in how its revisions' shares are split over their groups."""
    live = observed.live.get(key_of(body))
    if body["kind"] not in _ROUTES or live is None:
        return False
    before, after = weights_of(live), weights_of(body)
    same = before.keys() == after.keys() and by_revision(observed, before) == by_revision(observed, after)
    return before != after and same and is_right(_weighed(body, before), observed)


def _within(observed: Observed, revision: str, total: int) -> dict[str, int]:
    return split(total, powers(observed, revision))


def _capacity(group: TargetPods) -> float:
    return group.capacity.within_slo_per_s if group.capacity else 0.0


def _weighed(body: Object, weights: Mapping[str, int]) -> Object:
    """The same route with these weights."""
    rules = [
        {**rule, "backendRefs": [{**each, "weight": weights[each["name"]]} for each in rule["backendRefs"]]}
        for rule in body["spec"]["rules"]
    ]
    return {**body, "spec": {**body["spec"], "rules": rules}}
