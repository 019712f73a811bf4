"""Pipelines and profiles that several tests of planning share."""

from typing import Any

from shiplift.runtime.planning.arrivals import Arrivals
from shiplift.runtime.planning.options import Problem
from shiplift.runtime.planning.profiles import MemberConfiguration, Profiles, StepProfile
from shiplift.runtime.planning.scenario import Graph, Scenario, draw, graph_of
from shiplift.runtime.planning.settings import MemberSettings
from shiplift.runtime.spec.pipeline import PipelineSpec, parse
from tests.unit.pipelines_of_models import CASCADE

_X = "{datatype: FP32, shape: [-1, 4]}"
ONE = f"""
name: one
inputs: {{x: {_X}}}
outputs: {{y: {_X}}}
members: {{a: {{model: a}}}}
steps:
  first: {{member: a, inputs: {{x: x}}, outputs: {{y: y}}}}
"""
CHAIN = f"""
name: chain
inputs: {{x: {_X}}}
outputs: {{z: {_X}}}
members: {{a: {{model: a}}, b: {{model: b}}}}
steps:
  first: {{member: a, inputs: {{x: x}}, outputs: {{y: y}}}}
  second: {{member: b, inputs: {{x: y}}, outputs: {{y: z}}}}
"""
JOIN = f"""
name: join
inputs: {{x: {_X}}}
outputs: {{z: {_X}}}
members: {{a: {{model: a}}, b: {{model: b}}, c: {{model: c}}}}
steps:
  left: {{member: a, inputs: {{x: x}}, outputs: {{y: l}}}}
  right: {{member: b, inputs: {{x: x}}, outputs: {{y: r}}}}
  both: {{member: c, inputs: {{l: l, r: r}}, outputs: {{y: z}}}}
"""
SHARED = f"""
name: shared
inputs: {{x: {_X}}}
outputs: {{z: {_X}}}
members: {{a: {{model: a}}, b: {{model: b}}}}
steps:
  first: {{member: a, inputs: {{x: x}}, outputs: {{y: y}}}}
  again: {{member: a, inputs: {{x: y}}, outputs: {{y: w}}}}
  last: {{member: b, inputs: {{l: y, r: w}}, outputs: {{y: z}}}}
"""
LOOP = f"""
name: loop
admission: {{python: sandbox}}
inputs: {{x: {_X}}}
outputs: {{z: {_X}}}
members: {{a: {{model: a}}, b: {{model: b}}}}
steps:
  find: {{member: a, inputs: {{x: x}}, outputs: {{y: y}}}}
  crop: {{python: crop.py, inputs: {{y: y}}, outputs: {{crops: {_X}}}}}
  read: {{member: b, inputs: {{x: crops}}, outputs: {{y: z}}, for_each: {{over: crops, max: 20}}}}
"""
STEPS = {
    "crop": StepProfile(ms=2, spread=0.3),
    "read": StepProfile(rows={0: 0.1, 3: 0.6, 9: 0.3}),
    "think": StepProfile(probability=0.3),
}
GRAPHS = {"one": ONE, "chain": CHAIN, "join": JOIN, "shared": SHARED, "loop": LOOP, "cascade": CASCADE}


def spec(name: str) -> PipelineSpec:
    return parse(GRAPHS[name]).spec


def configuration(**changes: Any) -> MemberConfiguration:
    """10 ms for a row, and 4 ms for each further one."""
    defaults: dict[str, Any] = {"max_batch": 8, "batch_ms": {1: 10.0, 8: 38.0}, "spread": 0.2, "memory_mb": 100.0}
    return MemberConfiguration(**defaults | changes)


def settings(instances: int = 1, max_batch: int = 1, queue_delay_us: int = 0, **changes: Any) -> MemberSettings:
    return MemberSettings(
        configuration=configuration(**changes), max_batch=max_batch, queue_delay_us=queue_delay_us, instances=instances
    )


def profiles(name: str, *configurations: MemberConfiguration, **changes: Any) -> Profiles:
    """The same configurations for every member."""
    written = spec(name)
    return Profiles(
        members={member: configurations or (configuration(),) for member in written.members},
        steps={step: profile for step, profile in STEPS.items() if step in written.steps},
        **changes,
    )


def problem(
    name: str, *configurations: MemberConfiguration, rate: float = 40, p99_ms: float = 200, **changes: Any
) -> Problem:
    written = spec(name)
    return Problem(
        spec=written,
        graph=graph_of(written, bls=name in ("loop", "cascade")),
        profiles=profiles(name, *configurations),
        arrivals=Arrivals(rate_per_s=rate),
        p99_ms=p99_ms,
        **changes,
    )


def drawn(
    name: str, rate: float = 40, cv: float = 1, count: int = 2000, seed: int = 0, **changes: Any
) -> tuple[Graph, Scenario, Profiles]:
    """A pipeline's graph, a scenario of it, and its profiles."""
    written = spec(name)
    graph, known = graph_of(written, bls=name in ("loop", "cascade")), profiles(name, **changes)
    return graph, draw(written, graph, known, Arrivals(rate_per_s=rate, cv=cv), count=count, seed=seed), known
