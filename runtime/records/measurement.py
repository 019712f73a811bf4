"""What crosses a step: small frozen records with units in their field names. Bytes never travel in them, only digests.

A record's *identity* is what a cached result depends on. Fields marked `volatile` (where something runs, how long it
took, who asked) are left out of it, so the same work is found again from another machine, port or trigger.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_jsonable_python

from runtime.errors import Inconclusive, Refused

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"
]
Precision = Literal["fp32", "fp16", "bf16", "int8", "fp8"]
Metric = Literal["accuracy", "f1", "mae", "cosine"]
ServerKind = Literal["bundled", "nvidia"]


def volatile(default: Any = ...) -> Any:
    """A field that never decides whether a cached result is still right."""
    return Field(default, json_schema_extra={"volatile": True})


class Record(BaseModel):
    """The base of everything that crosses a step."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, ser_json_inf_nan="strings")

    @classmethod
    def parameter(cls) -> str:
        """The one name of this record as a parameter, on every engine: `LoadReport` is `load_report`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def objection(self) -> "Verdict | None":
        """The verdict that ends a pipeline here, where this record carries one that is not a pass."""
        return None


class Bundle(Record):
    """A record whose fields are edges of their own: a later step takes `slo`, not the whole spec."""

    @classmethod
    def parts(cls) -> Mapping[str, type[Record]]:
        """The parts by label, as `{"slo": Slo}`."""
        kinds = {name: field.annotation for name, field in cls.model_fields.items()}
        return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Record)}


def identity(value: Any) -> Any:
    """What a cached result depends on, as plain JSON: a record without its volatile fields."""
    if isinstance(value, Record):
        return {name: identity(getattr(value, name)) for name in _lasting(type(value))}
    if isinstance(value, tuple | list):
        return [identity(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): identity(item) for key, item in value.items()}
    return to_jsonable_python(value, inf_nan_mode="strings")


def _lasting(kind: type[Record]) -> Iterator[str]:
    for name, field in kind.model_fields.items():
        extra = field.json_schema_extra
        if not (isinstance(extra, dict) and extra.get("volatile")):
            yield name


# --- what starts a release ------------------------------------------------------------------------------------------


class Request(Record):
    """Which model version to release, and the spec given by hand (YAML text; empty means: as logged, or defaults)."""

    model: str
    version: int
    spec: str = ""


class Trigger(Record):
    """Who asked, for lineage. `allow_older` lets a version older than the champion be promoted."""

    kind: Literal["webhook", "sweep", "manual", "git"] = volatile("manual")
    delivery: str = volatile("")
    commit: str = volatile("")
    requested_at: float = volatile(0.0)
    allow_older: bool = volatile(default=False)


class GatewayRef(Record):
    """The Gateway whose listeners `http` and `grpc` carry production traffic."""

    name: str
    namespace: str


class Cluster(Record):
    """A Kubernetes cluster as a place to serve: names only; credentials come from the pod or the kubeconfig.

    `namespace` holds the pipeline, `serving_namespace` the models. Without a `gateway`, traffic moves by Service.
    """

    namespace: str
    serving_namespace: str
    server_image: str
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    gateway: GatewayRef | None = None
    ready_timeout_s: int = 180
    server_cpu_request: str = "250m"
    server_memory_limit: str = "2Gi"


class Site(Record):
    """Where a release runs: addresses and folders, never a secret.

    `modelopt` is the Python of the environment that has NVIDIA's modelopt, where there is one.
    All of it is volatile: the same work elsewhere is a hit.
    """

    home: str = volatile()
    registry_uri: str = volatile()
    artifacts_uri: str = volatile()
    server_environment: str = volatile()
    http: str = volatile()
    grpc: str = volatile()
    metrics: str = volatile()
    rate_limiter: bool = volatile(default=False)
    modelopt: str = volatile("")
    cluster: Cluster | None = volatile(default=None)


# --- bytes and tensors ----------------------------------------------------------------------------------------------


class Artifact(Record):
    """A file, or a tree of files, named by its SHA-256. A tree's digest is that of its manifest."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)
    kind: Literal["file", "tree"] = "file"
    uri: str = volatile("")


