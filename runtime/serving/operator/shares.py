"""Traffic shares: which revisions have them now, which one to fall back on, and whether the data plane has followed.

The status says which shares the operator gave last. If it is missing or can't be true, the routes vote, so that the
others outvote a route that was edited by hand.
"""

import math
from collections import Counter
from enum import Enum, auto

from shiplift.runtime.base.names import dns_name
from shiplift.runtime.serving.kubernetes.objects.front import weights_of
from shiplift.runtime.serving.operator.evidence import Share, Weights
from shiplift.runtime.serving.operator.groups.weighing import by_revision
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.resources import percent_by_revision

SETTLE_S = 60.0  # how long the data plane may take to follow
_ROUTES = ("GRPCRoute", "HTTPRoute")
_TAIL = 0.005  # on each side, for intervals of 99 %
_LEAST, _MOST = 40, 600
_POINTS, _RELATIVE = 5.0, 0.5  # a share is known to within 5 points or half of itself, whichever is more


class Judgement(Enum):
    """What requests through the front say about a share."""

    HOLDS = auto()
    UNKNOWN = auto()  # ask again
    TOO_LATE = auto()
    FAILED = auto()


def current(observed: Observed) -> Weights:
    """The shares that revisions have; empty if none has ever served."""
    written = percent_by_revision(observed.status.weights)
    if _plausible(observed, written):
        return dict(sorted(written.items()))
    votes = [dict(sorted(by_revision(observed, weights_of(body)).items())) for body in fronts(observed)]
    votes = [weights for weights in votes if _plausible(observed, weights)]
    ballot = Counter(tuple(weights.items()) for weights in votes)
    return dict(ballot.most_common(1)[0][0]) if ballot else {}


def fronts(observed: Observed) -> list[dict[str, object]]:
    """The live objects that split the traffic, in a fixed order."""
    if observed.spec is None:
        return []
    kinds = _ROUTES if observed.cluster.gateway else ("Service",)
    name = dns_name(observed.spec.model)
    return [
        body
        for (kind, own), body in sorted(observed.live.items())
        if kind in kinds and (kind in _ROUTES or own == name)
    ]


def has_traffic(observed: Observed, revision: str) -> bool:
    """Whether any live route still sends requests to a revision."""
    return any(by_revision(observed, weights_of(body)).get(revision) for body in fronts(observed))


def leads_elsewhere(observed: Observed, revision: str) -> bool:
    """Whether any live route sends requests to another revision than this one."""
    weights = (by_revision(observed, weights_of(body)) for body in fronts(observed))
    return any(percent for each in weights for name, percent in each.items() if name != revision)


def main(observed: Observed, weights: Weights, *, avoid: str = "") -> str:
    """The revision to rely on: not `avoid` if possible, then one with traffic, ready pods, and the largest share."""

    def rank(name: str) -> tuple[bool, bool, bool, int, str]:
        return name != avoid, weights[name] > 0, bool(observed.ready(name)), weights[name], name

    return max(weights, key=rank, default="")


def only(revision: str, weights: Weights) -> Weights:
    """The same revisions, with all traffic on one of them."""
    return {name: 100 if name == revision else 0 for name in sorted({*weights, revision})}


def judge(observed: Observed, share: Share, target: str) -> Judgement:
    """Whether a share holds on the data plane, on every protocol."""
    samples, percent = share.samples.values(), share.weights[target]
    if any(sample.failure and not sample.unreachable for sample in samples):
        return Judgement.FAILED
    answered = samples and all(
        not sample.failure and consistent(sample.answered, sample.asked, percent) for sample in samples
    )
    if answered and (percent < 100 or _counted(share, target)):
        return Judgement.HOLDS
    return Judgement.TOO_LATE if observed.now - share.since > SETTLE_S else Judgement.UNKNOWN


def describe(share: Share, target: str) -> str:
    """What was asked and answered, as a sentence."""
    counted = [
        f"{protocol} {sample.failure or f'{sample.answered} of {sample.asked} requests'}"
        for protocol, sample in share.samples.items()
    ]
    others = {name: count for name, count in share.grew.items() if name != target and count}
    counted += [f"{name} still counted {count} requests" for name, count in others.items()]
    return ", ".join(counted) or "nothing answered"


def _counted(share: Share, target: str) -> bool:
    """Whether the target's own servers counted the requests, and no other revision's did.

    Two revisions may serve the same model version, so the version in an answer is not enough.
    """
    return share.grew.get(target, 0) > 0 and not any(n for name, n in share.grew.items() if name != target)


def _plausible(observed: Observed, weights: Weights) -> bool:
    served = [name for name, percent in weights.items() if percent]
    return sum(weights.values()) == 100 and all(observed.exists(name) for name in served)


# --- statistics: exact binomial intervals, and how many requests they need ---


def requests_needed(percent: int) -> int:
    """How many requests tell a share from none, from all, and from its neighbours."""
    share = min(percent, 100 - percent) / 100
    if share <= 0:
        return 60  # if one in ten went elsewhere, all of 60 would reach the target only once in 550 times
    margin = max(_POINTS, percent * _RELATIVE) / 100
    to_measure = share * (1 - share) * (2.576 / margin) ** 2  # normal approximation; 2.576: 99 % lie within
    to_see_both_sides = math.log(_TAIL) / math.log1p(-share)
    return min(_MOST, max(_LEAST, math.ceil(to_measure), math.ceil(to_see_both_sides)))


def consistent(answered: int, asked: int, percent: int) -> bool:
    """Whether a share lies in the 99 % Clopper-Pearson interval of what was counted.

    A share of 0 or 100 percent is only consistent with none or all.
    """
    if percent in (0, 100):
        return asked > 0 and answered == asked * percent // 100
    if not 0 < answered < asked:
        return False
    share = percent / 100
    at_most = math.fsum(_probability(count, asked, share) for count in range(answered + 1))
    at_least = 1 - at_most + _probability(answered, asked, share)
    return min(at_most, at_least) >= _TAIL


def _probability(count: int, of: int, share: float) -> float:
    """The binomial probability of this count."""
    ways = math.lgamma(of + 1) - math.lgamma(count + 1) - math.lgamma(of - count + 1)
    return math.exp(ways + count * math.log(share) + (of - count) * math.log1p(-share))
