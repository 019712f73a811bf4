"""The spec's sections on serving: queues, priorities, sequences, rollout."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from shiplift.runtime.records.limits import Limits
from shiplift.runtime.spec.fields import Positive, Section, form


class Priorities(Section):
    """Triton's request priorities: 1 is the most urgent."""

    levels: int = Field(ge=1, le=100)
    default: int = Field(ge=1)

    @model_validator(mode="after")
    def _within(self) -> Self:
        if self.default > self.levels:
            raise ValueError(f"default {self.default} exceeds the number of levels ({self.levels})")
        return self


class Queue(Section):
    """Triton's queue policy. A `max_size` or `timeout_ms` of 0 means no limit."""

    max_size: int = Field(0, ge=0, le=2**32 - 1)
    timeout_ms: float = Field(0, ge=0, le=86_400_000)
    on_timeout: Literal["reject", "delay"] = "reject"
    allow_timeout_override: bool = True


class RateLimiter(Section):
    """Triton's rate limiter: the resources that an instance needs while it executes, and its priority."""

    resources: dict[str, Annotated[int, Field(ge=1, le=2**31 - 1)]] = Field(default_factory=dict)
    priority: int = Field(1, ge=1, le=2**31 - 1)


class Metrics(Section):
    """What a server's metrics contain in addition to counters.

    Every `interval_ms` it reads values that are not counted, such as memory and utilization. `quantiles` are the
    latency quantiles over the last minute that are shown in addition to the dashboard's 0.5 and 0.99.
    """

    interval_ms: int = Field(2000, ge=100, le=3_600_000)
    quantiles: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field((0.9, 0.95, 0.999), max_length=20)


class HostPolicy(Section):
    """Where instances run: a NUMA node, or a list of cores such as `0-3` or `0,2`."""

    numa_node: int | None = Field(None, ge=0)
    cpu_cores: str | None = Field(None, pattern=r"^[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*$")


class SequenceBatching(Section):
    """A stateful model: Triton's sequence batcher sends all requests of a sequence to one instance.

    `states` maps each input that takes a state to the output that holds the state for the next request. A sequence
    starts from zeros; clients neither send nor see the states. An instance holds at most `max_candidate_sequences`,
    and a sequence without requests for `max_sequence_idle_s` is dropped. Without this section, an ONNX graph's
    states are found by name and shape; `sequence_batching: null` serves it as it is.
    """

    states: dict[str, str] = Field(min_length=1)
    max_candidate_sequences: int = Field(256, ge=1, le=2**31 - 1)
    max_sequence_idle_s: Positive = 60

    @field_validator("states")
    @classmethod
    def _distinct(cls, states: dict[str, str]) -> dict[str, str]:
        if len(set(states.values())) != len(states):
            raise ValueError(f"two inputs take the same output: {', '.join(states.values())}")
        return states


class Warmup(Section):
    """What each instance computes before it takes traffic: one sample and a full batch, each `count` times.

    Samples are the example that was logged with the model (`from: recorded`), zeros and empty texts, or drawn at
    `random` between the example's lowest and highest value, so that ids stay within a vocabulary. A random text is one
    of the example's.
    """

    model_config = ConfigDict(populate_by_name=True)  # records are stored under the fields' own names

    source: Literal["zeros", "random", "recorded"] = Field("recorded", alias="from")
    count: int = Field(1, ge=1, le=1000)


WarmupOrNot = Annotated[
    Annotated[Warmup, Tag("in full")] | Annotated[bool, Field(strict=True), Tag("by name")], Discriminator(form)
]


def _rising(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if list(sizes) != sorted(set(sizes)):
        raise ValueError(f"must rise from one size to the next, not {sizes}")
    return sizes


BatchSizes = Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], AfterValidator(_rising)]
Buckets = Annotated[
    tuple[Annotated[int, Field(ge=1, le=65536)], ...], Field(min_length=1, max_length=32), AfterValidator(_rising)
]


class Lengths(Section):
    """Inputs whose first dimension after the batch varies, such as tokens: requests of different lengths share a batch.

    The server pads a request to the smallest of the `buckets` that holds it, runs the requests of a bucket together,
    and cuts the outputs back. A longer request is run at its own length. `pad` has such inputs with the value that
    fills each up, such as 0 for a mask. `auto`: tuning chooses among sets of buckets, or none, by the lengths of the
    load test's requests. Packaging proves that padding changes no answer; if it does change one, the model is served
    without buckets.
    """

    pad: dict[str, float] = Field(default_factory=dict, max_length=64)
    buckets: Literal["auto"] | Buckets = "auto"


class Generation(Section):
    """The limits of a model that generates text, within its own context. Requests beyond them are refused.

    `max_prompt_tokens` bounds the prompt, `max_tokens` the answer, and `max_sequences` the number of requests that are
    generated at the same time; more of them wait. Memory for all their keys and values is reserved.
    """

    max_prompt_tokens: int = Field(4096, ge=1, le=1_000_000)
    max_tokens: int = Field(1024, ge=1, le=1_000_000)
    max_sequences: int = Field(16, ge=1, le=1024)


class ServedLimits(Limits, Section):
    """What the served model may use; its neighbours on the machine are served whatever it does.

    Loading may take `load_s` (default 180). Each of its processes may use `memory_mb`: by default twice what tuning
    measured, and at least 1024. One execution may use `cpu_s` of CPU time, of all its threads together (default: only
    `request_timeout_s` limits it). Each process may have `threads` (default 512) and `open_files` (default 512; 256
    for Python models, and for models with texts, images or states). None can start another process. `temporary_mb` is
    what an engine may keep in its cache of the compiled model (default 512); nothing else of a model can write files.

    They hold for graphs, trees, Python models, and models with texts, images or states, and on the bundled server for
    models that generate text.

    The site's `policy.served` has the highest values; where the spec says nothing, it caps the defaults.
    """


