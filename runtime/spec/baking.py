"""The section `promotion.bake` of the spec: how long a new champion is watched, and which alarms take it back.

Another kind of alarm is a class here, in the union `AlarmSpec`, and a judge in the table of `runtime.gates.alarms`.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from shiplift.runtime.base.durations import seconds_of
from shiplift.runtime.records.baking import Alarm
from shiplift.runtime.spec.fields import Confidence, Positive, Section

_LONGEST_S = 30 * 86400


def _seconds(value: Any) -> Any:
    return seconds_of(value) if isinstance(value, str) else value


Duration = Annotated[float, BeforeValidator(_seconds, json_schema_input_type=str | float), Field(gt=0, le=_LONGEST_S)]


class P99Alarm(Section):
    """The servers' 99th percentile is over `limit_ms` (default: `slo.p99_ms`)."""

    kind: Literal["p99"] = "p99"
    limit_ms: Positive | None = None

    def alarm(self, p99_ms: float | None) -> Alarm:
        """The alarm, with the SLO's limit if it has none of its own."""
        return Alarm(kind=self.kind, limit=self.limit_ms or p99_ms or 0.0)


class ErrorsAlarm(Section):
    """More than `limit_percent` of the requests fail."""

    kind: Literal["errors"] = "errors"
    limit_percent: float = Field(1.0, ge=0, lt=100)

    def alarm(self, _p99_ms: float | None) -> Alarm:
        """The alarm."""
        return Alarm(kind=self.kind, limit=self.limit_percent)


class AnswersAlarm(Section):
    """The heartbeat's golden requests are answered wrongly, or refused."""

    kind: Literal["answers"] = "answers"

    def alarm(self, _p99_ms: float | None) -> Alarm:
        """The alarm."""
        return Alarm(kind=self.kind)


class QueryAlarm(Section):
    """A PromQL query gives a value above or below a limit. The site's owner names the Prometheus that is asked."""

    kind: Literal["query"] = "query"
    query: str = Field(min_length=1, max_length=2000)
    above: float | None = None
    below: float | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if (self.above is None) == (self.below is None):
            raise ValueError("set exactly one of `above` and `below`")
        return self

    def alarm(self, _p99_ms: float | None) -> Alarm:
        """The alarm."""
        limit = self.above if self.below is None else self.below
        return Alarm(kind=self.kind, limit=limit or 0.0, query=self.query, below=self.below is not None)


class DriftAlarm(Section):
    """The version's requests or answers drifted from its validation data, as the spec's `drift` says."""

    kind: Literal["drift"] = "drift"

    def alarm(self, _p99_ms: float | None) -> Alarm:
        """The alarm."""
        return Alarm(kind=self.kind)


AlarmName = Literal["p99", "errors", "answers", "drift"]  # those that need nothing more


def _in_full(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


def _kind(value: Any) -> Any:
    return value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)


AlarmSpec = Annotated[
    Annotated[P99Alarm, Tag("p99")]
    | Annotated[ErrorsAlarm, Tag("errors")]
    | Annotated[AnswersAlarm, Tag("answers")]
    | Annotated[QueryAlarm, Tag("query")]
    | Annotated[DriftAlarm, Tag("drift")],
    Discriminator(
        _kind,
        custom_error_type="alarm_kind",
        custom_error_message="must be one of p99, errors, answers, drift and query, or a mapping with such a `kind`",
    ),
    BeforeValidator(
        _in_full, json_schema_input_type=AlarmName | P99Alarm | ErrorsAlarm | AnswersAlarm | QueryAlarm | DriftAlarm
    ),
]


class Bake(Section):
    """For how long a promoted version is watched while the version before it stays ready.

    `for` counts only time in which every alarm is known to be quiet. The first alarm rolls back. Without `alarms` they
    are `answers`, `errors` and, if the spec has `slo.p99_ms`, `p99`. An alarm that can't be read for `silence` counts
    as raised. `confidence_percent` is how sure the alarms that have statistics must be, over the whole bake.
    """

    model_config = ConfigDict(populate_by_name=True)

    for_s: Duration = Field(alias="for")
    alarms: tuple[AlarmSpec, ...] | None = Field(None, max_length=20)
    silence_s: Duration = Field(600.0, alias="silence")
    confidence_percent: Confidence = 95

    def rules(self, p99_ms: float | None) -> tuple[Alarm, ...]:
        """The alarms, with the SLO's limit of the 99th percentile for those that have none."""
        chosen: tuple[P99Alarm | ErrorsAlarm | AnswersAlarm | QueryAlarm | DriftAlarm, ...] | None = self.alarms
        if chosen is None:
            chosen = (AnswersAlarm(), ErrorsAlarm(), *([P99Alarm()] if p99_ms else []))
        return tuple(each.alarm(p99_ms) for each in chosen)

    def problem(self, p99_ms: float | None) -> str:
        """What is missing in the spec for these alarms; empty if nothing is."""
        if self.alarms == ():
            return "promotion.bake.alarms is empty: name at least one, or leave it out for the default ones"
        missing = any(each.kind == "p99" and not each.limit for each in self.rules(p99_ms))
        return "promotion.bake has alarm p99 without a limit: set its `limit_ms`, or `slo.p99_ms`" if missing else ""
