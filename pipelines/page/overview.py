"""The rows of the page's lists, from the status of either engine: the same as `shiplift status` shows."""

from collections import defaultdict
from dataclasses import dataclass

from shiplift.pipelines.engines.answers import (
    ClusterStatus,
    Incident,
    ModelStatus,
    ModelVersions,
    ServiceSummary,
    StackProcess,
    StackStatus,
    Status,
    UnderWay,
    VersionStatus,
    WorkflowStatus,
)
from shiplift.runtime.records.proof import ServedProof

_ENDED = ("Succeeded", "Failed", "Error")  # a Workflow's phases


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """A model in the list. 0 stands for no version, and an empty text for nothing to say.

    `verified_at` is when it last answered a golden request rightly, in seconds since the epoch; `share` is how its
    traffic is divided, in words.
    """

    model: str
    champion: int = 0
    challenger: int = 0
    latest: int = 0
    share: str = ""
    verified_at: float = 0.0
    finding: str = ""
    drift: str = ""
    data_drift: str = ""

    @property
    def ails(self) -> str:
        """What needs somebody's attention."""
        return self.finding or self.drift or self.data_drift


@dataclass(frozen=True, kw_only=True)
class Overview:
    """Everything that the first page shows; `problem` says why models may be missing."""

    models: tuple[ModelRow, ...]
    releasing: tuple[UnderWay, ...]
    parts: tuple[StackProcess, ...] = ()
    incidents: tuple[Incident, ...] = ()
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelView:
    """A model and its versions, newest first."""

    model: str
    row: ModelRow
    versions: tuple[VersionStatus, ...]
    endpoint: str = ""
    grpc: str = ""
    proof: ServedProof | None = None
    idle: str = ""
    note: str = ""

    def version(self, number: int) -> VersionStatus | None:
        """The version of that number."""
        return next((each for each in self.versions if each.version == number), None)


def overview_of(status: Status) -> Overview:
    """The first page."""
    return _of_cluster(status) if isinstance(status, ClusterStatus) else _of_stack(status)


def _of_stack(status: Status) -> Overview:
    assert isinstance(status, StackStatus)  # noqa: S101 - nobody asked about one model
    gone = [part.name for part in status.parts if not part.running]
    problem = f"{', '.join(gone)} of this stack does not run. `shiplift up` starts it." if gone else ""
    if "mlflow" in gone:
        problem = f"The registry (MLflow) does not run, so models can't be listed. Production serves on. {problem}"
    if not status.parts:
        problem = "No stack was started here. `shiplift up` starts one."
    return Overview(
        models=tuple(_model_row(each) for each in sorted(status.models, key=lambda each: each.model)),
        releasing=status.releasing,
        parts=status.parts,
        incidents=tuple(reversed(status.incidents)),
        problem=problem,
    )


def _model_row(status: ModelStatus) -> ModelRow:
    fields = ("model", "champion", "challenger", "latest", "verified_at", "finding", "drift", "data_drift")
    share = _share(status.champion, status.baking)
    return ModelRow(share=share, **{name: getattr(status, name) for name in fields})


def _share(champion: int, baking: str) -> str:
    return ", ".join(filter(None, (f"version {champion}: 100 %", baking))) if champion else ""


def _of_cluster(status: ClusterStatus) -> Overview:
    releases = _by_model(status)
    services = {each.model: each for each in status.services}
    models = tuple(_cluster_row(name, services.get(name), releases[name]) for name in sorted({*services, *releases}))
    running = tuple(_under_way(each) for each in status.releases if _runs(each))
    return Overview(models=models, releasing=running, problem=status.note)


def _by_model(status: ClusterStatus) -> dict[str, list[WorkflowStatus]]:
    releases: dict[str, list[WorkflowStatus]] = defaultdict(list)
    for each in status.releases:
        releases[each.model].append(each)
    return releases


def _cluster_row(model: str, service: ServiceSummary | None, releases: list[WorkflowStatus]) -> ModelRow:
    latest = max((each.version for each in releases), default=0)
    if service is None:
        return ModelRow(model=model, latest=latest)
    why = ": ".join(filter(None, (service.reason, service.message)))
    share = ", ".join(f"{revision}: {weight} %" for revision, weight in service.weights.items()) or service.targets
    share = ", ".join(filter(None, (share, service.baking)))
    ails = f"{service.state}: {why}" if service.state != "Ready" else ""
    return ModelRow(model=model, champion=service.version, latest=latest, share=share, finding=ails)


def _runs(release: WorkflowStatus) -> bool:
    return bool(release.phase) and release.phase not in _ENDED


def _under_way(release: WorkflowStatus) -> UnderWay:
    stage = release.outcome.removeprefix("under way: ")
    return UnderWay(release=release.name, model=release.model, version=release.version, stage=stage)


def model_view(model: str, status: Status) -> ModelView:
    """A model's page."""
    if isinstance(status, ModelVersions):
        return _of_versions(status)
    assert isinstance(status, ClusterStatus)  # noqa: S101 - a model was asked about
    return _of_workflows(model, status)


def _of_versions(status: ModelVersions) -> ModelView:
    champion = next((each.version for each in status.versions if "champion" in each.aliases), 0)
    row = ModelRow(
        model=status.model,
        champion=champion,
        latest=status.versions[0].version if status.versions else 0,
        share=_share(champion, status.baking),
        verified_at=status.verified_at,
        finding=status.finding,
        drift=status.drift,
        data_drift=status.data_drift,
    )
    where = status.endpoint
    return ModelView(
        model=status.model,
        row=row,
        versions=status.versions,
        endpoint=where.http,
        grpc=where.grpc,
        proof=status.proof,
        idle=status.idle,
    )


def _of_workflows(model: str, status: ClusterStatus) -> ModelView:
    service = next((each for each in status.services if each.model == model), None)
    newest: dict[int, WorkflowStatus] = {}
    for each in status.releases:
        if each.model == model:
            newest.setdefault(each.version, each)
    versions = tuple(_cluster_version(newest[number], status.aliases) for number in sorted(newest, reverse=True))
    row = _cluster_row(model, service, list(newest.values()))
    return ModelView(model=model, row=row, versions=versions, note=status.note or status.drift)


def _cluster_version(release: WorkflowStatus, aliases: dict[str, int]) -> VersionStatus:
    return VersionStatus(
        version=release.version,
        aliases=tuple(name for name, version in aliases.items() if version == release.version),
        outcome=release.outcome or release.phase,
        verdict=release.verdict,
        reason=release.reason,
        release=release.name,
        under_way=_under_way(release) if _runs(release) else None,
    )