class TensorSpec(Record):
    """One tensor: its name, Triton datatype and shape. -1 is a dynamic dimension; the first one is the batch."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]


class Signature(Record):
    """The tensors a model takes and gives."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


# --- what each step gives -------------------------------------------------------------------------------------------


class ModelVersion(Record):
    """An admitted version: its digest covers every file of the model; `run_id` is where its story is kept."""

    name: str
    version: int
    digest: str
    flavor: Literal["pytorch", "sklearn", "lightgbm", "xgboost", "tensorflow", "keras", "onnx"]
    files: Artifact
    run_id: str = volatile("")
    registered_at: float = volatile(0.0)


class Contract(Record):
    """What the author promised: the logged signature, and the input example as an NPZ of arrays by input name.

    `tabular`: the inputs are the columns of a data frame.
    """

    signature: Signature
    example: Artifact
    tabular: bool = False


class Datasets(Record):
    """The logged data, still as logged (NPZ, CSV or Parquet); None where nothing was logged."""

    validation: Artifact | None = None
    validation_name: str = ""
    calibration: Artifact | None = None
    calibration_name: str = ""


class RecordedRequests(Record):
    """Real requests logged for the load test, still as logged (NPZ or JSON); None where there are none."""

    file: Artifact | None = None
    name: str = ""


class Finding(Record):
    """One thing the scanner found in a model file."""

    severity: Literal["critical", "warning", "info"]
    file: str
    what: str
    names: str = ""


class Scan(Record):
    """What was scanned, by what, and what it found."""

    scanner: str
    files: int
    findings: tuple[Finding, ...] = ()
    seconds: float = volatile(0.0)


class Isolation(Record):
    """What the kernel let the sandbox have: a promise is only as good as the machine it ran on."""

    network: Literal["namespace", "landlock", "none"]
    files: Literal["landlock", "none"]
    calls: Literal["seccomp", "none"] = "none"
    memory_limit_mb: int
    timeout_s: int


class ParityCase(Record):
    """The largest differences between the original's and the ONNX model's outputs on one input set.

    `problem` says where there is nothing to compare: NaN, or another shape.
    """

    inputs: str
    batch: int
    max_abs: float
    max_rel: float
    problem: str = ""


class Exported(Record):
    """The ONNX model (a tree holding `model.onnx`), proven against the original.

    `reference` is an NPZ with the example inputs as `input/NAME` and the original's outputs as `output/NAME`.
    `torchscript` is the original itself (a tree holding `model.pt`), where the spec asks for it.
    """

    model: Artifact
    signature: Signature
    opset: int
    torchscript: Artifact | None = None
    parity: tuple[ParityCase, ...]
    reference: Artifact
    isolation: Isolation = volatile()
    notes: tuple[str, ...] = ()


class Slice(Record):
    """The task metric, and its standard error, on a part of the validation set, such as `label=3`."""

    name: str
    score: float
    error: float
    samples: int


class Evaluation(Record):
    """What a model answers on the validation set: the task metric overall and per slice (None: nothing to score).

    `relative_error` is the L2 norm of its outputs' difference from fp32's over that of fp32's, on a few samples.
    `problem` says why its answers are no numbers to go by.
    """

    score: float | None = None
    score_error: float | None = None
    samples: int = 0
    slices: tuple[Slice, ...] = ()
    relative_error: float | None = None
    problem: str = ""


class Candidate(Record):
    """One precision of the model on one target; `dropped` says why it is no longer considered (empty: it is).

    `method` says how it was built, `float_layers` which layers were left in float. One without a `model` could not be
    built. `score` is the task metric on the validation set (None: no data), `score_error` its standard error.
    `latency_ms` is the median of one batch of `latency_batch` samples, in process, with one thread; `memory_mb` what
    its session takes; `build_seconds` and `build_peak_mb` what making it took, beyond Python, libraries and samples.
    """

    precision: Precision
    method: str = ""
    float_layers: tuple[str, ...] = ()
    model: Artifact | None
    score: float | None = None
    score_error: float | None = None
    samples: int = 0
    slices: tuple[Slice, ...] = ()
    relative_error: float | None = None
    memory_mb: float = volatile(0.0)
    build_seconds: float = volatile(0.0)
    build_peak_mb: float = volatile(0.0)
    latency_ms: float = volatile(0.0)
    latency_batch: int = volatile(1)
    size_bytes: int = 0
    dropped: str = ""


