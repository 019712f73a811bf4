"""What was seen while a challenger answered a share of the champion's real requests, unseen by clients."""

from pydantic import Field

from shiplift.runtime.base.durations import in_short
from shiplift.runtime.records.base import Record, volatile

_SHOWN = 3  # outputs


class Mirror(Record):
    """Who gets copies of a service's requests, and which share of them.

    Its writer counts `beat` up as long as it lives: the operator ends the copying when that stands still. So the clocks
    of the two need not agree.
    """

    revision: str
    share: float = Field(gt=0, le=1)
    beat: int = 0


class OutputAgreement(Record):
    """How many rows were compared in an output, how many of them agree, and of how many requests they are.

    `slice` is one of the validation set's, such as `country=DE`, if only its rows are counted.
    """

    output: str
    slice: str = ""
    rows: int
    same: int
    requests: int

    @property
    def percent(self) -> float:
        """The share of rows that agree, in percent."""
        return 100 * self.same / self.rows if self.rows else 100.0


class Latency(Record):
    """A server's own latency over the whole time: the median and the 99th percentile, with bounds of the latter."""

    p50_ms: float
    p99_ms: float
    low_ms: float
    high_ms: float


class Shadowed(Record):
    """A challenger's shadow of a champion (version `champion`; 0: there was none, and `why_not` may say why).

    `requests` are the real ones that the challenger got. `failed` are those that only it failed, where answers can be
    paired; otherwise all that it failed, with `champion_failed` of the champion's `champion_requests`. `dropped` are
    requests of the share that it did not get, because it was too slow for them or they were too large. `p99_ratios` are
    challenger by champion, one for each part of the time. `uncompared` says why answers were not compared.
    `again`: a rerun shadows again, since it did not pass.
    """

    champion: int = 0
    share: float = 0.0
    seconds: float = 0.0
    requests: int = 0
    failed: int = 0
    champion_requests: int = 0
    champion_failed: int = 0
    dropped: int = 0
    challenger_latency: Latency | None = None
    champion_latency: Latency | None = None
    p99_ratios: tuple[float, ...] = ()
    outputs: tuple[OutputAgreement, ...] = ()
    why_not: str = ""
    uncompared: str = ""
    again: bool = volatile(False)

    @property
    def momentary(self) -> bool:
        """Whether the record holds for this run only, so that a rerun makes it again."""
        return self.again

    def remark(self) -> str:
        """How many requests it had, and how they went."""
        if not self.champion:
            return f"no shadow: {self.why_not}" if self.why_not else ""
        return f"{self.sentence} in {in_short(self.seconds)}"

    @property
    def sentence(self) -> str:
        """How it goes so far, for people."""
        parts = [f"{self.requests} requests of version {self.champion} were copied, {self.failed} failed"]
        if self.outputs:
            whole = [each for each in self.outputs if not each.slice]
            agree = ", ".join(f"{each.output} {each.percent:.3g} %" for each in whole[:_SHOWN])
            more = f" and {len(whole) - _SHOWN} more outputs" if len(whole) > _SHOWN else ""
            parts.append(f"rows that agree: {agree}{more}")
        if self.dropped:
            parts.append(f"{self.dropped} were dropped")
        return ", ".join(parts)
