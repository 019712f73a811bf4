"""The section `promotion.shadow` of the spec: which real requests a challenger gets, and how it is judged by them."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from shiplift.runtime.base.durations import seconds_of
from shiplift.runtime.spec.fields import Confidence, Percent, Positive, Section

LONGEST_S = 86400


def _seconds(value: Any) -> Any:
    return seconds_of(value) if isinstance(value, str) else value


Duration = Annotated[
    float, BeforeValidator(_seconds, json_schema_input_type=str | float), Field(gt=0, le=LONGEST_S, title="For")
]
Agreement = Annotated[float, Field(ge=0, le=100)]


class Shadow(Section):
    """A challenger that passed every other check answers a `share` of the champion's real requests `for` some time.

    Clients get none of its answers. It may fail at most `errors_percent` more of the requests than the champion, its
    99th percentile may be at most `p99_ms` (default: `slo.p99_ms`) and at most `p99_worse_percent` above the
    champion's, and at least `agreement_percent` of its rows must have the champion's answer: in every output, or in
    those that are named. Numbers agree within the tolerances of the proof. Fewer requests than `min_requests` are a
    warning, or with `if_fewer: refuse` the end of the release. A model that may have states or side effects, such as
    one that runs its author's Python, is refused unless `stateful: true` says that a request may be answered twice.
    """

    model_config = ConfigDict(populate_by_name=True)

    share: float = Field(0.2, gt=0, le=1)
    for_s: Duration = Field(alias="for")
    min_requests: int = Field(100, ge=1)
    if_fewer: Literal["promote", "refuse"] = "promote"
    errors_percent: float = Field(1.0, ge=0, lt=100)
    p99_ms: Positive | None = None
    p99_worse_percent: Percent | None = None
    agreement_percent: Agreement | dict[str, Agreement] | None = None
    confidence_percent: Confidence = 95
    stateful: bool = False

    def least_agreement(self, output: str) -> float | None:
        """The least share of rows, in percent, that must agree in an output; None if any may differ."""
        if isinstance(self.agreement_percent, dict):
            return self.agreement_percent.get(output)
        return self.agreement_percent

    @property
    def named(self) -> tuple[str, ...]:
        """The outputs that the section names."""
        return tuple(self.agreement_percent) if isinstance(self.agreement_percent, dict) else ()