class Latest(Section):
    """How many versions are served: the promoted one, and those that were promoted before it."""

    latest: int = Field(ge=1, le=100)


VersionPolicy = Annotated[
    Annotated[Latest, Tag("in full")] | Annotated[Literal["all"], Tag("by name")], Discriminator(form)
]


class Serving(Section):
    """Triton settings that tuning does not decide.

    `warmup: true` is one run with the logged example. Triton sends a batch off as soon as it has one of the
    `preferred_batch_size`. These sizes take precedence over the search, which then tries no `max_batch` below the
    largest of them. Triton's documentation advises them only for engines with a profile for those sizes.

    `late_last`: under overload, a request that can no longer be answered within `slo.p99_ms` waits until those that
    still can are done, so that only the excess is late. Tuning sets it if the spec has that limit and no `queue` or
    `priorities`; at least two instances then serve. It is for models whose executions take tens of milliseconds: with
    faster ones and many clients, the bundled Triton's batcher can then overlook a request for 500 ms.

    `lengths`: without it, requests of different lengths never share a batch, which is Triton's rule.

    An execution that takes longer than `request_timeout_s` is stopped and its requests fail, so that an input on which
    the model never ends can't keep an instance busy. `limits` are the other ones.

    `tensors`: a model that takes text or images is also served as `MODEL--tensors`, which takes the tensors that its
    tokenizer or image processor would make, and answers the graph's outputs. Its weights are then in memory twice. On
    NVIDIA's server, `MODEL--tensors` is always served, and the weights are in memory once, because `MODEL` calls it.

    `version_policy`: as in Triton, `{latest: 2}` serves the previously promoted version in addition to the new one, to
    clients that name it in their requests; others get the new one. `all` serves all versions that the champion's
    package serves. Versions are taken from that package, and share one configuration in Triton. So a version with other
    inputs or outputs, or on another engine, is no longer served. Each version takes memory of its own.
    """

    labels: tuple[str, ...] = ()
    warmup: WarmupOrNot = True
    preferred_batch_size: BatchSizes = ()
    priorities: Priorities | None = None
    queue: Queue = Queue()
    late_last: bool = False
    response_cache: bool = False
    rate_limiter: RateLimiter | None = None
    metrics: Metrics = Metrics()
    host_policy: HostPolicy | None = None
    graph_optimization: Literal["off", "basic", "all"] = "all"
    lengths: Lengths | None = None
    sequence_batching: SequenceBatching | None = None
    generation: Generation = Generation()
    request_timeout_s: float = Field(30, ge=0.1, le=3600)
    limits: ServedLimits = ServedLimits()
    tensors: bool = Field(False, strict=True)
    version_policy: VersionPolicy = Latest(latest=1)

    @model_validator(mode="after")
    def _one_scheduler(self) -> Self:
        policed = self.priorities or self.response_cache or self.queue != Queue()
        if self.sequence_batching and policed:
            raise ValueError("`sequence_batching` excludes `priorities`, `queue` and `response_cache`, as in Triton")
        if self.sequence_batching and isinstance(self.warmup, Warmup):
            raise ValueError("`sequence_batching` excludes `warmup`: Triton can't warm up sequences")
        if self.sequence_batching and self.lengths:
            raise ValueError("`sequence_batching` excludes `lengths`: the requests of a sequence are not padded")
        return self

    @property
    def keeps_versions(self) -> bool:
        """Whether earlier versions are to be served in addition to a new one."""
        return self.version_policy != Latest(latest=1)

    @property
    def warm_up(self) -> Warmup | None:
        """How instances are warmed up; None if they are not."""
        if isinstance(self.warmup, Warmup):
            return self.warmup
        return Warmup() if self.warmup and not self.sequence_batching else None


def told_states(serving: Serving) -> dict[str, str] | None:
    """The states that a spec names, none if it says `sequence_batching: null`; None if it doesn't say."""
    if serving.sequence_batching:
        return serving.sequence_batching.states
    policed = serving.priorities or serving.response_cache or serving.queue != Queue()
    return {} if policed or "sequence_batching" in serving.model_fields_set else None


def with_states(serving: Serving, states: dict[str, str]) -> Serving:
    """The settings for a model with these states: served in sequences, unless the spec already says so."""
    if not states or serving.sequence_batching:
        return serving
    return serving.model_copy(update={"sequence_batching": SequenceBatching(states=states)})


class Rollout(Section):
    """How a promoted version takes over on a cluster: its replicas, and the traffic shares it gets on the way.

    Each share is held for `hold_s` seconds, and the next follows only if the new version failed no request. On one
    machine the served name is switched in one step. Each target has `replicas`. `failed_target` says what happens to a
    version if one of its targets, other than the first, can't serve or fails a gate: it is refused, or served without
    that target.
    """

    replicas: int = Field(1, ge=1, le=1000)
    canary_percent: tuple[Annotated[int, Field(ge=1, le=99)], ...] = (10, 50)
    hold_s: float = Field(10, ge=0, le=86400)
    failed_target: Literal["refuse", "leave_out"] = "refuse"

    @field_validator("canary_percent")
    @classmethod
    def _rising(cls, shares: tuple[int, ...]) -> tuple[int, ...]:
        if list(shares) != sorted(set(shares)):
            raise ValueError(f"must rise from one share to the next, not {shares}")
        return shares
