"""The result of admission: one record whose sections are edges of the graph, so that steps take only what they use."""

from shiplift.runtime.records.base import Sections
from shiplift.runtime.records.model import Contract, Datasets, ModelVersion, RecordedRequests, Scan
from shiplift.runtime.spec.measurement import ComparisonTarget, LatencyTarget, Load, ScoreTarget, SearchSpace, Slo
from shiplift.runtime.spec.model import Conversion, Data, Quality, Quantization
from shiplift.runtime.spec.rules import Policy
from shiplift.runtime.spec.serving_settings import Rollout, Serving
from shiplift.runtime.spec.target import Wanted


class Admitted(Sections):
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
    score_target: ScoreTarget = ScoreTarget()
    serving: Serving
    rollout: Rollout
