"""Which stages share a pod, on an engine that has pods: those whose placements name the same `pod`.

A pod takes seconds to start, and more to import what its stages need. Sharing must not give a stage rights that it
would lack in a pod of its own, so only stages with equal rights share one. Every mistake is an error at import.

A pod may continue with the fan-out that follows it, if the fan-out has a single item that can run on the same node.
The fan-out may then need a record from another pod that is still running. The ledger hands that record over.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from shiplift.pipelines.graph import FanOut, Pipeline, Stage
from shiplift.runtime.records.base import Record

_SAME = ("sandbox", "cluster", "on_target")  # these decide a pod's credentials, service account and node


@dataclass(frozen=True)
class Pod:
    """Stages that run one after another in a pod. A pod with one stage has that stage's name.

    `then` is the fan-out that the pod may continue with.
    """

    name: str
    stages: tuple[Stage, ...]
    then: FanOut | None = None

    @property
    def all_stages(self) -> tuple[Stage, ...]:
        """Its own stages, then those of the fan-out that it may continue with."""
        return (*self.stages, *(self.then.stages if self.then else ()))

    @property
    def met(self) -> dict[str, Any]:
        """The record types, by parameter name, that only the fan-out takes: they arrive while the pod runs."""
        known = {**self.takes, **self.provides}
        return {name: kind for name, kind in self.then.takes.items() if name not in known} if self.then else {}

    @property
    def takes(self) -> dict[str, Any]:
        """The record types that come from other pods, by parameter name."""
        inside = self.provides
        return {name: kind for stage in self.stages for name, kind in stage.takes.items() if name not in inside}

    @property
    def provides(self) -> dict[str, type[Record]]:
        """The record types that its stages return, with their sections, by parameter name."""
        return {name: kind for stage in self.stages for name, kind in stage.provides.items()}

    @property
    def leaves(self) -> dict[str, type[Record]]:
        """What it `provides`, and the record types of the fan-out, which it leaves only if it continued with that."""
        return {name: kind for stage in self.all_stages for name, kind in stage.provides.items()}

    @property
    def words(self) -> str:
        """Its stages as a single word of a command line: `deploy+gate`; `each-target` is a fan-out."""
        return "+".join([*(stage.name for stage in self.stages), *([self.then.name] if self.then else [])])

    @property
    def deadline_s(self) -> int:
        """How long the whole pod may run. Each of its stages has its own deadline as well."""
        return sum(stage.at.deadline_s for stage in self.all_stages)

    def without_bench(self) -> tuple["Pod", "Pod"] | None:
        """This pod without the stage that measures, and that stage's own pod; None if there is nothing to split."""
        bench = self.stages[-1]
        if not bench.at.bench or len(self.stages) == 1:
            return None
        return Pod(self.name, self.stages[:-1]), Pod(bench.name, (bench,))


def of(pipeline: Pipeline) -> tuple[Pod | FanOut, ...]:
    """The pods of a pipeline, each after those whose records it takes. For a `FanOut`, `inside` lists the pods.

    Raises:
        TypeError: the stages of a pod have different rights, or their order can't be kept.
    """
    pods = _grouped(pipeline.stages)
    everywhere = [pod.name for pod in flat(pods)] + [fan_out.name for fan_out in pods if isinstance(fan_out, FanOut)]
    if twice := {name for name in everywhere if everywhere.count(name) > 1}:
        raise TypeError(f"there are two pods {min(twice)!r}: stages share a pod only inside the same fan-out")
    for pod in flat(pods):
        _check_effects(pod)
    return pods


def inside(fan_out: FanOut) -> tuple[Pod, ...]:
    """The pods of one item of a fan-out, in order."""
    return tuple(pod for pod in _grouped(fan_out.stages) if isinstance(pod, Pod))


def handed_over(pods: Sequence[Pod | FanOut]) -> tuple[type[Record], ...]:
    """The records that a pod receives while it runs: the ledger has to pass them on."""
    return tuple(kind for pod in flat(pods) for name, kind in pod.met.items())


