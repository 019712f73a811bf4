"""The result of admission: one record whose sections are edges of the graph, so that steps take only what they use."""

from typing import Any

from pydantic import model_validator

from shiplift.runtime.records.base import Sections, volatile
from shiplift.runtime.records.kinds.contract import Contract
from shiplift.runtime.records.model import FALL_BACK, PIPELINE, PYTHON, Datasets, ModelVersion, RecordedRequests, Scan
from shiplift.runtime.spec.capturing import Capture
from shiplift.runtime.spec.drifting import Drift
from shiplift.runtime.spec.groups import Acceptance, Delivery, Requirements, ServingSpace, Shadowing
from shiplift.runtime.spec.measurement import ComparisonTarget, LatencyTarget, Load, ScoreTarget, SearchSpace, Slo
from shiplift.runtime.spec.model import Conversion, Data, Quality, Quantization
from shiplift.runtime.spec.promoting import Promoting
from shiplift.runtime.spec.rules import Policy
from shiplift.runtime.spec.serving_settings import Rollout, Serving
from shiplift.runtime.spec.target import Wanted

_KINDS: dict[str, str] = {"onnx": "graph", **dict.fromkeys(FALL_BACK, "graph"), PYTHON: "python", PIPELINE: "pipeline"}


class Admitted(Sections):
    """An admitted version with its spec, section by section.

    `logged` are the files that admission looked for among the run's artifacts: their digests, or "" for what was not
    there. A record in which they are others no longer holds.
    """

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
    promoting: Promoting = Promoting()
    capture: Capture = Capture()
    drift: Drift | None = None
    logged: dict[str, str] = volatile({})

    @property
    def requirements(self) -> Requirements:
        """The limits that the gate judges by."""
        return Requirements(
            quality=self.quality,
            data=self.data,
            slo=self.slo,
            policy=self.policy,
            rollout=self.rollout,
            shadow=self.promoting.shadow,
        )

    @property
    def shadowing(self) -> Shadowing:
        """The limits that a shadow is judged by, if there is one."""
        return Shadowing.of(self.requirements)

    @property
    def acceptance(self) -> Acceptance:
        """The limits that packaging judges precisions by."""
        return Acceptance(
            datasets=self.datasets,
            data=self.data,
            quality=self.quality,
            score_target=self.score_target,
            quantization=self.quantization,
        )

    @property
    def serving_space(self) -> ServingSpace:
        """The settings that packaging configures."""
        return ServingSpace(serving=self.serving, search_space=self.search_space)

    @property
    def delivery(self) -> Delivery:
        """The settings that a promotion follows."""
        return Delivery(
            rollout=self.rollout,
            promoting=self.promoting,
            p99_ms=self.slo.p99_ms,
            capture=self.capture,
            drift=self.drift,
            datasets=self.datasets,
            data=self.data,
        )

    @model_validator(mode="before")
    @classmethod
    def _of_0_1(cls, value: Any) -> Any:
        """Adds the kind to a contract that 0.1 wrote, by the version's flavor.

        0.1 kept no task for Hugging Face models, and declared texts and images alike, so each is read as texts. Such a
        record is only displayed, since no key finds it any more.
        """
        contract = value.get("contract") if isinstance(value, dict) else None
        if not isinstance(contract, dict) or "kind" in contract or contract.get("generates"):
            return value
        version = value.get("model_version")
        kind = _KINDS.get(version.get("flavor", "") if isinstance(version, dict) else "", "text")
        own = Contract.kinds[kind].model_fields
        return value | {"contract": {name: field for name, field in contract.items() if name in own} | {"kind": kind}}
