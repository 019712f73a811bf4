"""What is logged beside a model: the release spec, datasets, a metric, requests. They are fetched but not opened here.

Each file is searched with the model first (`extra_files`), then among the artifacts of its run.
"""

from pathlib import Path

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.files import Irregular, read_regular
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.model import Datasets, RecordedRequests
from shiplift.runtime.records.request import Request
from shiplift.runtime.spec.document import MAX_SPEC_BYTES, ReleaseSpec, parse
from shiplift.runtime.spec.model import OwnMetric
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.registry.terms import FOLDER
from shiplift.runtime.store.version_files import VersionFiles

SPEC_FILE = "shiplift.yaml"
_MAX_METRIC_BYTES = 1 << 20


def resolve_spec(request: Request, registry: VersionFiles, run_id: str, model: Path, logged: Path) -> ReleaseSpec:
    """The spec in the request, else the one logged with the model or its run, else the defaults.

    Raises:
        SpecInvalid: the spec is wrong, or is for another model.
    """
    text = request.spec
    if not text:
        file = logged_file(registry, run_id, f"{FOLDER}/{SPEC_FILE}", model, logged)
        text = _spec_text(file) if file else ""
    spec = parse(text)
    if spec.model not in (None, request.model):
        raise SpecInvalid(f"the spec is for model {spec.model!r}, not {request.model!r}", do="Change its `model:`.")
    return spec


def _spec_text(file: Path) -> str:
    try:
        return read_regular(file, MAX_SPEC_BYTES).decode(errors="replace")
    except Irregular as error:
        raise SpecInvalid(f"the spec can't be read: {error}", do="Shorten it and try again.") from error


def logged_file(registry: VersionFiles, run_id: str, path: str, model: Path, to: Path) -> Path | None:
    """A file that was logged with the model (`extra_files`), or as an artifact of its run."""
    for file in (model / path, model / "extra_files" / Path(path).name):
        if file.is_file():
            return file
    to.mkdir(exist_ok=True)
    return registry.download_run_file(run_id, path, to)


def datasets_of(registry: VersionFiles, run_id: str, spec: ReleaseSpec, model: Path, store: ArtifactStore) -> Datasets:
    """The datasets and the metric that a spec names, stored.

    Raises:
        SpecInvalid: the author's own metric was not logged, or can't be read.
    """
    stored: dict[str, Artifact | None] = {}
    for name, path in (("validation", spec.data.validation), ("calibration", spec.data.calibration)):
        file = logged_file(registry, run_id, path, model, model.parent / "logged")
        stored[name] = store.put_file(file) if file else None
    return Datasets(
        metric=_metric(registry, run_id, spec, model, store),
        validation=stored["validation"],
        validation_name=spec.data.validation if stored["validation"] else "",
        calibration=stored["calibration"],
        calibration_name=spec.data.calibration if stored["calibration"] else "",
    )


def _metric(
    registry: VersionFiles, run_id: str, spec: ReleaseSpec, model: Path, store: ArtifactStore
) -> Artifact | None:
    """The file of the author's own metric, if the spec names one."""
    if not isinstance(spec.data.metric, OwnMetric):
        return None
    path = f"{FOLDER}/{spec.data.metric.python}"
    file = logged_file(registry, run_id, path, model, model.parent / "logged")
    if file is None:
        raise SpecInvalid(f"data.metric names {path}, which was not logged", do="Log the file beside the spec.")
    try:
        return store.put_bytes(read_regular(file, _MAX_METRIC_BYTES))
    except Irregular as error:
        raise SpecInvalid(f"data.metric's {path} can't be read: {error}", do="Log a plain, small file.") from error


def recorded_of(
    registry: VersionFiles, run_id: str, spec: ReleaseSpec, model: Path, store: ArtifactStore
) -> RecordedRequests:
    """The requests that a spec names, stored, if they were logged."""
    file = logged_file(registry, run_id, spec.load.requests, model, model.parent / "logged")
    return RecordedRequests(file=store.put_file(file), name=spec.load.requests) if file else RecordedRequests()
