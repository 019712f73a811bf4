"""What is logged beside a model: the release spec, datasets, a metric, requests. They are fetched but not opened here.

Each file is searched with the model first (`extra_files`), then among the artifacts of its run.
"""

import shlex
from pathlib import Path

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.files import Irregular, read_regular
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.model import Datasets, RecordedRequests
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.spec.document import MAX_SPEC_BYTES, ReleaseSpec, parse
from shiplift.runtime.spec.model import OwnMetric
from shiplift.runtime.store.artifacts import ArtifactStore, digest
from shiplift.runtime.store.registry.terms import FOLDER, VersionInfo
from shiplift.runtime.store.version_files import VersionFiles, version_files

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
    try:
        spec = parse(text)
    except SpecInvalid as error:
        name = shlex.quote(f"{request.model}/{request.version}")
        raise SpecInvalid(error.what, do=f"{error.do} Then `shiplift rerun {name} --spec shiplift.yaml`.") from error
    if spec.model not in (None, request.model):
        raise SpecInvalid(
            f"the spec is for model {spec.model!r}, not {request.model!r}", do=f"Write `model: {request.model}` in it."
        )
    return spec


def _spec_text(file: Path) -> str:
    try:
        return read_regular(file, MAX_SPEC_BYTES).decode(errors="replace")
    except Irregular as error:
        raise SpecInvalid(f"the spec can't be read: {error}", do="Shorten it and try again.") from error


class LoggedFiles:
    """Files of a version; it notes the digest of each that was looked for in the run ("": there was none)."""

    def __init__(self, files: VersionFiles) -> None:
        self._files = files
        self.found: dict[str, str] = {}

    def version(self, name: str, version: int) -> VersionInfo:
        """See `VersionFiles`."""
        return self._files.version(name, version)

    def run_of(self, info: VersionInfo) -> str:
        """See `VersionFiles`."""
        return self._files.run_of(info)

    def download_model(self, info: VersionInfo, to: Path, *, limit_mb: float) -> Path:
        """See `VersionFiles`."""
        return self._files.download_model(info, to, limit_mb=limit_mb)

    def download_run_file(self, run_id: str, path: str, to: Path) -> Path | None:
        """See `VersionFiles`."""
        file = self._files.download_run_file(run_id, path, to)
        self.found[path] = _digest(file)
        return file


def still_logged(admitted: Admitted, site: Site, request: Request) -> bool:  # noqa: ARG001 - a step's arguments
    """Whether the run still has the files that admission found there, and none of those that it missed.

    Raises:
        Temporary: the registry does not respond.
    """
    registry, run_id = version_files(site.registry_uri), admitted.model_version.run_id
    with scratch_folder(Path(site.home)) as folder:
        for number, (path, known) in enumerate(admitted.logged.items()):
            to = folder / str(number)
            to.mkdir()
            if _digest(registry.download_run_file(run_id, path, to)) != known:
                return False
    return True


def _digest(file: Path | None) -> str:
    """The SHA-256 of a file; empty if there is none, or if it is none that can be read."""
    try:
        return digest(file)[0] if file else ""
    except Irregular:
        return ""


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
