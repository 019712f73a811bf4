"""What a report says about an export, where families say the same."""

from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.proof import Proof


def converted(exported: Exported, more: str = "", *, verb: str = "Converted") -> str:
    """A sentence on the sandbox that an export ran in."""
    isolation = exported.isolation
    if isolation is None:
        return f"{verb}{more}."
    return (
        f"{verb} in a sandbox (network: {isolation.network}, files: {isolation.files}, calls: {isolation.calls}, "
        f"memory {isolation.memory_limit_mb} MiB, {isolation.timeout_s} s){more}."
    )


def proved(proof: Proof) -> str:
    """What the original and its graph were asked, and that they answered alike: else there would be no export."""
    asked = ", ".join(f"{each.rows} {each.origin}" for each in proof.asked)
    ways = ", ".join(f"{each.name} ({each.rows})" for each in proof.settings)
    worst, closest = proof.worst, ""
    if worst:
        closest = (
            f" The closest to its tolerance is column {worst.column} of {worst.output}: {worst.difference:.3g} off, "
            f"{worst.tolerance:.3g} allowed."
        )
    left_out = f" Not asked: {'; '.join(proof.left_out)}." if proof.left_out else ""
    return f"Proved against the original on these rows: {asked}. Its graph answers alike {ways}.{closest}{left_out}"
