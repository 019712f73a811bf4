"""A pipeline is data: a tuple of stages, connected by the types of the records that their steps take and return.

Every mistake in a pipeline is an error at import: an unknown input, a record provided twice, a parameter that isn't
named after its type. The parts of a `Sections` are edges too, so a step takes only the sections it uses.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import GenericAlias
from typing import Any, Literal, get_args, get_origin, get_type_hints

from shiplift.runtime.confinement.policy import Entry
from shiplift.runtime.records.base import Record, Sections
from shiplift.runtime.records.promotion import Abort
from shiplift.runtime.records.release import Ending

Step = Callable[..., Record]
Halt = Callable[[Abort, Mapping[str, Any]], bool]


def _runs_on(_order: Abort, _arguments: Mapping[str, Any]) -> bool:
    """The `halt` of a stage that can't be aborted."""
    return True


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where, how long and how often a stage runs. This belongs to the stage, never to the step.

    `keep` says whether a rerun can use a finished stage's record. "result": the record is all the stage produces, so
    it is a cache hit. "effect": it is a hit too, but the stage also set something up (a staging server), so it runs
    again before a stage that `uses` its step. "never": the stage reads or changes the world, and always runs.
    A `shielded` stage moves traffic: it runs to its end even if the release is cancelled. A person's order to abort the
    release goes to `halt`, with the step's arguments by name, before the step runs again: it returns whether the step
    has something to end or to give back.
    A `cluster` stage may use the cluster's API, where there is one; no other stage may.
    A `bench` stage measures: in its own pod on the target's nodes or, for NVIDIA's image, in a pod that it creates
    there. Only it may create that pod.
    A `sandbox` stage's container in a pod has no credentials, key or token: it parses or runs an author's files, or
    shares a pod with a stage that does.
    `warm` names a sandbox entry of the step that may be started ahead of time, while an earlier stage runs or, on one
    machine, before there is a release.
    A `gpu_tools` stage runs in the image with NVIDIA's tools for an NVIDIA target.
    Stages with the same `pod` share one, on an engine that has pods: see `pipelines.pods`.
    """

    cpu: str = "500m"
    memory: str = "512Mi"
    deadline_s: int = 1800
    retries: int = 3
    on_target: bool = False
    sandbox: bool = False
    warm: Entry | None = None
    shielded: bool = False
    halt: Halt = _runs_on
    cluster: bool = False
    bench: bool = False
    gpu_tools: bool = False
    keep: Literal["result", "effect", "never"] = "result"
    uses: Step | None = None
    pod: str = ""


@dataclass(frozen=True)
class Stage:
    """A step and its placement.

    `holds` gets a stored record and the step's arguments, and says whether the record still holds in the world outside
    of those arguments; without, it does. It raises what the step raises.
    """

    step: Step
    at: Placement = field(default_factory=Placement)
    holds: Callable[..., bool] | None = None

    @property
    def name(self) -> str:
        """The step's own name."""
        return self.step.__name__

    @property
    def entry(self) -> str:
        """The step as `module:function`, which names it in error messages and cache keys."""
        return f"{self.step.__module__}:{self.name}"

    @property
    def takes(self) -> dict[str, Any]:
        """The record types by parameter name."""
        hints = get_type_hints(self.step)
        names = list(inspect.signature(self.step).parameters)
        for name in names:
            if name not in hints:
                raise TypeError(f"{self.entry} has no type for {name!r}")
        return {name: hints[name] for name in names}

    @property
    def gives(self) -> type[Record]:
        """The record type it returns."""
        returned: Any = get_type_hints(self.step).get("return")
        if not (isinstance(returned, type) and issubclass(returned, Record)):
            raise TypeError(f"{self.entry} does not say which record it returns")
        return returned

    @property
    def provides(self) -> dict[str, type[Record]]:
        """The record it returns and the sections of that record, by parameter name."""
        parts = self.gives.parts() if issubclass(self.gives, Sections) else {}
        return {self.gives.parameter(): self.gives, **parts}


@dataclass(frozen=True)
class FanOut:
    """Stages that run once per item of a tuple in a record: `FanOut(Target, "fleet", "targets", (...))`.

    Inside, `target` is the item. Outside, the last stage's records are a tuple: `tuned: tuple[Tuned, ...]`.
    `unfit` says why an item can't run on this machine (empty: it can). An engine with a single machine skips such an
    item; an engine with many schedules it on a machine that fits.
    `within` names a pod, on an engine that has pods. If the fan-out has a single item and that is `at_home` on the
    pod's node, the same pod runs it, which saves the start of another.
    """

    item: type[Record]
    source: str
    attribute: str
    stages: tuple[Stage, ...]
    unfit: Callable[[Any], str] = lambda _: ""
    within: str = ""
    at_home: Callable[[Any], bool] = lambda _: False

    def only_item(self, source: Record) -> Record | None:
        """The record's item, if it has exactly one and that is `at_home` on this machine; else None."""
        items: tuple[Record, ...] = getattr(source, self.attribute)
        return items[0] if len(items) == 1 and self.at_home(items[0]) else None

    @property
    def name(self) -> str:
        """A name for the group, such as `each-target`."""
        return f"each-{self.item.parameter()}"

    @property
    def gives(self) -> type[Record]:
        """The record type of the last stage."""
        return self.stages[-1].gives

    @property
    def takes(self) -> dict[str, Any]:
        """The record types that its stages take from outside the fan-out, by parameter name."""
        inside = {self.item.parameter(), *(stage.gives.parameter() for stage in self.stages)}
        parameters = {name: kind for stage in self.stages for name, kind in stage.takes.items()}
        return {name: kind for name, kind in parameters.items() if name not in inside}


