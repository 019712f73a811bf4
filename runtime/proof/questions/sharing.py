"""How a budget of rows is shared: what one group doesn't need, the others get."""

from collections.abc import Sequence


def shares(available: Sequence[int], weights: Sequence[float], total: int) -> list[int]:
    """How many rows of each group are asked: by weight, none more than are `available`, `total` together at most.

    Where there are fewer rows than groups, the first groups get one each.
    """
    given = [0] * len(available)
    left = min(total, sum(available))
    while left:
        hungry = [at for at, most in enumerate(available) if given[at] < most]
        weight = sum(weights[at] for at in hungry)
        portions = {at: min(available[at] - given[at], int(left * weights[at] / weight)) for at in hungry}
        if not any(portions.values()):
            portions = dict.fromkeys(hungry[:left], 1)
        for at, portion in portions.items():
            given[at] += portion
        left -= sum(portions.values())
    return given
