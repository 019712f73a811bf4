"""What a report says about an export, where several families say the same."""

from collections.abc import Iterator

from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.proof import Proof, guarded_by, served_by


def converted(exported: Exported, more: str = "", *, verb: str = "Converted") -> str:
    """A sentence about the sandbox in which an export ran."""
    isolation = exported.isolation
    if isolation is None:
        return f"{verb}{more}."
    return (
        f"{verb} in a sandbox (network: {isolation.network}, files: {isolation.files}, calls: {isolation.calls}, "
        f"memory {isolation.memory_limit_mb} MiB, {isolation.timeout_s} s){more}."
    )


def summary(exported: Exported, more: str, *, proof: Proof | None, verb: str = "Converted") -> str:
    """How it was made, which forms serve it and why, and how it was proved."""
    forms = (served_by(exported.forms), guarded_by(exported.forms))
    parts = (*forms, converted(exported, more, verb=verb), proved(proof) if proof else "")
    return " ".join(filter(None, parts))


def proved(proof: Proof) -> str:
    """What the original and its form were asked, and that they answered alike: else there would be no export."""
    asked = ", ".join(f"{each.rows} {each.origin}" for each in proof.asked)
    ways = ", ".join(f"{each.name} ({each.rows})" for each in proof.settings)
    return " ".join(
        [
            f"Proved against the original on these rows: {asked}.",
            f"What is served answers alike {ways}.",
            *_closest(proof),
            *(["Left out:"] if proof.left_out else []),
            *(f"{reason.rstrip('.')}." for reason in proof.left_out),
        ]
    )


def _closest(proof: Proof) -> Iterator[str]:
    if worst := proof.worst:
        off = f"{worst.difference:.3g} off, {worst.tolerance:.3g} allowed"
        yield f"The closest to its tolerance is column {worst.column} of {worst.output}: {off}."
