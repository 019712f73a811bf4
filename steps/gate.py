"""The gate: every check of the spec against what was measured. Pure; the same records always give the same verdict."""

from runtime import policy as gates
from runtime.records import Champion, Deployment, Exported, LoadReport, Verdict
from runtime.rules import Policy
from runtime.spec import Data, Quality, Slo


def gate(
    quality: Quality, data: Data, slo: Slo, policy: Policy, exported: Exported, deployment: Deployment,
    load_report: LoadReport, champion: Champion,
) -> Verdict:  # fmt: skip
    """Judges parity, accuracy, latency, throughput, failures and memory, against limits and against the champion.

    The verdict carries its evidence, so that it can be judged again under another policy.
    """
    evidence = gates.evidence_of(exported, deployment.package, load_report, champion)
    return gates.verdict(evidence, gates.Limits(quality=quality, data=data, slo=slo, policy=policy))
