"""The spec's sections on measuring: limits, search space, load."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shiplift.runtime.spec.fields import Confidence, NotNegative, Percent, Positive, RelativePath, Section


class ComparisonTarget(Section):
    """What the comparison with the champion must decide. It ends as soon as it can."""

    p99_percent: Percent = 50
    throughput_percent: Percent = 25
    confidence_percent: Confidence = 95


class Regression(ComparisonTarget):
    """How much worse a challenger may be than the champion, and with what confidence that must hold.

    `score` is in the metric's own unit. Left out, it is 0.01 of a range from 0 to 1, or of what a constant prediction
    scores by an error or a loss (mae, rmse, mape, log_loss).
    """

    score: NotNegative | None = None


class Slo(Section):
    """What serving must reach.

    p99 and throughput are judged at one operating point of the load test: the one with the highest throughput among
    those within `p99_ms`. For a model that generates text, so are the time to the first token and the tokens per second
    of all clients together; `p99_ms` is then that of whole answers.
    """

    p99_ms: Positive | None = None
    throughput_per_s: Positive | None = None
    failures: int = Field(0, ge=0)
    memory_mb: Positive | None = None
    ttft_p99_ms: Positive | None = None
    tokens_per_s: Positive | None = None
    regression: Regression = Regression()


class ScoreTarget(Section):
    """How much worse a challenger's score may be than the champion's, as `Regression.score` says.

    It is judged before tuning, so it is its own record.
    """

    worse: NotNegative | None = None


class LatencyTarget(Section):
    """The part of the SLO that tuning aims at. Its own record, so that other limits can change without a new search."""

    p99_ms: Positive | None = None


class SearchSpace(Section):
    """The serving configurations to measure, and how long that may take.

    `time_budget_s` bounds the search; a configuration that keeps all cores busy is always measured. `instances` and
    `threads` follow from the cores that the server may use: 1, 2, 4 and so on up to all of them, at most 8 instances.
    Configurations are first compared in short windows: a third of `window_ms`, but at least 200 ms (if `window_ms`
    allows). Unless these decide, finalists are measured several times in whole windows, and their medians decide. The
    best configuration has the highest throughput within `slo.p99_ms` and `memory_mb`. With `objective: cost` it has the
    lowest price per million requests, for the share of a machine at `price_per_hour` that its instances and threads can
    use.
    """

    time_budget_s: float = Field(20, ge=2, le=86400)
    max_batch: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = Field((1, 8, 32), min_length=1)
    queue_delay_us: tuple[Annotated[int, Field(ge=0, le=1_000_000)], ...] = Field((0, 100), min_length=1)
    instances: tuple[Annotated[int, Field(ge=1, le=64)], ...] = ()
    threads: tuple[Annotated[int, Field(ge=1, le=256)], ...] = ()
    max_concurrency: int = Field(64, ge=1, le=1024)
    window_ms: int = Field(300, ge=100, le=60000)
    objective: Literal["throughput", "cost"] = "throughput"
    price_per_hour: Positive | None = None
    memory_mb: Positive | None = None

    @model_validator(mode="after")
    def _priced(self) -> Self:
        if self.objective == "cost" and self.price_per_hour is None:
            raise ValueError("`objective: cost` needs `price_per_hour`, the price of this machine")
        return self


CAPTURED = "captured"  # as `load.requests`: what production captured of the model


class DynamicShape(Section):
    """The size of a dynamic dimension of an input in the load test's requests; `axis` 1 is the first after the batch.

    uniform: any size from `low` to `high`. lognormal: within the same bounds, mostly short and rarely long, like texts.
    choice: one of `lengths`. Inputs with the same distribution on the same axis, such as tokens and their mask, get the
    same size in a request.
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
            raise ValueError(f"low {self.low} is greater than high {self.high}")
        if (self.distribution == "choice") != bool(self.lengths):
            raise ValueError("`lengths` and `distribution: choice` need each other")
        return self


class Load(Section):
    """The load test: a sweep over concurrencies, then Poisson arrivals at fixed rates, then champion and challenger.

    Requests are those logged at `requests` (NPZ, or KServe bodies as JSON) if there are any, or with `captured` what
    production captured of the model. Otherwise they are generated from the model's metadata and input example, with the
    sizes that `shapes` sets. A model with
    `serving.sequence_batching` gets sequences of `sequence_length` requests. A request has `batch` samples; throughput
    and rates count samples. Windows agree if their throughput is within `stability_percent`, and, if `percentile` is
    set, also their latency at it. A window of the sweep is shorter than `window_ms` where a fast model gives 3,000
    answers in three of them, which is enough for a p99, unless such windows disagree. `open_loop_s` bounds the search
    for the highest rate (0 skips it), `comparison_budget_s` the time until the comparison must be decided. `tokens` is
    how many tokens a model that generates text is asked for per request.
    """

    protocol: Literal["grpc", "http"] = "grpc"
    concurrency: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = Field((1, 4, 16, 32), min_length=1)
    window_ms: int = Field(400, ge=100, le=60000)
    stability_percent: float = Field(20, gt=0, le=100)
    percentile: Literal[50, 90, 95, 99] | None = None
    batch: int = Field(1, ge=1, le=4096)
    attempts: int = Field(3, ge=1, le=100)
    comparison_rounds: int = Field(4, ge=1, le=50)
    comparison_budget_s: float = Field(45, ge=0, le=86400)
    open_loop_s: float = Field(3, ge=0, le=86400)
    requests: RelativePath = "shiplift/requests.npz"
    shapes: tuple[DynamicShape, ...] = ()
    sequence_length: int = Field(20, ge=1, le=100_000)
    tokens: int = Field(32, ge=1, le=100_000)
    seed: int = Field(0, ge=0, le=2**32 - 1)

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        if self.batch > 1 and self.shapes:
            raise ValueError("`shapes` needs `batch: 1`: the samples of a batch have one shape")
        return self
