"""What planning knows about a pipeline: each member's times in each configuration, and how often each step runs."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.records.precision import Engine, Precision
from shiplift.runtime.spec.document import load_mapping, problems
from shiplift.runtime.spec.fields import NotNegative, Positive, Section
from shiplift.runtime.spec.pipeline import PipelineSpec, Step

MAX_BATCH = 4096
_Spread = Annotated[float, Field(ge=0, le=3)]
_Rows = Annotated[float, Field(ge=1, le=MAX_BATCH)]


@dataclass(frozen=True, kw_only=True)
class Cold:
    """The extra time after a pause: `longer_s` by `pauses_s`, which ascend from 0."""

    pauses_s: tuple[float, ...]
    longer_s: tuple[float, ...]

    @classmethod
    def of(cls, cold_ms: Mapping[float, float]) -> Self:
        """The same from ms; no pause costs nothing."""
        pauses = sorted(cold_ms)
        return cls(
            pauses_s=(0.0, *(pause / 1000 for pause in pauses)),
            longer_s=(0.0, *(cold_ms[pause] / 1000 for pause in pauses)),
        )

    def after(self, pause_s: float) -> float:
        """The extra time in s, interpolated; beyond the longest pause it stays constant."""
        at = bisect_right(self.pauses_s, pause_s)
        if at == len(self.pauses_s):
            return self.longer_s[-1]
        share = (pause_s - self.pauses_s[at - 1]) / (self.pauses_s[at] - self.pauses_s[at - 1])
        return self.longer_s[at - 1] + share * (self.longer_s[at] - self.longer_s[at - 1])


class MemberConfiguration(Section):
    """One way to compute a member, as measured with `instances` instances of `threads` threads side by side.

    `batch_ms` is the mean time of an execution by its number of rows; between the sizes it is interpolated. `cold_ms`
    is the extra time of an execution on an instance that was idle, by how long it was idle (in ms, interpolated as
    well): its process has to wake up, and its caches and its core are cold. `spread` is sigma of the lognormal factor
    on each execution. `memory_mb` is what the instances used together, and `instance_mb` what each further one adds
    (default: its share of `memory_mb`). `cores` is what one instance needs (default: as many as it has threads). At
    most `most_instances` are planned.
    """

    engine: Engine = "onnxruntime"
    precision: Precision = "fp32"
    threads: int = Field(1, ge=1, le=1024)
    instances: int = Field(1, ge=1, le=1024)
    most_instances: int = Field(1024, ge=1, le=1024)
    max_batch: int = Field(1, ge=1, le=MAX_BATCH)
    batch_ms: dict[_Rows, Positive] = Field(min_length=1)
    cold_ms: dict[Positive, NotNegative] = Field(default_factory=dict)
    spread: _Spread = 0.0
    memory_mb: NotNegative = 0.0
    instance_mb: NotNegative | None = None
    cores: Positive | None = None

    @property
    def way(self) -> tuple[Engine, Precision, int]:
        """What configurations have in common that differ only in the number of instances that was measured."""
        return self.engine, self.precision, self.threads

    @property
    def instance_cores(self) -> float:
        """The cores of one instance."""
        return float(self.threads) if self.cores is None else self.cores

    def memory_of(self, instances: int) -> float:
        """The memory of this many instances, in MB."""
        each = self.memory_mb / self.instances if self.instance_mb is None else self.instance_mb
        return max(each, self.memory_mb + each * (instances - self.instances))

    def seconds(self, max_batch: int) -> list[float]:
        """The mean execution time in s of each batch size, from 0 to `max_batch`."""
        return execution_seconds(self.batch_ms, max_batch)


class StepProfile(Section):
    """How often a step runs, and on how much.

    `probability` is for steps with `when`: how often the condition holds. `rows` is how many rows its member gets in a
    request (default 1), each count with its weight; a count of 0 means none. `ms` and `spread` are for Python steps:
    the mean time of a call, and sigma of its lognormal factor.
    """

    probability: float = Field(1.0, ge=0, le=1)
    rows: dict[Annotated[int, Field(ge=0, le=100_000)], Positive] | None = Field(None, min_length=1)
    ms: NotNegative | None = None
    spread: _Spread = 0.0

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.ms is not None and self.rows is not None:
            raise ValueError("`rows` are of members, and `ms` of Python steps: leave out one of the two")
        return self


class Profiles(Section):
    """Everything measured about a pipeline: members by the pipeline's names for them, and steps.

    `request_ms` is the part of an answer's time outside its steps: the network and the server's front. `step_ms` is the
    time to hand a request to a member and back. `cold_ms` is the extra time of an answer if the pipeline was idle
    before it, by how long it was idle (in ms, interpolated): the processes that hand requests on have to wake up. In
    BLS, each of the pipeline's instances uses `pipeline_mb`, and each worker that runs its Python uses `worker_mb`.
    """

    members: dict[str, tuple[MemberConfiguration, ...]] = Field(default_factory=dict)
    steps: dict[str, StepProfile] = Field(default_factory=dict)
    request_ms: NotNegative = 0.0
    step_ms: NotNegative = 0.0
    cold_ms: dict[Positive, NotNegative] = Field(default_factory=dict)
    pipeline_mb: NotNegative = 0.0
    worker_mb: NotNegative = 0.0

    def of(self, step: str) -> StepProfile:
        """A step's profile. A step without one always runs, on one row."""
        return self.steps.get(step) or StepProfile()


