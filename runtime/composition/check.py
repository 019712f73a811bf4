"""The check of a pipeline: all mistakes at once, each with its place in the file and how to correct it.

It gets a definition, the packages of its members and the sources of its Python steps, and accesses nothing else.
"""

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping

from shiplift.runtime.composition import wiring
from shiplift.runtime.composition.checked import CheckedMember, CheckedPipeline, PipelineProblem, Unusable
from shiplift.runtime.composition.inference import Complaint, Types
from shiplift.runtime.records.base import identity
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.spec.pipeline import PipelineSpec, Step, Written

DIGEST_LENGTH = 12


def check(
    written: Written, members: Mapping[str, Package | Unusable], sources: Mapping[str, bytes | Unusable]
) -> CheckedPipeline:
    """Checks the pipeline; `members` are by the pipeline's names, `sources` by the paths of its Python files."""
    spec, given = written.spec, wiring.givers(written.spec)
    packages = {name: package for name, package in members.items() if isinstance(package, Package)}
    graph = wiring.needs(spec)
    types = Types(spec=spec, packages=packages, givers={tensor: ends[0].step for tensor, ends in given.items()})
    order = wiring.order(graph)
    types.follow(order)
    complaints = [
        *_members(spec, members),
        *_python(spec, sources),
        *_tensors(spec, given),
        *_cycles(graph),
        *types.complaints,
    ]
    problems = tuple(
        PipelineProblem(path=path, line=written.line(path), what=what, do=do)
        for path, what, do in dict.fromkeys(complaints)
    )
    reasons = tuple(_reasons(spec))
    return CheckedPipeline(
        name=spec.name,
        way="bls" if reasons else "ensemble",
        reasons=reasons,
        workers=spec.workers if spec.functions else 0,
        order=order,
        edges=tuple(types.edges),
        tensors=types.given,
        members=tuple(CheckedMember(name=name, package=package) for name, package in packages.items()),
        problems=tuple(sorted(problems, key=lambda problem: (problem.line, problem.path))),
        digest="" if problems else _digest(spec, packages, sources),
    )


def _members(spec: PipelineSpec, members: Mapping[str, Package | Unusable]) -> Iterator[Complaint]:
    """Mistakes in the members, and in the member names that steps use."""
    used = {step.member for step in spec.steps.values() if step.member}
    for name, step in spec.steps.items():
        if step.member and step.member not in spec.members:
            hint = _like(step.member, spec.members)
            yield f"steps.{name}.member", f"there is no member {step.member!r}{hint}", "List it in `members`."
    for name in spec.members:
        at, member = f"members.{name}", members.get(name)
        if name not in used:
            yield at, f"no step runs the member {name!r}", "Leave it out, or use it in a step."
        if isinstance(member, Unusable):
            yield at, member.what, member.do
        elif member is not None and member.stateful:
            yield at, f"{member.model!r} keeps states between requests, and a pipeline does not", "Use another model."
    servers = {name: member.server for name, member in members.items() if isinstance(member, Package)}
    if len(set(servers.values())) > 1:
        listed = ", ".join(f"{name} on {server}" for name, server in servers.items())
        yield "members", f"the members are for different servers: {listed}", "Release them for targets of one kind."


def _python(spec: PipelineSpec, sources: Mapping[str, bytes | Unusable]) -> Iterator[Complaint]:
    """Mistakes in Python steps, found before any of them runs."""
    for name, step in spec.steps.items():
        if not step.python:
            continue
        at = f"steps.{name}.python"
        if spec.admission.python != "sandbox":
            yield (
                at,
                f"{step.python} is code, which is refused by default",
                "Write `admission: {python: sandbox}` to run it inside the confined server.",
            )
        source = sources.get(step.python)
        if isinstance(source, Unusable):
            yield at, source.what, source.do
        if not step.called.isidentifier():
            yield at, f"{step.called!r} can't be the name of a function", "Name it with `function`."
        for key in step.inputs:
            if not key.isidentifier():
                yield f"steps.{name}.inputs.{key}", f"{key!r} can't be the name of a parameter", "Rename it."


def _tensors(spec: PipelineSpec, given: Mapping[str, list[wiring.End]]) -> Iterator[Complaint]:
    """Tensors without a source, with two sources or without a use, and inputs that only pass through."""
    taken = list(wiring.takers(spec))
    for end in (end for end in taken if end.tensor not in given):
        hint = _like(end.tensor, given)
        yield end.path, f"no step gives the tensor {end.tensor!r}{hint}", "Give it in a step's `outputs`."
    for first, *others in given.values():
        who = first.step or "the pipeline's inputs"
        for other in others:
            yield other.path, f"the tensor {first.tensor!r} is also given by {who}", "Give it another name."
    for tensor in given.keys() - {end.tensor for end in taken}:
        yield given[tensor][0].path, f"no step takes the tensor {tensor!r}", "Leave it out, or make it an output."
    for tensor in spec.outputs.keys() & spec.inputs.keys():
        yield f"outputs.{tensor}", f"{tensor!r} is an input, which the client already has", "Leave it out."


def _cycles(graph: Mapping[str, set[str]]) -> Iterator[Complaint]:
    for cycle in wiring.cycles(graph):
        way = " -> ".join(cycle)
        yield f"steps.{cycle[0]}", f"the steps wait for each other: {way}", "Cut the cycle at one of their inputs."


def _reasons(spec: PipelineSpec) -> Iterator[str]:
    """Why a pipeline is not a static graph of members."""
    if spec.timeout_s is not None:
        yield "the pipeline has a time limit"
    for name, step in spec.steps.items():
        parts = [part for part, has in _dynamic(step).items() if has]
        if parts:
            yield f"{name} has {', '.join(parts)}"
    yield from _beyond_ensembles(spec)


def _beyond_ensembles(spec: PipelineSpec) -> Iterator[str]:
    """Why Triton can't run a static graph as an ensemble.

    If one step of a request fails while another one is under way, Triton's ensembles never answer the request and never
    release it (core#466, fixed in 26.02). So no two steps may be ready at the same time.
    """
    graph = wiring.needs(spec)
    steps = wiring.order(graph)
    behind: dict[str, set[str]] = {}
    for before, step in zip(("", *steps), steps, strict=False):
        behind[step] = set(graph[step]).union(*(behind[need] for need in graph[step] if need in behind))
        if before and before not in behind[step]:
            yield f"{before} and {step} can run at the same time, and Triton's ensembles lose requests when one fails"
            return


def _dynamic(step: Step) -> dict[str, bool]:
    return {
        "Python": bool(step.python),
        "a condition": step.when is not None,
        "a loop": step.for_each is not None,
        f"`on_error: {step.on_error}`": step.on_error != "fail",
        "a time limit": step.timeout_s is not None,
    }


def _digest(spec: PipelineSpec, packages: Mapping[str, Package], sources: Mapping[str, bytes | Unusable]) -> str:
    """The digest that names the bundle, of its definition, each member's files and configuration, and the code."""
    content = {
        "spec": identity(spec),
        "members": {
            name: [package.repository.sha256, identity(package.config), package.engine]
            for name, package in packages.items()
        },
        "python": {
            path: hashlib.sha256(source).hexdigest() for path, source in sources.items() if isinstance(source, bytes)
        },
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:DIGEST_LENGTH]


def _like(name: str, names: Mapping[str, object]) -> str:
    matches = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""
