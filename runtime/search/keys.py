"""The keys under which measurements are kept: measurements with equal keys can be compared."""

import hashlib
import json

from shiplift.runtime.records.model import RecordedRequests
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.spec.measurement import LatencyTarget, Load, SearchSpace
from shiplift.runtime.spec.target import Target


def digest_of(
    packages: Packages,
    load: Load,
    recorded: RecordedRequests,
    space: SearchSpace,
    latency_target: LatencyTarget,
    hardware: list[object],
) -> str:
    """Everything that makes measurements comparable: the packages, how they are measured, and the hardware."""
    method = [load.protocol, load.seed, space.window_ms, space.max_concurrency, latency_target.p99_ms, space.memory_mb]
    sent = [load.batch, [shape.model_dump() for shape in load.shapes], recorded.file.sha256 if recorded.file else ""]
    parts = [[p.repository.sha256 for p in packages.packages], method, sent, hardware]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def history_key(packages: Packages, target: Target, hardware: list[object]) -> str:
    """The key of the best configurations: the model, the target and the hardware on which they were measured."""
    parts = [packages.packages[0].model, target.name, *hardware]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
