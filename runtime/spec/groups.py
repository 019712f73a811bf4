"""Sections of a release that steps take together."""

from shiplift.runtime.records.base import Record
from shiplift.runtime.records.model import Datasets
from shiplift.runtime.spec.capturing import Capture
from shiplift.runtime.spec.drifting import Drift
from shiplift.runtime.spec.measurement import ScoreTarget, SearchSpace, Slo
from shiplift.runtime.spec.model import Data, Quality, Quantization
from shiplift.runtime.spec.promoting import Promoting
from shiplift.runtime.spec.rules import Policy
from shiplift.runtime.spec.serving_settings import Rollout, Serving
from shiplift.runtime.spec.shadowing import Shadow


class Requirements(Record):
    """Everything that a release is judged by."""

    quality: Quality
    data: Data
    slo: Slo
    policy: Policy
    rollout: Rollout = Rollout()
    shadow: Shadow | None = None


class Shadowing(Record):
    """Everything that a shadow is judged by.

    Without a section `promotion.shadow` there are no `requirements`, so that no changed limit shadows once more.
    """

    requirements: Requirements | None = None

    @classmethod
    def of(cls, requirements: Requirements) -> "Shadowing":
        """The limits, if there is a shadow to judge by them."""
        return cls(requirements=requirements if requirements.shadow else None)


class Acceptance(Record):
    """The data on which precisions are scored, and the scores that are good enough to be packaged."""

    datasets: Datasets
    data: Data
    quality: Quality
    score_target: ScoreTarget
    quantization: Quantization


class ServingSpace(Record):
    """How a model is served: what the spec says, and what tuning may choose."""

    serving: Serving
    search_space: SearchSpace


class Delivery(Record):
    """How a version gets its traffic, who agrees first, how it is watched after, and what is kept of its requests.

    `p99_ms` is the SLO's limit, which a bake watches. With `drift`, what is kept is compared with the `datasets`.
    """

    rollout: Rollout = Rollout()
    promoting: Promoting = Promoting()
    p99_ms: float | None = None
    capture: Capture = Capture()
    drift: Drift | None = None
    datasets: Datasets = Datasets()
    data: Data = Data()