class Candidates(Record):
    """Every precision built for a target, best first among those kept."""

    target: str
    metric: Metric | None
    validation: str = ""
    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[Candidate, ...]:
        """The candidates still considered."""
        return tuple(candidate for candidate in self.candidates if not candidate.dropped)


class ServingConfig(Record):
    """What tuning decides: one point of the search space."""

    max_batch: int = Field(ge=1)
    queue_delay_us: int = Field(ge=0)
    instances: int = Field(ge=1)
    threads: int = Field(ge=1)


class Nodes(Record):
    """Which nodes of a cluster may serve a package: as its target says, in Kubernetes' own terms."""

    selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, str], ...] = ()
    gpus: int = Field(0, ge=0)
    image: str = ""


class ServerNeeds(Record):
    """What a server must be started with for a package's configuration to mean what it says."""

    rate_limiter: bool = False
    flags: tuple[str, ...] = ()


class Package(Record):
    """A Triton model repository (a tree) of one model version in one precision, with its golden requests beside it.

    `sequences`: it remembers, so that a request belongs to a sequence, and the golden ones are the steps of one.
    """

    target: str
    server: ServerKind
    model: str
    version: int
    precision: Precision
    config: ServingConfig
    repository: Artifact
    signature: Signature
    score: float | None = None
    samples: int = 0
    metric: Metric | None = None
    validation: str = ""
    slices: tuple[Slice, ...] = ()
    sequences: bool = False
    nodes: Nodes = volatile(Nodes())
    needs: ServerNeeds = volatile(ServerNeeds())


class Packages(Record):
    """One package per kept precision; `checks` are the quality gates, judged so that hopeless models stop early."""

    target: str
    packages: tuple[Package, ...]
    checks: tuple["Check", ...] = volatile()

    def objection(self) -> "Verdict | None":
        """A failed or undecided quality check ends the release before anything is measured."""
        given = Verdict.of(self.checks)
        return given if given.outcome is not Outcome.PASS else None


class Trial(Record):
    """One measured serving configuration. `window_ms` is how long a window was: coarse ones choose finalists.

    `pruned`: it was over its limits and already slower than the best, so no lower concurrency was tried.
    """

    precision: Precision
    config: ServingConfig
    concurrency: int
    throughput_per_s: float
    p50_ms: float
    p99_ms: float
    memory_mb: float
    within_slo: bool
    error: str = ""
    queue_ms: float = 0.0
    compute_ms: float = 0.0
    window_ms: int = 0
    pruned: bool = False
    cost_per_million: float | None = None


class Tuned(Record):
    """The package with the best configuration found, and trials on the way: all of them, or the best few of many.

    `configurations` is how many different ones were measured, `raw` every trial: gzipped JSON lines.
    """

    target: str
    package: Package
    best: Trial = volatile()
    trials: tuple[Trial, ...] = volatile(())
    configurations: int = volatile(0)
    raw: Artifact | None = volatile(None)
    exhausted: bool = volatile(default=False)


class Endpoint(Record):
    """Where a model answers: the HTTP URL of the model and the gRPC `host:port`."""

    http: str
    grpc: str


class Process(Record):
    """A process by pid and start time (seconds since the epoch): a reused pid is not mistaken for it."""

    pid: int
    started_at: float


class Champion(Record):
    """The version a challenger is compared with; version 0: none yet."""

    version: int = 0
    package: Package | None = None


class Deployment(Record):
    """A package loaded on a staging server, warmed and answering its golden requests right.

    `tuned_memory_mb` is what its server used when it was tuned. On one machine there is a process with a repository.
    """

    package: Package
    endpoint: Endpoint = volatile()
    metrics: str = volatile("")
    repository: str = volatile("")
    process: Process | None = volatile(None)
    load_seconds: float = volatile(0.0)
    tuned_memory_mb: float = volatile(0.0)