def parse(text: str) -> Profiles:
    """The profiles from YAML (or JSON) text.

    Raises:
        SpecInvalid: the text is not YAML, not a mapping, too large, or has wrong fields, each of which is named.
    """
    try:
        return Profiles.model_validate(load_mapping(text, "the file of profiles"))
    except ValidationError as error:
        raise SpecInvalid(
            "\n".join(problems(error, Profiles)),
            do="The documentation has an example: docs/howto/pipelines.md, `Plan for a limit`.",
        ) from error


def require_fit(spec: PipelineSpec, profiles: Profiles) -> None:
    """Checks that the profiles are for this pipeline and give what can't be assumed.

    Raises:
        SpecInvalid: they are not, or they don't; the message lists every mistake.
    """
    if mistakes := [*_strangers(spec, profiles), *_misfits(spec, profiles)]:
        raise SpecInvalid("\n".join(mistakes), do="Correct the file that --profiles names.")


def _strangers(spec: PipelineSpec, profiles: Profiles) -> Iterator[str]:
    for name in profiles.members.keys() - spec.members.keys():
        yield f"members.{name}: the pipeline has no such member, but {', '.join(spec.members) or 'none'}"
    for name in profiles.steps.keys() - spec.steps.keys():
        yield f"steps.{name}: the pipeline has no such step, but {', '.join(spec.steps)}"
    for name, configurations in profiles.members.items():
        if not configurations:
            yield f"members.{name}: it has no configuration: leave it out, or list one"


def _misfits(spec: PipelineSpec, profiles: Profiles) -> Iterator[str]:
    for name, step in spec.steps.items():
        yield from (f"steps.{name}.{what}" for what in _wrong(step, profiles.of(name)))


def _wrong(step: Step, profile: StepProfile) -> Iterator[str]:
    """What is wrong with a step's profile, after the step's path."""
    if step.python and profile.ms is None:
        yield f"ms: is missing: how long does {step.python} take, in ms?"
    if step.member and profile.ms is not None:
        yield "ms: is for Python steps: a member's times are in its configurations"
    if step.for_each and profile.rows is None:
        yield f"rows: is missing: how many rows has it? For example `rows: {{1: 3, {step.for_each.max}: 1}}`"
    if step.for_each and profile.rows and max(profile.rows) > step.for_each.max:
        yield f"rows: has {max(profile.rows)}, the limit is {step.for_each.max} (`for_each.max`)"
    if profile.probability < 1 and step.when is None:
        yield f"probability: is {profile.probability:g}, but the step has no `when`: it always runs"


def execution_seconds(batch_ms: Mapping[float, float], max_batch: int) -> list[float]:
    """The execution time in s of each batch size from 0 to `max_batch`, interpolated between the sizes measured.

    Below the smallest size it is that size's time; beyond the largest it grows in proportion.
    """
    sizes = sorted(batch_ms)
    times = [batch_ms[size] for size in sizes]
    if sizes[-1] < max_batch:
        times.append(times[-1] * max_batch / sizes[-1])
        sizes.append(max_batch)
    return [0.0, *(np.interp(range(1, max_batch + 1), sizes, times) / 1000).tolist()]
