"""A pipeline as a Mermaid flowchart, which GitHub, GitLab and many editors draw."""

from collections.abc import Iterator

from shiplift.runtime.composition.checked import CheckedMember, CheckedPipeline, Edge
from shiplift.runtime.spec.pipeline import PipelineSpec, Step

_PLAIN = " ,.-_[]:/'"  # characters that Mermaid shows unchanged, besides letters and digits


def mermaid(spec: PipelineSpec, checked: CheckedPipeline) -> str:
    """The flowchart: steps with what they run and when, and edges with the tensor, its datatype and its shape."""
    return "\n".join(["flowchart LR", *_nodes(spec, checked), *map(_arrow, checked.edges)]) + "\n"


def edge_type(edge: Edge) -> str:
    """An edge's datatype and shape: `FP32[-1, 4]`."""
    return f"{edge.datatype}[{', '.join(map(str, edge.shape))}]"


def runs(step: Step, members: dict[str, CheckedMember]) -> str:
    """What a step runs, for people: `digits 3`, or `crop.py`."""
    if step.python:
        return f"{step.called} of {step.python}"
    package = members[step.member].package if step.member in members else None
    return f"{package.model} {package.version}" if package else step.member


def remarks(step: Step) -> list[str]:
    """When a step runs, how often, and what happens if it fails."""
    when, loop = step.when, step.for_each
    limits = (("below", when.below), ("at least", when.at_least), ("equal to", when.equals)) if when else ()
    how = [f"{word} {limit}" for word, limit in limits if limit is not None]
    return [
        *([f"if {when.of} of {when.tensor} is {how[0]}"] if when else []),
        *([f"for each row of {', '.join(loop.over)}, at most {loop.max}"] if loop else []),
        *([f"if it fails: {step.on_error}"] if step.on_error != "fail" else []),
        *([f"within {step.timeout_s:g} s"] if step.timeout_s is not None else []),
    ]


def _nodes(spec: PipelineSpec, checked: CheckedPipeline) -> Iterator[str]:
    members = {member.name: member for member in checked.members}
    yield "    request([request])"
    for name in spec.steps:
        step = spec.steps[name]
        lines = [name, runs(step, members), *remarks(step)]
        shape = ('[["', '"]]') if step.python else ('["', '"]')
        yield f"    {_id(name)}{shape[0]}{'<br>'.join(map(_text, lines))}{shape[1]}"
    yield "    answer([answer])"


def _arrow(edge: Edge) -> str:
    giver = _id(edge.giver) if edge.giver else "request"
    taker = _id(edge.taker) if edge.taker else "answer"
    return f'    {giver} -- "{_text(f"{edge.tensor} {edge_type(edge)}")}" --> {taker}'


def _id(step: str) -> str:
    return f"step_{step.replace('-', '_')}"


def _text(text: str) -> str:
    """Text for Mermaid, with its own marks and HTML's written as entities."""
    return "".join(c if c.isalnum() or c in _PLAIN else f"#{ord(c)};" for c in text)