class Staged(Record):
    """A model on a staging server: the name it is loaded under, and where."""

    model: str
    endpoint: Endpoint


class LoadPoint(Record):
    """One concurrency, or one rate, of a load test. Latencies are per request, at the client; queue and compute at

    the server. `spread_percent` is how far a window's throughput was from their mean, at most.

    Closed loop: `concurrency` requests are always under way. Open loop: `rate_per_s` is asked for (0: closed loop),
    whatever is still under way, and `concurrency` is 0. `sent_per_s` is what the client managed to send, and
    `client_cores` what it needed for that. `client_saturated`: the client, not the server, was the limit.
    """

    concurrency: int
    throughput_per_s: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    queue_ms: float
    compute_ms: float
    stable: bool = True
    spread_percent: float = 0.0
    rate_per_s: float = 0.0
    sent_per_s: float = 0.0
    client_cores: float = 0.0
    client_saturated: bool = False


class Comparison(Record):
    """Champion and challenger measured in alternation on one server. Ratios are challenger over champion, one a round.

    The `noise_` ratios are of the champion over itself, measured first: what the machine alone makes of no difference.
    `looks` is how often the test may have looked at its rounds before it stopped; its intervals allow for that.
    """

    version: int
    concurrency: int
    throughput_ratios: tuple[float, ...]
    p99_ratios: tuple[float, ...]
    noise_throughput_ratios: tuple[float, ...] = ()
    noise_p99_ratios: tuple[float, ...] = ()
    looks: int = 1

    @property
    def rounds(self) -> int:
        """How many rounds there were."""
        return len(self.throughput_ratios)


class LoadReport(Record):
    """What the staging server did under load; `failures` are requests it refused or answered with an error.

    `points` are the challenger's closed loop, `champion_points` the champion's, `open_points` the challenger under
    arrivals that do not wait for answers. `knee` is the concurrency beyond which latency buys no more throughput.
    `max_rate_per_s` is the highest arrival rate found within the p99 limit (None: not searched for, or no limit).
    `uncompared` is why there is no `comparison`. `raw` is every window as measured: gzipped JSON lines.
    """

    points: tuple[LoadPoint, ...]
    failures: int
    memory_mb: float | None
    protocol: Literal["grpc", "http"]
    comparison: Comparison | None = None
    uncompared: str = ""
    notes: tuple[str, ...] = ()
    champion_points: tuple[LoadPoint, ...] = ()
    open_points: tuple[LoadPoint, ...] = ()
    knee: int = 0
    max_rate_per_s: float | None = None
    raw: Artifact | None = volatile(None)


class Outcome(StrEnum):
    """Three values: an undecided gate is never a pass."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class Check(Record):
    """One gate: what was measured against which limit. `reason` explains it to the model's author.

    One with the severity `warn` is told and does not decide.
    """

    name: str
    measured: float | None
    limit: float | None
    unit: str
    verdict: Outcome
    reason: str = ""
    severity: Literal["block", "warn"] = "block"


class Scored(Record):
    """What is known of a version's answers: its task metric, on which samples, and on which parts of them."""

    version: int
    target: str
    score: float | None = None
    samples: int = 0
    metric: Metric | None = None
    validation: str = ""
    slices: tuple[Slice, ...] = ()


class Evidence(Record):
    """Everything a verdict rests on, kept beside it, so that it can be judged again under another policy."""

    parity: tuple[ParityCase, ...]
    challenger: Scored
    champion: Scored | None = None
    load_report: LoadReport | None = None


