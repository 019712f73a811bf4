"""The objects that should exist: what depends on the packages that serve."""

import pytest

from shiplift.runtime.records.serving import ServerNeeds
from shiplift.runtime.serving.operator import wanted
from shiplift.runtime.serving.operator.observed import Observed
from tests.unit.runtime.serving.operator.world import World, cluster, name_of


@pytest.mark.parametrize(("weights", "limit"), [({1: 100}, "60s"), ({1: 90, 2: 10}, "630s"), ({9: 100}, "60s")])
def test_a_request_may_take_as_long_at_the_gateway_as_on_the_slowest_server(
    weights: dict[int, int], limit: str
) -> None:
    world = World()
    revisions = {1: world.revision(1), 2: world.revision(2, needs=ServerNeeds(request_timeout_s=600))}
    observed = Observed(
        name="digits",
        namespace="models",
        uid="1",
        generation=1,
        cluster=cluster(),
        spec=world.spec,
        revisions={name_of(version): seen for version, seen in revisions.items()},
    )
    shares = {name_of(version): percent for version, percent in weights.items()}
    bodies = [body for body in wanted.front(observed, world.spec, shares) if body["kind"] == "HTTPRoute"]
    assert {body["spec"]["rules"][0]["timeouts"]["request"] for body in bodies} == {limit}