@dataclass(frozen=True)
class Pipeline:
    """Stages in order. `on_exit` runs however the others ended, and takes an `Ending` that says how.

    Raises:
        TypeError: the stages do not connect.
    """

    name: str
    inputs: tuple[type[Record], ...]
    stages: tuple[Stage | FanOut, ...]
    on_exit: Stage | None = None

    def __post_init__(self) -> None:
        known: dict[str, Any] = {kind.parameter(): kind for kind in self.inputs}
        for stage in self.stages:
            if isinstance(stage, FanOut):
                _check_source(stage, known)
                inside = dict(known)
                _add(inside, stage.item.parameter(), stage.item, stage.name)
                for inner in stage.stages:
                    _connect(inner, inside)
                _add(known, stage.gives.parameter(), GenericAlias(tuple, (stage.gives, ...)), stage.name)
            else:
                _connect(stage, known)
        if self.on_exit is not None:  # an earlier stage may have failed: only the inputs certainly exist
            available: tuple[type[Record], ...] = (*self.inputs, Ending)
            _connect(self.on_exit, {kind.parameter(): kind for kind in available})
        effects = {stage.step for stage in self.flat() if stage.at.keep == "effect"}
        for stage in self.flat():
            if stage.at.uses and stage.at.uses not in effects:
                raise TypeError(f"{stage.entry} uses {stage.at.uses.__name__!r}, which is not a stage with an effect")

    def __iter__(self) -> Iterator[Stage | FanOut]:
        return iter(self.stages)

    def flat(self) -> Iterator[Stage]:
        """Every stage, including those of a fan-out."""
        for stage in self.stages:
            yield from stage.stages if isinstance(stage, FanOut) else (stage,)

    @property
    def order(self) -> tuple[str, ...]:
        """The names of all stages, in the order in which a report lists them."""
        return tuple(stage.name for stage in self.flat())

    @property
    def givers(self) -> dict[str, str]:
        """Which stage gives each record, by the record's name as a parameter: `{"load_report": "load_test"}`."""
        return {stage.gives.parameter(): stage.name for stage in self.flat()}


def _connect(stage: Stage, known: dict[str, Any]) -> None:
    for name, kind in stage.takes.items():
        if name not in known:
            raise TypeError(
                f"{stage.entry} takes {name!r}, which nothing before it provides; available: {', '.join(known)}"
            )
        if known[name] != kind:
            raise TypeError(f"{stage.entry} takes {name!r} as {kind}, but it is {known[name]}")
    _add(known, stage.gives.parameter(), stage.gives, stage.entry)
    if issubclass(stage.gives, Sections):
        for name, kind in stage.gives.parts().items():
            if name != kind.parameter():
                raise TypeError(f"{stage.gives.__name__}.{name} is a {kind.__name__}: name it {kind.parameter()!r}")
            _add(known, name, kind, stage.entry)


def _check_source(fan_out: FanOut, known: dict[str, Any]) -> None:
    if fan_out.source not in known:
        raise TypeError(f"{fan_out.name} iterates over {fan_out.source!r}, which nothing before it provides")
    field = getattr(known[fan_out.source], "model_fields", {}).get(fan_out.attribute)
    if field is None or field.annotation != GenericAlias(tuple, (fan_out.item, ...)):
        raise TypeError(
            f"{fan_out.name} iterates over {fan_out.source}.{fan_out.attribute}, "
            f"which is not a tuple of {fan_out.item.__name__}"
        )


def _add(known: dict[str, Any], name: str, kind: Any, giver: str) -> None:
    if name in known:
        raise TypeError(f"{giver} provides {name!r} a second time")
    known[name] = kind


def load(kind: Any, value: Any) -> Any:
    """A record, or a tuple of records, from decoded JSON. Argo passes a fan-out's results as a list of JSON texts."""
    if get_origin(kind) is tuple:
        return tuple(load(get_args(kind)[0], item) for item in value)
    return kind.model_validate_json(value) if isinstance(value, str) else kind.model_validate(value)
