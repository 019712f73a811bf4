"""How production's requests and answers differ from the data that a version was validated on, column by column."""

import math
from typing import Literal

from pydantic import Field

from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record

ColumnState = Literal["drifted", "steady", "too few", "not compared"]
_NAMED = 3  # columns in a sentence


class Drifting(Record):
    """What is compared of a package: see the spec's `drift`.

    `reference` is the validation data as logged, called `reference_name` (None: the version has none), with the
    `label` and `extra` columns, which are no inputs. The limits `unpacked_mb` and `samples` are the site's.
    """

    every_s: float
    window_s: float
    threshold: float
    confidence: float
    min_requests: int
    columns: tuple[str, ...] = ()
    hook: str = ""
    reference: Artifact | None = None
    reference_name: str = ""
    label: str = ""
    extra: tuple[str, ...] = ()
    unpacked_mb: int = 4096
    samples: int = 10_000_000


class ColumnDrift(Record):
    """What is known of a column: `input/age`, an element `input/pixels[3]`, or a measure of texts `input/text (words)`.

    `psi` is the population stability index, and `chance` what undrifted values of this number have on average. `p` is
    the test's, corrected for the number of columns (Holm). `rows` and `requests` are those in the window that have
    the column. `missing` is the share of missing values now, `missing_before` that in the reference. `note` says why
    it can't be compared, or what differs.
    """

    column: str
    state: ColumnState
    test: str = ""
    psi: float = 0.0
    chance: float = 0.0
    p: float = 1.0
    rows: int = 0
    requests: int = 0
    missing: float = 0.0
    missing_before: float = 0.0
    note: str = ""


class DriftReport(Record):
    """A comparison of a version's window with its reference. Times are in seconds since the epoch.

    `problem` says why nothing could be compared (empty: it was).
    """

    model: str
    version: int
    at: float
    window_s: float = 0.0
    threshold: float = 0.0
    confidence: float = 0.0
    rows: int = 0
    requests: int = 0
    reference_rows: int = 0
    columns: tuple[ColumnDrift, ...] = ()
    problem: str = ""

    @property
    def drifted(self) -> tuple[ColumnDrift, ...]:
        """The columns that have drifted, the most first."""
        return tuple(sorted((each for each in self.columns if each.state == "drifted"), key=lambda each: -each.psi))

    @property
    def compared(self) -> int:
        """How many columns could be judged."""
        return sum(each.state in ("drifted", "steady") for each in self.columns)

    @property
    def sentence(self) -> str:
        """The result, for people."""
        if self.problem:
            return f"drift is not known: {self.problem}"
        if found := self.drifted:
            named = ", ".join(f"{each.column} (PSI {each.psi:.2g})" for each in found[:_NAMED])
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            return f"{len(found)} of {self.compared} columns drifted from the validation data: {named}{more}"
        if not self.compared:
            few = next((each.note for each in self.columns if each.state == "too few"), "")
            return f"drift is not known yet: {few or 'no column can be compared'}"
        return f"no drift in {self.compared} columns"


class DriftState(Record):
    """What a machine keeps of a model's drift: the last report, and since when it drifts (0: it does not).

    `package` is the digest of what was compared. `told`: others were told of this drift.
    """

    package: str
    report: DriftReport
    since: float = 0.0
    told: bool = False

    def after(self, package: str, report: DriftReport) -> "DriftState":
        """The state after another report. A drift that could not be seen this time goes on."""
        same = package == self.package
        since, told = (self.since, self.told) if same else (0.0, False)
        if report.drifted:
            since = since or report.at
        elif report.compared and not report.problem:
            since, told = 0.0, False
        return DriftState(package=package, report=report, since=since, told=told)

    @property
    def sentence(self) -> str:
        """What people must know; empty while nothing drifts."""
        return self.report.sentence if self.report.drifted else ""


class ColumnStatistics(Record):
    """The statistics of one column before correction: what a sandbox hands back.

    `p` is the test's; None: the column could not be judged, and `note` says why; `few`: for want of rows.
    """

    column: str
    test: str = ""
    psi: float = 0.0
    chance: float = 0.0
    p: float | None = Field(None, ge=0, le=1)
    few: bool = False
    rows: int = 0
    requests: int = 0
    missing: float = 0.0
    missing_before: float = 0.0
    note: str = ""

    @property
    def finite(self) -> bool:
        """Whether its numbers are numbers."""
        return math.isfinite(self.psi) and math.isfinite(self.chance)
