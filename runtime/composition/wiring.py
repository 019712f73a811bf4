"""The graph of a pipeline: which step gives and which takes each tensor, cycles, and an order to run the steps in."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from shiplift.runtime.spec.pipeline import PipelineSpec, Step

CLIENT = ""  # the name of the one that gives a pipeline's inputs and takes its outputs


@dataclass(frozen=True, kw_only=True)
class End:
    """One end of an edge: the step or `CLIENT` that gives or takes a tensor, and the path in the file that says so."""

    step: str
    tensor: str
    path: str


def givers(spec: PipelineSpec) -> dict[str, list[End]]:
    """The steps that give each tensor; more than one is a mistake."""
    ends = [End(step=CLIENT, tensor=name, path=f"inputs.{name}") for name in spec.inputs]
    for name, step in spec.steps.items():
        at = f"steps.{name}.outputs"
        ends += [
            End(step=name, tensor=output if isinstance(output, str) else key, path=f"{at}.{key}")
            for key, output in step.outputs.items()
        ]
    given: dict[str, list[End]] = {}
    for end in ends:
        given.setdefault(end.tensor, []).append(end)
    return given


def takers(spec: PipelineSpec) -> Iterator[End]:
    """Everything that takes a tensor: the pipeline's outputs, and every use by a step."""
    for name in spec.outputs:
        yield End(step=CLIENT, tensor=name, path=f"outputs.{name}")
    for name, step in spec.steps.items():
        yield from uses(name, step)


def uses(name: str, step: Step) -> Iterator[End]:
    """What a step takes: its inputs, the tensor of its condition, and the substitutes for its outputs."""
    for key, tensor in step.inputs.items():
        yield End(step=name, tensor=tensor, path=f"steps.{name}.inputs.{key}")
    if step.when:
        yield End(step=name, tensor=step.when.tensor, path=f"steps.{name}.when.tensor")
    for key, tensor in step.otherwise.items():
        yield End(step=name, tensor=tensor, path=f"steps.{name}.otherwise.{key}")


def needs(spec: PipelineSpec) -> dict[str, set[str]]:
    """The steps that each step waits for."""
    given = givers(spec)
    return {
        name: {end.step for use in uses(name, step) for end in given.get(use.tensor, ()) if end.step != CLIENT}
        for name, step in spec.steps.items()
    }


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Cycles of a graph, each from a step back to itself, no two sharing a step; empty if there are none."""
    left, found = {node: set(before) for node, before in graph.items()}, []
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            cycle = [str(node) for node in error.args[1]]
            found.append(cycle)
            left = {node: before - set(cycle) for node, before in left.items() if node not in cycle}
        else:
            return found


def order(graph: Mapping[str, set[str]]) -> tuple[str, ...]:
    """The steps, each after those it waits for, otherwise in the file's order; without those on or behind a cycle."""
    places = {node: at for at, node in enumerate(graph)}
    done: list[str] = []
    waiting = dict(graph)
    while ready := [node for node, before in waiting.items() if before <= set(done)]:
        first = min(ready, key=places.__getitem__)
        done.append(first)
        del waiting[first]
    return tuple(done)
