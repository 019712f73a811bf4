"""The section `drift` of the spec: how production's requests and answers are compared with the validation data."""

from typing import Self

from pydantic import Field, model_validator

from shiplift.runtime.spec.baking import Duration
from shiplift.runtime.spec.fields import Confidence, Positive, Section

_SHORTEST_S = 10.0


class Drift(Section):
    """How often captured rows are compared with the validation data, column by column, and when a column has drifted.

    Rows of the last `window` are compared each time; only those of the version that serves count. A column has drifted
    if its population stability index exceeds `threshold` by more than chance, and a test (Kolmogorov-Smirnov for
    numbers, chi-squared for categories) tells its values apart with `confidence_percent` over all columns of a look
    together. Nothing is said of a column before it was seen in `min_requests` requests, of which the rows of one count
    once. `columns` are inputs and outputs by name, or `input/NAME` and `output/NAME`; empty: all that can be compared.
    `hook` is the name of a target in the site's `events`, which is told when a column drifts: a webhook that retrains.
    """

    every: Duration = 3600.0
    window: Duration = 86400.0
    threshold: Positive = 0.2
    confidence_percent: Confidence = 99
    min_requests: int = Field(200, ge=20, le=1_000_000)
    columns: tuple[str, ...] = Field((), max_length=1000)
    hook: str = Field("", pattern=r"^([a-z0-9][a-z0-9-]{0,39})?$")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.every < _SHORTEST_S:
            raise ValueError(f"`every` is {self.every:g} s, the shortest is {_SHORTEST_S:g} s")
        if self.window < self.every:
            raise ValueError(
                f"`window` is {self.window:g} s, shorter than `every`, {self.every:g} s: rows would be missed"
            )
        return self
