"""What admission gives: one record whose parts are edges of their own, so that later steps take what they use."""

from runtime.records import Bundle, Contract, Datasets, ModelVersion, RecordedRequests, Scan
from runtime.rules import Policy
from runtime.spec import (
    ComparisonTarget,
    Conversion,
    Data,
    LatencyTarget,
    Load,
    Quality,
    Quantization,
    Rollout,
    SearchSpace,
    Serving,
    Slo,
    Wanted,
)


class Admitted(Bundle):
    """An admitted version with its spec, section by section."""

    model_version: ModelVersion
    contract: Contract
    datasets: Datasets
    recorded_requests: RecordedRequests = RecordedRequests()
    scan: Scan
    wanted: Wanted
    conversion: Conversion
    data: Data
    quantization: Quantization
    quality: Quality
    search_space: SearchSpace
    load: Load
    slo: Slo
    policy: Policy = Policy()
    latency_target: LatencyTarget
    comparison_target: ComparisonTarget = ComparisonTarget()
    serving: Serving
    rollout: Rollout
