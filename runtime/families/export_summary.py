"""What a report says about an export, where several families say the same."""

from shiplift.runtime.records.kinds.exported import Exported


def converted(exported: Exported, more: str = "", *, verb: str = "Converted") -> str:
    """A sentence about the sandbox in which an export ran."""
    isolation = exported.isolation
    if isolation is None:
        return f"{verb}{more}."
    return (
        f"{verb} in a sandbox (network: {isolation.network}, files: {isolation.files}, calls: {isolation.calls}, "
        f"memory {isolation.memory_limit_mb} MiB, {isolation.timeout_s} s){more}."
    )