class Verdict(Record):
    """All gates together: the worst one decides. `evidence` is what they judged; only the last gate keeps it."""

    outcome: Outcome
    checks: tuple[Check, ...]
    evidence: Evidence | None = volatile(None)

    @classmethod
    def of(cls, checks: tuple[Check, ...]) -> Self:
        """A failure outweighs an undecided check, which outweighs a pass; warnings weigh nothing."""
        given = {check.verdict for check in checks if check.severity == "block"}
        worst = next((o for o in (Outcome.FAIL, Outcome.INCONCLUSIVE) if o in given), Outcome.PASS)
        return cls(outcome=worst, checks=checks)

    def objection(self) -> "Verdict | None":
        """Itself, unless it is a pass."""
        return None if self.outcome is Outcome.PASS else self

    def require_pass(self) -> None:
        """The last line of defence before traffic moves.

        Raises:
            Refused, Inconclusive: this is not a pass.
        """
        if self.outcome is Outcome.FAIL:
            raise Refused("; ".join(self.reasons), do="See the report for every check.")
        if self.outcome is Outcome.INCONCLUSIVE:
            raise Inconclusive("; ".join(self.reasons), do="See the report for what would decide it.")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not a pass, one sentence a check."""
        failing = (c for c in self.checks if c.verdict is not Outcome.PASS and c.severity == "block")
        return tuple(f"{check.name}: {check.reason}" for check in failing)


class Promotion(Record):
    """The champion after a promotion or a rollback, kept with the version so that it can be compared and restored."""

    model: str
    version: int
    alias: str
    endpoint: Endpoint = volatile()
    previous: int = volatile(0)
    package: Package
    replicas: int = volatile(1)


# --- how a release went ---------------------------------------------------------------------------------------------


class Event(Record):
    """One thing an engine tells while it works; `done` is the part finished, from 0 to 1."""

    stage: str
    target: str = ""
    kind: Literal["started", "progress", "finished"]
    message: str = ""
    done: float | None = None
    seconds: float = 0.0
    cached: bool = False
    outcome: str = ""


class StageRun(Record):
    """One stage of one release, as it went."""

    name: str
    target: str = ""
    seconds: float = 0.0
    cached: bool = False
    outcome: Literal["ok", "refused", "inconclusive", "failed", "cancelled", "skipped"] = "ok"
    message: str = ""
    key: str = ""
    measured_seconds: float = 0.0


def stage_keys(stages: Iterable[StageRun], target: str = "") -> dict[str, str]:
    """Under which key each stage's record is kept.

    Of a stage that ran once per target it is that of `target`, where it ran for that one; else of the target that ended
    the release; else of the first.
    """
    runs = [run for run in stages if run.key]
    ended = next((run.target for run in runs if run.target and run.outcome not in ("ok", "skipped")), "")
    wanted = [one for one in (target, ended) if one]
    found: dict[str, StageRun] = {}
    for run in runs:
        before = found.get(run.name)
        if before is None or run.target == before.target or _rank(run, wanted) < _rank(before, wanted):
            found[run.name] = run
    return {name: run.key for name, run in found.items()}


def _rank(run: StageRun, wanted: list[str]) -> int:
    return wanted.index(run.target) if run.target in wanted else len(wanted)


class Failure(Record):
    """The error that ended a release."""

    kind: str
    exit_code: int
    what: str
    do: str


class Ending(Record):
    """How a pipeline ended: its stages, its verdict where one was reached, its error where one was raised."""

    release: str
    started_at: float
    stages: tuple[StageRun, ...]
    verdict: Verdict | None = None
    failure: Failure | None = None
    log: str = ""


class ReleaseReport(Record):
    """A finished release, as users and machines read it. The first seven fields are the public JSON form."""

    model: str
    version: int
    verdict: Outcome
    alias: str
    endpoint: Endpoint | None
    stages: tuple[StageRun, ...]
    checks: tuple[Check, ...]
    release: str
    reason: str
    exit_code: int
    failure: Failure | None = None
    seconds: float
    since_request_seconds: float
    overhead_seconds: float
    report: str = ""
    trigger: str = ""
    commit: str = ""

    @property
    def outcome(self) -> str:
        """One word for people: promoted, refused, inconclusive, not admitted, cancelled or failed."""
        if self.alias:
            return "promoted"
        if self.failure:
            return {"NotAdmitted": "not admitted", "Cancelled": "cancelled"}.get(self.failure.kind, "failed")
        return "refused" if self.verdict is Outcome.FAIL else "inconclusive"
