"""A pipeline is data: a tuple of stages. An edge is a record type: who returns `Exported` feeds whoever takes it.

Everything that can be wrong with a pipeline is wrong at import: an unknown input, a record given twice, a parameter
that isn't named after its type. A `Sections` feeds its parts too, so a step takes only the sections it uses.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import GenericAlias
from typing import Any, Literal, get_args, get_origin, get_type_hints

from shiplift.runtime.host.sandbox import Entry
from shiplift.runtime.records.base import Record, Sections
from shiplift.runtime.records.release import Ending

Step = Callable[..., Record]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where, how long and how often a stage runs: the stage's business, never the step's.

    `keep` says what a finished stage is worth on a rerun. "result": its record is all of it, so it is a hit.
    "effect": its record is a hit, but it set something up (a staging server), so it runs again before a stage that
    `uses` its step does. "never": it reads or changes the world and always runs.
    A `shielded` stage is finished rather than cancelled, since it moves traffic.
    A `cluster` stage talks to the cluster's API where there is one; no other is given the right to. A `bench` stage
    measures: itself, on the target's nodes, or for NVIDIA's image a pod there, which it alone has the right to make.
    `warm` names a sandbox entry that a local engine may start ahead of time.
    A `modelopt` stage runs in the image with NVIDIA's modelopt for an NVIDIA target, where there is one.
    """

    cpu: str = "500m"
    memory: str = "512Mi"
    deadline_s: int = 1800
    retries: int = 3
    on_target: bool = False
    sandbox: bool = False
    warm: Entry | None = None
    shielded: bool = False
    cluster: bool = False
    bench: bool = False
    modelopt: bool = False
    keep: Literal["result", "effect", "never"] = "result"
    uses: Step | None = None


@dataclass(frozen=True)
class Stage:
    """One step and its placement."""

    step: Step
    at: Placement = field(default_factory=Placement)

    @property
    def name(self) -> str:
        """The step's own name."""
        return self.step.__name__

    @property
    def entry(self) -> str:
        """`module:function`, as a pod is given it."""
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
            raise TypeError(f"{self.entry} does not say which record it gives")
        return returned


@dataclass(frozen=True)
class Each:
    """Stages that run once per item of a tuple held by an input: `Each(Target, "fleet", "targets", (...))`.

    Inside, `target` is the item. Outside, the last stage's records are a tuple: `tuned: tuple[Tuned, ...]`.
    `unfit` says why an item can't run on this machine (empty: it can): an engine of one machine passes it over, one
    with many machines looks for the right one instead.
    """

    item: type[Record]
    source: str
    attribute: str
    stages: tuple[Stage, ...]
    unfit: Callable[[Any], str] = lambda _: ""

    @property
    def name(self) -> str:
        """A name for the group, as `each-target`."""
        return f"each-{self.item.parameter()}"

    @property
    def gives(self) -> type[Record]:
        """The record type of the last stage."""
        return self.stages[-1].gives

    @property
    def takes(self) -> dict[str, Any]:
        """What flows in from outside."""
        inside = {self.item.parameter(), *(stage.gives.parameter() for stage in self.stages)}
        wanted = {name: kind for stage in self.stages for name, kind in stage.takes.items()}
        return {name: kind for name, kind in wanted.items() if name not in inside}


@dataclass(frozen=True)
class Pipeline:
    """Stages in order. `on_exit` runs whatever happened, and is given how it ended.

    Raises:
        TypeError: the stages do not connect.
    """

    name: str
    inputs: tuple[type[Record], ...]
    stages: tuple[Stage | Each, ...]
    on_exit: Stage | None = None

    def __post_init__(self) -> None:
        known: dict[str, Any] = {kind.parameter(): kind for kind in self.inputs}
        for stage in self.stages:
            if isinstance(stage, Each):
                _goes_over(stage, known)
                inside = dict(known)
                _name(inside, stage.item.parameter(), stage.item, stage.name)
                for inner in stage.stages:
                    _connect(inner, inside)
                _name(known, stage.gives.parameter(), GenericAlias(tuple, (stage.gives, ...)), stage.name)
            else:
                _connect(stage, known)
        if self.on_exit is not None:  # it runs whatever happened: only the inputs are sure to be there
            given: tuple[type[Record], ...] = (*self.inputs, Ending)
            _connect(self.on_exit, {kind.parameter(): kind for kind in given})
        effects = {stage.step for stage in self.flat() if stage.at.keep == "effect"}
        for stage in self.flat():
            if stage.at.uses and stage.at.uses not in effects:
                raise TypeError(f"{stage.entry} uses {stage.at.uses.__name__!r}, which is no stage with an effect")

    def __iter__(self) -> Iterator[Stage | Each]:
        return iter(self.stages)

    def flat(self) -> Iterator[Stage]:
        """Every stage, those of a fan-out included."""
        for stage in self.stages:
            yield from stage.stages if isinstance(stage, Each) else (stage,)

    @property
    def givers(self) -> dict[str, str]:
        """Which stage gives each record, by the record's name as a parameter: `{"load_report": "load_test"}`."""
        return {stage.gives.parameter(): stage.name for stage in self.flat()}


def _connect(stage: Stage, known: dict[str, Any]) -> None:
    for name, kind in stage.takes.items():
        if name not in known:
            raise TypeError(
                f"{stage.entry} takes {name!r}, which nothing before it gives; there are: {', '.join(known)}"
            )
        if known[name] != kind:
            raise TypeError(f"{stage.entry} takes {name!r} as {kind}, but it is {known[name]}")
    _name(known, stage.gives.parameter(), stage.gives, stage.entry)
    if issubclass(stage.gives, Sections):
        for name, kind in stage.gives.parts().items():
            if name != kind.parameter():
                raise TypeError(f"{stage.gives.__name__}.{name} is a {kind.__name__}: name it {kind.parameter()!r}")
            _name(known, name, kind, stage.entry)


def _goes_over(each: Each, known: dict[str, Any]) -> None:
    if each.source not in known:
        raise TypeError(f"{each.name} goes over {each.source!r}, which nothing before it gives")
    field = getattr(known[each.source], "model_fields", {}).get(each.attribute)
    if field is None or field.annotation != GenericAlias(tuple, (each.item, ...)):
        raise TypeError(
            f"{each.name} goes over {each.source}.{each.attribute}, which is no tuple of {each.item.__name__}"
        )


def _name(known: dict[str, Any], name: str, kind: Any, giver: str) -> None:
    if name in known:
        raise TypeError(f"{giver} gives {name!r} a second time")
    known[name] = kind


def load(kind: Any, value: Any) -> Any:
    """A record, or a tuple of them, from decoded JSON. Argo hands a fan-out's results over as a list of JSON texts."""
    if get_origin(kind) is tuple:
        return tuple(load(get_args(kind)[0], item) for item in value)
    return kind.model_validate_json(value) if isinstance(value, str) else kind.model_validate(value)
