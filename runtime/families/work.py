"""What a family gets to work on: the records of a step that travel together."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from shiplift.runtime.composition.incumbents import Members
from shiplift.runtime.confinement.policy import SandboxLimits
from shiplift.runtime.records.kinds.contract import Contract
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.model import Datasets, ModelVersion, RecordedRequests
from shiplift.runtime.records.precision import Candidates
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.measurement import ScoreTarget, SearchSpace
from shiplift.runtime.spec.model import Conversion, Data, Quality, Quantization
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore

C = TypeVar("C", bound=Contract)
E = TypeVar("E", bound=Exported)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What all kinds of work have: the site."""

    site: Site

    @property
    def store(self) -> ArtifactStore:
        """The site's artifacts."""
        return ArtifactStore(self.site.artifacts_uri)


@dataclass(frozen=True, kw_only=True)
class Exporting(Work, Generic[C]):
    """An admitted version to export."""

    version: ModelVersion
    contract: C
    conversion: Conversion
    datasets: Datasets
    data: Data
    recorded_requests: RecordedRequests = RecordedRequests()  # noqa: RUF009 - frozen

    def limits(self, task: str) -> SandboxLimits:
        """The spec's limits for a task in the sandbox, capped by the site's."""
        policy = self.site.policy
        return SandboxLimits(
            memory_mb=min(self.conversion.memory_mb, policy.memory_mb),
            timeout_s=min(self.conversion.timeout_s, policy.timeout_s),
            task=task,
            settings="export",
        )


@dataclass(frozen=True, kw_only=True)
class Quantizing(Work, Generic[E]):
    """An exported model whose precisions are built for a target and scored on datasets."""

    target: Target
    exported: E
    datasets: Datasets
    data: Data
    quantization: Quantization


@dataclass(frozen=True, kw_only=True)
class Packaging(Work, Generic[E]):
    """An exported model whose candidates are judged and packaged for a target."""

    target: Target
    version: ModelVersion
    exported: E
    candidates: Candidates
    datasets: Datasets
    data: Data
    quality: Quality
    score_target: ScoreTarget
    quantization: Quantization
    search_space: SearchSpace
    serving: Serving
    champion: Champion
    members: Members
