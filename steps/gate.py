"""The gate: every check of the spec against the measurements. Pure: the same records always give the same verdict."""

from shiplift.runtime.gates import policy as gates
from shiplift.runtime.records.deployment import Deployment
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.measurement import LoadReport
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.shadowing import Shadowed
from shiplift.runtime.records.verdict import Verdict
from shiplift.runtime.spec.groups import Requirements
from shiplift.runtime.spec.target import Fleet


def gate(
    requirements: Requirements,
    exported: Exported,
    deployment: Deployment,
    load_report: LoadReport,
    champion: Champion,
    fleet: Fleet,
    shadowed: Shadowed,
) -> Verdict:
    """Checks parity, accuracy, latency, throughput, failures and memory, against limits and against the champion.

    So is what the challenger did with real requests, if it shadowed the champion. Each target that serves is checked.
    A warning names the targets that don't serve. The verdict carries its evidence, so that it can be judged again under
    another policy.
    """
    others = tuple(target.name for target in fleet.targets if target.name not in deployment.targets)
    evidence = gates.evidence_of(exported, deployment, load_report, champion, others, shadowed)
    return gates.verdict(evidence, requirements)
