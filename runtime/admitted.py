"""What admission gives: one record whose parts are edges of their own, so that later steps take what they use."""

from runtime.records import Bundle, Contract, Datasets, ModelVersion, Scan
from runtime.spec import (
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
    scan: Scan
    wanted: Wanted
    conversion: Conversion
    data: Data
    quantization: Quantization
    quality: Quality
    search_space: SearchSpace
    load: Load
    slo: Slo
    latency_target: LatencyTarget
    serving: Serving
    rollout: Rollout
