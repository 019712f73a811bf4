"""The gate: every check of the spec against what was measured. Pure; the same records always give the same verdict."""

from runtime import policy
from runtime.records import Champion, Check, Deployment, Exported, LoadReport, Verdict
from runtime.spec import Data, Quality, Slo


def gate(
    quality: Quality, data: Data, slo: Slo, exported: Exported, deployment: Deployment, load_report: LoadReport,
    champion: Champion,
) -> Verdict:  # fmt: skip
    """Judges parity, accuracy, p99, throughput, failures and memory, against limits and against the champion."""
    package = deployment.package
    checks: list[Check] = [policy.parity_check(exported.parity, quality)]
    score = policy.score_check(package.score, package.samples, package.metric, quality, data)
    checks += [score] if score else []
    checks += policy.load_checks(load_report, slo)
    checks += policy.champion_checks(
        load_report.comparison, champion, package.score, package.metric, package.validation, slo
    )
    return Verdict.of(tuple(checks))
