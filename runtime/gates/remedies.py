"""What to do about a check that is not a pass: one line per kind of check, for a failure and for an undecided one.

A check's reason says what was measured against which limit, and for an undecided one how much more would decide it.
Advice says what to change next. It names fields of the release spec and commands; `MODEL/VERSION` stands for the
version, which a report fills in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from shiplift.runtime.records.verdict import Outcome


class CheckKind(StrEnum):
    """The kinds of checks. Those of one kind differ in what they are about: a slice, an output, a target."""

    PARITY = "parity"
    ANSWERS = "answers"
    PRECISION = "precision"
    SCORE = "score"
    JPEG = "score as JPEG"
    SCORE_WORSE = "score against the champion"
    LATENCY = "latency"
    LATENCY_WORSE = "latency against the champion"
    THROUGHPUT = "throughput"
    THROUGHPUT_WORSE = "throughput against the champion"
    RATE = "rate"
    TOKENS = "tokens"
    FAILURES = "failures"
    MEMORY = "memory"
    CHAMPION = "champion"
    TARGETS = "targets"
    QUARANTINE = "quarantine"
    SHADOW = "shadow"
    SHADOW_REQUESTS = "shadow requests"
    SHADOW_ERRORS = "shadow errors"
    SHADOW_LATENCY = "shadow latency"
    SHADOW_LATENCY_WORSE = "shadow latency against the champion"
    SHADOW_AGREEMENT = "shadow agreement"


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """What to do about a check that failed, and about one that is undecided."""

    failed: str
    undecided: str


_RERUN = "then `shiplift rerun MODEL/VERSION --spec shiplift.yaml`"
_AGAIN = "then `shiplift rerun MODEL/VERSION`"
_LONGER = f"Raise `load.window_ms` or `load.attempts`, or end what else runs on the machine; {_RERUN}."
_ROUNDS = f"Raise `load.comparison_budget_s` and `load.comparison_rounds`, or use a quieter machine; {_RERUN}."
_SAMPLES = f"Log more validation data at `data.validation` in the version's run, or choose another limit; {_RERUN}."
_SHADOW_LONGER = f"Raise `promotion.shadow.for` or `promotion.shadow.share`; {_RERUN}."

REMEDIES: Mapping[CheckKind, Remedy] = {
    CheckKind.PARITY: Remedy(
        failed="Change what the conversion computes otherwise (the inputs are named) and register the model "
        "again. Or, if so small a difference does not matter, raise `quality.parity.max_abs` or "
        f"`quality.parity.max_rel`; {_RERUN}.",
        undecided=f"Take the rule on parity out of `policy.rules`, since this kind of model has none; {_RERUN}.",
    ),
    CheckKind.ANSWERS: Remedy(
        failed="Ask the version and its forms the row that differs: `shiplift ask MODEL/VERSION`.",
        undecided="Release it again, so that the server is asked: `shiplift rerun MODEL/VERSION`.",
    ),
    CheckKind.PRECISION: Remedy(
        failed="Log calibration data at `data.calibration`, raise `quantization.max_score_drop`, or add fp32 to "
        f"the target's `precisions`; {_RERUN}.",
        undecided=f"Add fp32 to the target's `precisions`; {_RERUN}.",
    ),
    CheckKind.SCORE: Remedy(
        failed="Train a better model and register it: it is released as a version of its own. Or, if the limit "
        f"is wrong, change `quality.min_score` (for a rule, its `limit`); {_RERUN}.",
        undecided=_SAMPLES,
    ),
    CheckKind.JPEG: Remedy(
        failed="Train with JPEG files, or leave the quality out of `data.jpeg_qualities`. Or raise "
        f"`quality.max_jpeg_drop`; {_RERUN}.",
        undecided=_SAMPLES,
    ),
    CheckKind.SCORE_WORSE: Remedy(
        failed="Compare both: `shiplift report MODEL/VERSION --compare MODEL/CHAMPION`. Train a better model, "
        f"or, if the loss is acceptable, raise `slo.regression.score`; {_RERUN}.",
        undecided=_SAMPLES,
    ),
    CheckKind.LATENCY: Remedy(
        failed="Let the search look longer (`search.time_budget_s`) or at smaller batches (`search.max_batch`), "
        "release on a faster target, or raise the limit (`slo.p99_ms`, `slo.ttft_p99_ms`, or the rule's); "
        f"{_RERUN}.",
        undecided=_LONGER,
    ),
    CheckKind.LATENCY_WORSE: Remedy(
        failed="Compare both: `shiplift report MODEL/VERSION --compare MODEL/CHAMPION`. Make the model smaller, "
        "let the search look longer (`search.time_budget_s`), or raise `slo.regression.p99_percent`; "
        f"{_RERUN}.",
        undecided=_ROUNDS,
    ),
    CheckKind.THROUGHPUT: Remedy(
        failed="Let the search look longer (`search.time_budget_s`) or at larger batches (`search.max_batch`), "
        "add a precision, release on a faster target, or lower `slo.throughput_per_s` (for a rule, its "
        f"`limit`); {_RERUN}.",
        undecided=_LONGER,
    ),
    CheckKind.THROUGHPUT_WORSE: Remedy(
        failed="Compare both: `shiplift report MODEL/VERSION --compare MODEL/CHAMPION`. Make the model smaller, "
        "let the search look longer (`search.time_budget_s`), or raise "
        f"`slo.regression.throughput_percent`; {_RERUN}.",
        undecided=_ROUNDS,
    ),
    CheckKind.RATE: Remedy(
        failed="Release on a faster target or with another precision, allow a larger `slo.p99_ms`, or lower the "
        f"rule's `limit`; {_RERUN}.",
        undecided=f"Set `slo.p99_ms` and `load.open_loop_s`, so that the highest rate is searched for; {_RERUN}.",
    ),
    CheckKind.TOKENS: Remedy(
        failed="Release on a faster target or with another precision, or lower `slo.tokens_per_s` (for a rule, "
        f"its `limit`); {_RERUN}.",
        undecided=_LONGER,
    ),
    CheckKind.FAILURES: Remedy(
        failed="Look for the error of a request in the log: `shiplift logs MODEL/VERSION -n 200`. Correct the "
        f"model, or log requests that it takes at `load.requests`; {_RERUN}. `slo.failures` is how many "
        "may fail.",
        undecided="Measure it again: `shiplift rerun MODEL/VERSION`.",
    ),
    CheckKind.MEMORY: Remedy(
        failed="Bound what the search may choose with `search.memory_mb`, leave it fewer instances "
        "(`search.instances`), use a lower precision, or raise `slo.memory_mb` (for a rule, its `limit`); "
        f"{_RERUN}.",
        undecided="Take the limit out of `slo.memory_mb` or `policy.rules`, or release on a target that measures "
        f"it; {_RERUN}.",
    ),
    CheckKind.CHAMPION: Remedy(
        failed="Measure both again: `shiplift rerun MODEL/VERSION`.",
        undecided=f"Make the champion serve again (`shiplift status MODEL`), {_AGAIN}.",
    ),
    CheckKind.TARGETS: Remedy(
        failed="See the reason for the target in the report, correct it or leave the target out of `targets`; "
        f"{_RERUN}.",
        undecided=f"See the reason for the target in the report, {_AGAIN}.",
    ),
    CheckKind.QUARANTINE: Remedy(
        failed="Find the cause in the server's log (`shiplift logs triton`) and correct the model; register it again.",
        undecided="Find the cause in the server's log: `shiplift logs triton`.",
    ),
    CheckKind.SHADOW: Remedy(
        failed="Try it on real requests again: `shiplift rerun MODEL/VERSION`.",
        undecided="Shadowing needs a champion that serves and gets requests; when there is one, `shiplift rerun "
        "MODEL/VERSION`.",
    ),
    CheckKind.SHADOW_REQUESTS: Remedy(
        failed=_SHADOW_LONGER,
        undecided="Raise `promotion.shadow.for` or `promotion.shadow.share`, or lower "
        f"`promotion.shadow.min_requests`; {_RERUN}.",
    ),
    CheckKind.SHADOW_ERRORS: Remedy(
        failed="Find what it fails in the log (`shiplift logs MODEL/VERSION -n 200`), correct the model and "
        f"register it again. Or raise `promotion.shadow.errors_percent`; {_RERUN}.",
        undecided=_SHADOW_LONGER,
    ),
    CheckKind.SHADOW_LATENCY: Remedy(
        failed="Log real requests at `load.requests`, so that tuning aims at them, or raise "
        f"`promotion.shadow.p99_ms`; {_RERUN}.",
        undecided=_SHADOW_LONGER,
    ),
    CheckKind.SHADOW_LATENCY_WORSE: Remedy(
        failed="Log real requests at `load.requests`, so that tuning aims at them, or raise "
        f"`promotion.shadow.p99_worse_percent`; {_RERUN}.",
        undecided=_SHADOW_LONGER,
    ),
    CheckKind.SHADOW_AGREEMENT: Remedy(
        failed="Look at the differing requests in the report. If the new answers are better, lower "
        f"`promotion.shadow.agreement_percent`; {_RERUN}. Otherwise correct the model and register it "
        "again.",
        undecided=f"{_SHADOW_LONGER} An output that no answer has goes out of `promotion.shadow.agreement_percent`.",
    ),
}


def remedy(kind: CheckKind, outcome: Outcome) -> str:
    """What to do about a check of this kind; empty if it passed."""
    known = REMEDIES[kind]
    return {Outcome.PASS: "", Outcome.FAIL: known.failed, Outcome.INCONCLUSIVE: known.undecided}[outcome]
