"""When tuning makes requests that are already late wait for those that are not."""

from typing import Any

import pytest

from shiplift.runtime.search.goal import Goal
from shiplift.runtime.search.lateness import late_after_ms
from shiplift.runtime.spec.serving_settings import Priorities, Queue, Serving
from tests.unit.examples import config, package, trial


def late(*, limit_ms: float | None = 100, instances: int = 2, compute_ms: float = 20, **changes: Any) -> float:
    best = trial(config=config(instances=instances), compute_ms=compute_ms)
    kind = {name: changes.pop(name) for name in ("server", "sequences") if name in changes}
    return late_after_ms(package(**kind), best, Serving(**{"late_last": True} | changes), Goal(p99_ms=limit_ms))


def test_a_request_is_late_once_an_execution_no_longer_fits_into_the_limit() -> None:
    assert late() == pytest.approx(100 - 1.25 * 20)


@pytest.mark.parametrize(
    "changes",
    [
        {"limit_ms": None},
        {"late_last": False},
        {"queue": Queue(max_size=10)},
        {"priorities": Priorities(levels=2, default=1)},
        {"compute_ms": 50},
        {"compute_ms": 0},
        {"instances": 1},
        {"sequences": True},
    ],
)
def test_requests_go_in_turn_where_the_policy_is_not_wanted_or_would_not_help(changes: dict[str, Any]) -> None:
    assert late(**changes) == 0


def test_nvidia_s_server_needs_no_second_instance() -> None:
    assert late(instances=1, server="nvidia") > 0