def hands_over(stage: Stage, kinds: Sequence[type[Record]]) -> bool:
    """Whether a stage's record, or a section of it, is one of those that are handed over."""
    return any(kind in kinds for kind in stage.provides.values())


def flat(pods: Sequence[Pod | FanOut]) -> Iterator[Pod]:
    """Every pod, including those of a fan-out."""
    for pod in pods:
        yield from inside(pod) if isinstance(pod, FanOut) else (pod,)


def _grouped(stages: Sequence[Stage | FanOut]) -> tuple[Pod | FanOut, ...]:
    shared: dict[str, list[Stage]] = {}
    nodes: dict[str, Pod | FanOut] = {}
    for stage in stages:
        if isinstance(stage, FanOut):
            nodes[stage.name] = stage
            continue
        name = stage.at.pod or stage.name
        shared.setdefault(name, []).append(stage)
        nodes[name] = Pod(name, tuple(shared[name]))
    for fan_out in [node for node in nodes.values() if isinstance(node, FanOut) and node.within]:
        nodes[fan_out.within] = _going_on(nodes.get(fan_out.within), fan_out)
    for node in nodes.values():
        if isinstance(node, Pod):
            _check(node)
    return _ordered(nodes)


def _going_on(pod: Pod | FanOut | None, fan_out: FanOut) -> Pod:
    if not isinstance(pod, Pod) or fan_out.source not in pod.provides:
        raise TypeError(f"{fan_out.name} is `within` pod {fan_out.within!r}, which does not provide {fan_out.source!r}")
    for stage in fan_out.stages:
        if (stage.at.sandbox, stage.at.cluster) != (pod.stages[0].at.sandbox, pod.stages[0].at.cluster):
            raise TypeError(f"pod {pod.name!r} and {stage.name} of {fan_out.name} have different rights")
    return replace(pod, then=fan_out)


def _check(pod: Pod) -> None:
    first, *others = pod.stages
    for other in others:
        for right in _SAME:
            if getattr(first.at, right) != getattr(other.at, right):
                raise TypeError(f"pod {pod.name!r}: {first.name} and {other.name} differ in `{right}`")
    for stage in pod.stages[:-1]:
        if stage.at.shielded or stage.at.bench:
            raise TypeError(f"pod {pod.name!r}: {stage.name} is shielded or measures, so it must be the last stage")
    if first.at.sandbox:
        _check_records(pod)


def _check_effects(pod: Pod) -> None:
    """An effect and the stage that uses it share a pod: only a walk over both can set the effect up again."""
    for stage in pod.stages:
        if stage.at.uses and stage.at.uses not in [other.step for other in pod.stages]:
            raise TypeError(f"pod {pod.name!r}: {stage.name} uses {stage.at.uses.__name__}, which is in another pod")


def _check_records(pod: Pod) -> None:
    """Refuses records that a sandboxed pod can't pass on: its broker believes the ledger, never the pod itself."""
    for stage in pod.stages:
        takers = [other.name for other in pod.stages if set(stage.provides) & set(other.takes)]
        if takers and stage.at.keep != "result":
            raise TypeError(
                f"pod {pod.name!r}: {takers[0]} takes the record of {stage.name}, which the ledger does not store"
            )


def _ordered(nodes: dict[str, Pod | FanOut]) -> tuple[Pod | FanOut, ...]:
    giver: dict[str, str] = {}
    for name, node in nodes.items():
        records = node.provides if isinstance(node, Pod) else (node.gives.parameter(),)
        giver |= dict.fromkeys(records, name)
    needs = {
        name: {
            giver[taken]
            for taken in (*node.takes, *([node.source] if isinstance(node, FanOut) else []))
            if taken in giver
        }
        for name, node in nodes.items()
    }
    try:
        return tuple(nodes[name] for name in TopologicalSorter(needs).static_order())
    except CycleError as error:
        raise TypeError(f"pods {' and '.join(sorted(set(error.args[1])))} need each other's records") from error
