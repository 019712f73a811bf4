"""The release spec (`shiplift.yaml`): what a team asks of a release, validated field by field.

Each section is a record of its own, because a step takes only the sections it uses: a changed SLO reruns the gate
alone. Every field has a default, so an empty spec is a valid one. The JSON schema for editors comes from here.
"""

import difflib
import math
import reprlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from runtime.errors import SpecInvalid
from runtime.records import Metric, Nodes, Precision, Record, ServerKind
from runtime.rules import Policy

Postprocess = Literal["softmax", "sigmoid", "argmax", "top_k"]
MAX_SPEC_BYTES = 256 * 1024
NEWEST_OPSET = 23  # that models are exported with


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


Positive = Annotated[float, Field(gt=0), AfterValidator(_finite)]
NotNegative = Annotated[float, Field(ge=0), AfterValidator(_finite)]
Percent = Annotated[float, Field(ge=0, le=1000), AfterValidator(_finite)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


Accelerator = Literal["cpu", "cpu-vnni", "cpu-avx2", "cpu-arm64", "nvidia"]
Engine = Literal["onnxruntime", "onnxruntime-tensorrt", "tensorrt", "pytorch"]
VersionText = Annotated[str, Field(pattern=r"^([0-9]+(\.[0-9]+){0,3})?$")]
Method = Literal["minmax", "entropy", "percentile"]
Dims = tuple[Annotated[int, Field(ge=1, le=2**31 - 1)], ...]


class Toleration(Record):
    """A Kubernetes toleration; an empty `effect` tolerates every effect of the taint."""

    key: str = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""


class Versions(Record):
    """What runs on a target, as `1.23` or `1.23.2`; empty: not known, so nothing is checked against it."""

    onnxruntime: VersionText = ""
    tensorrt: VersionText = ""
    driver: VersionText = ""


class Profile(Record):
    """The shapes of one input, batch included, that a TensorRT engine is built for."""

    min: Dims
    opt: Dims
    max: Dims

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if not len(self.min) == len(self.opt) == len(self.max):
            raise ValueError("min, opt and max have different ranks")
        if any(not low <= best <= high for low, best, high in zip(self.min, self.opt, self.max, strict=True)):
            raise ValueError(f"must rise from min to opt to max: {self.min}, {self.opt}, {self.max}")
        return self


class Target(Record):
    """One place the model will serve: hardware, how a node with it is found, and what runs there.

    `compute_capability` and `memory_mb` describe an NVIDIA GPU. `engine` is what executes the model there: ONNX Runtime
    (on a GPU with its CUDA provider, or TensorRT through it), a TensorRT plan, or PyTorch itself (TorchScript, in
    NVIDIA's server, with its inputs and outputs named by position: `INPUT__0`, `OUTPUT__0`).
    """

    name: Name = "local-cpu"
    accelerator: Accelerator = "cpu"
    compute_capability: str = Field("", pattern=r"^([0-9]{1,2}\.[0-9])?$")
    memory_mb: int = Field(0, ge=0)
    precisions: tuple[Precision, ...] = Field(("fp32", "int8"), min_length=1)
    server: ServerKind = "bundled"
    engine: Engine = "onnxruntime"
    image: str = ""
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    versions: Versions = Versions()
    profiles: dict[str, Profile] = Field(default_factory=dict)

    @property
    def gpu(self) -> bool:
        """Whether it asks for a GPU."""
        return self.accelerator == "nvidia"

    @property
    def nodes(self) -> Nodes:
        """Which nodes of a cluster may serve it."""
        tolerated = tuple(one.model_dump(exclude_defaults=True) for one in self.tolerations)
        return Nodes(selector=self.node_selector, tolerations=tolerated, gpus=int(self.gpu), image=self.image)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        of_gpus = self.engine not in ("onnxruntime", "pytorch")
        if not self.gpu and (self.compute_capability or self.memory_mb or of_gpus):
            raise ValueError("compute_capability, memory_mb and other engines are for `accelerator: nvidia`")
        if self.gpu and self.server != "nvidia":
            raise ValueError("a GPU needs `server: nvidia`: the bundled server runs on the processor alone")
        if self.engine == "pytorch" and (self.server != "nvidia" or self.precisions != ("fp32",)):
            raise ValueError(
                "`engine: pytorch` needs `server: nvidia` and `precisions: [fp32]`: it runs the model as is"
            )
        if "fp8" in self.precisions and not (self.gpu and capability(self.compute_capability) >= (8, 9)):
            raise ValueError("fp8 needs an NVIDIA GPU with `compute_capability: 8.9` or higher")
        return self


def capability(text: str) -> tuple[int, int]:
    """A compute capability such as `9.0` as numbers; (0, 0) where none is given."""
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major else (0, 0)


def _inside(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError("must be a path inside the run's artifacts")
    return path


RelativePath = Annotated[str, AfterValidator(_inside)]


def _names_differ(targets: tuple[Target | str, ...]) -> tuple[Target | str, ...]:
    names = [target if isinstance(target, str) else target.name for target in targets]
    if len(set(names)) != len(names):
        raise ValueError(f"two targets have the same name: {', '.join(names)}")
    return targets


def _form(value: Any) -> str:
    return "by name" if isinstance(value, str) else "in full"


TargetOrName = Annotated[Annotated[Target, Tag("in full")] | Annotated[Name, Tag("by name")], Discriminator(_form)]
Targets = Annotated[tuple[TargetOrName, ...], Field(min_length=1), AfterValidator(_names_differ)]


class Wanted(Record):
    """The targets a spec asks for: in full, or by their name in the site's catalogue."""

    targets: Targets = (Target(),)


class Fleet(Record):
    """All targets of a release, in full."""

    targets: tuple[Target, ...] = Field((Target(),), min_length=1)


class Admission(Record):
    """What may be admitted. Pickles that carry code are refused unless `pickle: sandbox` says to load them there."""

    pickle: Literal["refuse", "sandbox"] = "refuse"
    max_size_mb: Positive = 8192


class Conversion(Record):
    """How the model becomes ONNX. `outputs` keeps only the named outputs; `postprocess` is appended to the graph.

    `torchscript` also keeps it as TorchScript, for targets with `engine: pytorch`: whole, so it excludes both.
    """

    opset: int = Field(20, ge=17, le=NEWEST_OPSET)
    torchscript: bool = False
    postprocess: tuple[Postprocess, ...] = ()
    top_k: int = Field(5, ge=1, le=100_000)
    outputs: tuple[str, ...] = ()
    memory_mb: int = Field(4096, ge=512, le=4_194_304)
    timeout_s: int = Field(300, ge=5, le=86400)

    @field_validator("postprocess", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.torchscript and (self.postprocess or self.outputs):
            raise ValueError("`torchscript` keeps the model whole: leave out `postprocess` and `outputs`")
        return self


class Data(Record):
    """The data logged with the version's run or model, and how predictions are scored on them.

    `validation` and `calibration` are artifact paths (NPZ, CSV or Parquet); `label` is the array or column with the
    expected answers. `slices` are further arrays or columns of the validation data, by whose values scores are split.
    Without `calibration`, int8 is calibrated on a part of the validation inputs.
    """

    validation: RelativePath = "shiplift/validation.npz"
    calibration: RelativePath = "shiplift/calibration.npz"
    label: str = "label"
    slices: tuple[str, ...] = ()
    metric: Metric = "accuracy"
    min_samples: int = Field(100, ge=1)
    calibration_samples: int = Field(256, ge=2)


class Quantization(Record):
    """How lower precisions are built, and what they may cost of the task metric against fp32 (in its own unit).

    `methods` are the ways to calibrate INT8 that are tried; the one closest to fp32 is used. Where it costs too much,
    layers are left in float, the most sensitive first, until it is within the budget: at most `max_float_share` of
    them. A slice is a class, or a value of one of `data.slices`; one with fewer than `min_slice_samples` decides
    nothing. `max_error` is the largest L2 error of the outputs, relative to fp32's.
    """

    methods: tuple[Method, ...] = Field(("minmax", "percentile", "entropy"), min_length=1)
    percentile: float = Field(99.999, gt=50, le=100)
    per_channel: bool = True
    max_score_drop: NotNegative = 0.01
    max_slice_drop: NotNegative = 0.05
    min_slice_samples: int = Field(30, ge=1)
    max_float_share: float = Field(0.5, ge=0, le=1)
    max_error: NotNegative = 1.0


class Parity(Record):
    """The largest difference allowed between the original's and the exported model's outputs.

    An output passes when its largest difference is within `max_abs`, or within `max_rel` of its largest value.
    """

    max_abs: NotNegative = 1e-3
    max_rel: NotNegative = 1e-2


class Quality(Record):
    """What the model itself must keep. `min_score` is the least (for mae: the largest) task metric allowed."""

    parity: Parity = Parity()
    min_score: float | None = None

    @field_validator("min_score")
    @classmethod
    def _number(cls, value: float | None) -> float | None:
        return value if value is None else _finite(value)


class ComparisonTarget(Record):
    """What the comparison with the champion has to decide, so that it knows when it has measured enough."""

    p99_percent: Percent = 50
    throughput_percent: Percent = 25
    confidence_percent: float = Field(95, ge=50, lt=100)


class Regression(ComparisonTarget):
    """How much worse than the champion a challenger may be, and how sure that has to be."""

    score: NotNegative = 0.01


class Slo(Record):
    """What serving must reach. p99 and throughput are judged at one operating point of the load test:

    the one with the highest throughput among those within `p99_ms`.
    """

    p99_ms: Positive | None = None
    throughput_per_s: Positive | None = None
    failures: int = Field(0, ge=0)
    memory_mb: Positive | None = None
    regression: Regression = Regression()


class LatencyTarget(Record):
    """The part of the SLO that tuning aims at: its own edge, so that other limits change without measuring again."""

    p99_ms: Positive | None = None


class SearchSpace(Record):
    """The serving configurations to measure, and how long that may take.

    `time_budget_s` bounds the measuring; the configuration suggested by Triton's documentation is always measured.
    Configurations are compared in windows of a third of `window_ms`, or of 200 ms where that is less than `window_ms`
    and more than its third; finalists in whole ones, several times, and their median counts. The best has the highest
    throughput within `slo.p99_ms` and `memory_mb`, or with `objective: cost` the lowest price of a million requests,
    counting the share of a machine at `price_per_hour` that its instances and threads can use.
    """

    time_budget_s: float = Field(20, ge=2, le=86400)
    max_batch: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = Field((1, 8, 32), min_length=1)
    queue_delay_us: tuple[Annotated[int, Field(ge=0, le=1_000_000)], ...] = Field((0, 100), min_length=1)
    instances: tuple[Annotated[int, Field(ge=1, le=64)], ...] = Field((1, 2), min_length=1)
    threads: tuple[Annotated[int, Field(ge=1, le=256)], ...] = Field((1, 2), min_length=1)
    max_concurrency: int = Field(64, ge=1, le=1024)
    window_ms: int = Field(300, ge=100, le=60000)
    objective: Literal["throughput", "cost"] = "throughput"
    price_per_hour: Positive | None = None
    memory_mb: Positive | None = None

    @model_validator(mode="after")
    def _priced(self) -> Self:
        if self.objective == "cost" and self.price_per_hour is None:
            raise ValueError("`objective: cost` needs `price_per_hour`: what this machine costs")
        return self


class DynamicShape(Record):
    """How long a dynamic dimension of an input is in the load test's requests: `axis` counts from 1 after the batch.

    uniform: any length from `low` to `high`. lognormal: most are short and few are long, as texts are, within the
    same bounds. choice: one of `lengths`. Inputs with the same distribution on the same axis, such as tokens and their
    mask, get the same length in a request.
    """

    input: str
    axis: int = Field(1, ge=1)
    distribution: Literal["uniform", "lognormal", "choice"] = "uniform"
    low: int = Field(1, ge=1)
    high: int = Field(128, ge=1)
    lengths: tuple[Annotated[int, Field(ge=1)], ...] = ()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is over high {self.high}")
        if (self.distribution == "choice") != bool(self.lengths):
            raise ValueError("`lengths` and `distribution: choice` go together")
        return self


class Load(Record):
    """The load test: a sweep over concurrencies, then arrivals at given rates (Poisson), then champion and challenger.

    Requests are those logged at `requests` (NPZ, or JSON of KServe bodies) where there are any, else made from the
    model's metadata and input example, with the lengths that `shapes` give, and for a model with
    `serving.sequence_batching` in sequences of `sequence_length` requests. `open_loop_s` bounds the search for the
    highest rate (0: none), `comparison_budget_s` how long the comparison may go on until it is decided.
    """

    protocol: Literal["grpc", "http"] = "grpc"
    concurrency: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = Field((1, 4, 16, 32), min_length=1)
    window_ms: int = Field(400, ge=100, le=60000)
    stability_percent: float = Field(20, gt=0, le=100)
    attempts: int = Field(3, ge=1, le=100)
    comparison_rounds: int = Field(4, ge=1, le=50)
    comparison_budget_s: float = Field(45, ge=0, le=86400)
    open_loop_s: float = Field(3, ge=0, le=86400)
    requests: RelativePath = "shiplift/requests.npz"
    shapes: tuple[DynamicShape, ...] = ()
    sequence_length: int = Field(20, ge=1, le=100_000)
    seed: int = Field(0, ge=0, le=2**32 - 1)


class Priorities(Record):
    """Triton's request priorities: 1 is the most urgent."""

    levels: int = Field(ge=1, le=100)
    default: int = Field(ge=1)

    @model_validator(mode="after")
    def _within(self) -> Self:
        if self.default > self.levels:
            raise ValueError(f"default {self.default} is over the number of levels ({self.levels})")
        return self


class Queue(Record):
    """Triton's queue policy. A `max_size` of 0 is no limit, a `timeout_ms` of 0 is none."""

    max_size: int = Field(0, ge=0, le=2**32 - 1)
    timeout_ms: float = Field(0, ge=0, le=86_400_000)
    on_timeout: Literal["reject", "delay"] = "reject"
    allow_timeout_override: bool = True


class RateLimiter(Record):
    """Triton's rate limiter: resources an instance needs while it runs, and its priority."""

    resources: dict[str, Annotated[int, Field(ge=1, le=2**31 - 1)]] = Field(default_factory=dict)
    priority: int = Field(1, ge=1, le=2**31 - 1)


class HostPolicy(Record):
    """Where instances run: a NUMA node, or a list of cores such as `0-3` or `0,2`."""

    numa_node: int | None = Field(None, ge=0)
    cpu_cores: str | None = Field(None, pattern=r"^[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*$")


class SequenceBatching(Record):
    """A model that remembers: Triton's sequence batcher sends all requests of a sequence to one instance.

    `states` gives for each input that takes a state the output whose value the next request of the sequence takes
    there. A sequence starts from zeros; clients neither send nor see the states. An instance holds
    `max_candidate_sequences` at most, and a sequence that sends nothing for `max_sequence_idle_s` is forgotten.
    """

    states: dict[str, str] = Field(min_length=1)
    max_candidate_sequences: int = Field(256, ge=1, le=2**31 - 1)
    max_sequence_idle_s: Positive = 60

    @field_validator("states")
    @classmethod
    def _given_once(cls, states: dict[str, str]) -> dict[str, str]:
        if len(set(states.values())) != len(states):
            raise ValueError(f"two inputs take the same output: {', '.join(states.values())}")
        return states


class Serving(Record):
    """What Triton's configuration says beyond what tuning decides."""

    labels: tuple[str, ...] = ()
    warmup: bool = True
    priorities: Priorities | None = None
    queue: Queue = Queue()
    response_cache: bool = False
    rate_limiter: RateLimiter | None = None
    host_policy: HostPolicy | None = None
    graph_optimization: Literal["off", "basic", "all"] = "all"
    sequence_batching: SequenceBatching | None = None

    @model_validator(mode="after")
    def _one_scheduler(self) -> Self:
        policed = self.priorities or self.response_cache or self.queue != Queue()
        if self.sequence_batching and policed:
            raise ValueError("`sequence_batching` excludes `priorities`, `queue` and `response_cache`, as in Triton")
        return self


class Rollout(Record):
    """How a promoted version takes over on a cluster: replicas, and the shares of the traffic it gets on the way.

    Each share is held for `hold_s` seconds and goes on only if the new version failed nothing. On one machine the
    served name is switched in one step.
    """

    replicas: int = Field(1, ge=1, le=1000)
    canary_percent: tuple[Annotated[int, Field(ge=1, le=99)], ...] = (10, 50)
    hold_s: float = Field(10, ge=0, le=86400)

    @field_validator("canary_percent")
    @classmethod
    def _rising(cls, shares: tuple[int, ...]) -> tuple[int, ...]:
        if list(shares) != sorted(set(shares)):
            raise ValueError(f"must rise from one share to the next, not {shares}")
        return shares


class ReleaseSpec(Record):
    """The whole spec, as written in `shiplift.yaml`."""

    model: str | None = None
    targets: Targets = (Target(),)
    admission: Admission = Admission()
    export: Conversion = Conversion()
    data: Data = Data()
    quantization: Quantization = Quantization()
    quality: Quality = Quality()
    search: SearchSpace = SearchSpace()
    load: Load = Load()
    slo: Slo = Slo()
    policy: Policy = Policy()
    serving: Serving = Serving()
    rollout: Rollout = Rollout()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        lowest = self.quality.min_score
        if lowest is not None and self.data.metric != "mae" and lowest > 1:
            raise ValueError(f"quality.min_score {lowest} can't be reached: {self.data.metric} is at most 1")
        if lowest is not None and self.data.metric == "mae" and lowest < 0:
            raise ValueError(f"quality.min_score {lowest} can't be reached: mae is at least 0")
        native = [one.name for one in self.targets if isinstance(one, Target) and one.engine == "pytorch"]
        if native and not self.export.torchscript:
            raise ValueError(f"target {native[0]} has `engine: pytorch`: set `export.torchscript: true`")
        if self.serving.sequence_batching and native:
            raise ValueError(f"target {native[0]} has `engine: pytorch`, which keeps no states: leave one of both out")
        if self.serving.sequence_batching and self.rollout.replicas > 1:
            raise ValueError(
                f"rollout.replicas {self.rollout.replicas} is over 1, and a sequence's state lies in one server alone"
            )
        return self


class _Loader(yaml.SafeLoader):
    """Refuses a key given twice, of which PyYAML silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping, if no key is in it twice."""
        written = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        for key in {key for key in written if written.count(key) > 1}:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep=deep)


def parse(text: str) -> ReleaseSpec:
    """The spec from YAML text; an empty text is the default spec.

    Raises:
        SpecInvalid: it is not YAML, not a mapping, too large, or a field is wrong; every wrong field is named.
    """
    return validate(load_mapping(text, "the spec"))


def load_mapping(text: str, what: str) -> dict[str, Any]:
    """A mapping from YAML text; an empty text is an empty one.

    Raises:
        SpecInvalid: it is not YAML, not a mapping, or too large.
    """
    if len(text.encode()) > MAX_SPEC_BYTES:
        raise SpecInvalid(
            f"{what} has {len(text.encode())} bytes, the limit is {MAX_SPEC_BYTES}", do="Shorten it and try again."
        )
    try:
        body = yaml.load(text, _Loader)  # noqa: S506 - a safe loader, only stricter
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also: a 13th month, brackets without end
        raise SpecInvalid(f"{what} is not YAML: {' '.join(str(error).split())}", do="Mend that line.") from error
    if body is not None and not isinstance(body, dict):
        raise SpecInvalid(f"{what} is a {type(body).__name__}", do="Write sections, such as `slo:`.")
    return body or {}


def validate(body: Mapping[str, Any]) -> ReleaseSpec:
    """The spec from decoded YAML or JSON.

    Raises:
        SpecInvalid: a field is wrong; every wrong field is named by its path.
    """
    try:
        return ReleaseSpec.model_validate(body)
    except ValidationError as error:
        raise SpecInvalid(
            "; ".join(problems(error)), do="`shiplift init` writes a commented spec with every field."
        ) from error


def schema() -> dict[str, Any]:
    """The JSON schema of `shiplift.yaml`, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Shiplift release spec",
        **{key: value for key, value in ReleaseSpec.model_json_schema().items() if key != "title"},
    }


def problems(error: ValidationError, of: type[Record] | None = None) -> Iterator[str]:
    """What is wrong, one line a field, named by its path; `of` is what was being read (None: a release spec)."""
    for one in error.errors(include_url=False):
        loc = tuple(part for part in one["loc"] if part not in ("in full", "by name"))
        path = ".".join(str(part) for part in loc)
        if one["type"] == "extra_forbidden":
            yield f"{path}: there is no such field{_suggestion(loc, of or ReleaseSpec)}"
        elif one["type"] == "value_error":
            said = str(one["msg"]).removeprefix("Value error, ")
            yield f"{path}: {said}" if path else said
        else:
            said = str(one["msg"])
            yield f"{path}: {said[:1].lower()}{said[1:]}, not {_short(one['input'])}"


def _records_in(annotation: Any) -> Iterator[type[Record]]:
    """The record types that an annotation is made of, such as those of `tuple[Target, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, Record):
        yield annotation
    for inner in get_args(annotation):
        yield from _records_in(inner)


def _short(value: Any) -> str:
    try:
        shown = reprlib.repr(value)  # bounded: a few aliases in YAML can stand for gigabytes
    except ValueError:  # more digits than Python prints
        return "a number of that length"
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _suggestion(loc: tuple[int | str, ...], kind: Any) -> str:
    for part in loc[:-1]:
        field = getattr(kind, "model_fields", {}).get(part)
        kind = field.annotation if field else kind
        kind = next(_records_in(kind), kind)
    near = difflib.get_close_matches(str(loc[-1]), list(getattr(kind, "model_fields", {})), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
