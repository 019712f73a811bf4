"""The model registry and its runs, over REST. MLflow's own client only handles artifacts that its server does not keep.

Importing that client takes 1.3 s of CPU time and 170 MB. A registry that does not respond raises `Temporary`, an
unknown name `NotFound`; this file raises no other error.
"""

import math
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shiplift.runtime.base.errors import NotFound, PromotionConflict, RegistryDenied
from shiplift.runtime.records.figure import Figure
from shiplift.runtime.store import downloads
from shiplift.runtime.store.mlflow.artifact_proxy import ArtifactProxy
from shiplift.runtime.store.mlflow.connection import Connection
from shiplift.runtime.store.mlflow.failures import refused
from shiplift.runtime.store.mlflow.settings import mlflow_defaults
from shiplift.runtime.store.registry.proxied import ProxiedArtifacts, root_of
from shiplift.runtime.store.registry.rest import RestRegistry
from shiplift.runtime.store.registry.runs import absent, create_run, info_of, now_ms, run_info
from shiplift.runtime.store.registry.session import Session
from shiplift.runtime.store.registry.terms import FOLDER, MEMBER_TAG, PIPELINE_TAG, TAG, VersionInfo

MAX_RUN_FILE_MB = 1024.0
_FIGURES = 500  # in one request, which may have 1,000
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.: -]")  # in the name of a metric, besides the slash
_KEY = 250  # characters of a metric's name


def prepare_environment() -> None:
    """Sets MLflow's environment variables: bounded waits, no telemetry, no progress bars.

    Called at the start of every process that imports MLflow.
    """
    for variable, value in mlflow_defaults().items():
        os.environ.setdefault(variable, value)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")


class Registry:
    """A model registry and its tracking store at `uri`, an MLflow server.

    Every method raises `Temporary` if the server can't be reached or fails, `RegistryDenied` if it wants other
    credentials, and `NotFound` for unknown names.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._session = Session(Connection(uri))
        self._rest = RestRegistry(uri, session=self._session)

    # --- versions ---

    def version(self, name: str, version: int) -> VersionInfo:
        """A version, as it is now."""
        info = self._rest.version(name, version)
        if info is None:
            raise absent(f"version {version} of model {name!r}")
        return info

    def versions(self, name: str) -> list[VersionInfo]:
        """Every version of a model, in no particular order."""
        try:
            return self._rest.versions(name)
        except NotFound:
            return []

    def tag(self, name: str, version: int, **tags: str) -> None:
        """Sets `shiplift.KEY` tags; values longer than the registry's limit are cut."""
        self._rest.tag(name, version, **tags)

    def untag(self, name: str, version: int, key: str) -> None:
        """Removes a tag; one that is not there is no error."""
        self._rest.untag(name, version, key)

    def describe(self, name: str, version: int, description: str) -> None:
        """Replaces a version's description."""
        self._rest.describe(name, version, description)

    def pipelines(self) -> list[VersionInfo]:
        """The versions that are pipelines of models, in no particular order."""
        return self._rest.tagged(PIPELINE_TAG)

    def register_again(self, info: VersionInfo, member: str) -> VersionInfo:
        """Registers the next version of a pipeline, with the files of this one, for a new version of a `member`.

        The files are copied, since a run holds the records of only one version.

        Raises:
            NotAdmitted: the registry keeps its files where they can't be written from here.
        """
        with tempfile.TemporaryDirectory(prefix="shiplift-") as folder:
            model = self.download_model(info, Path(folder) / "model", limit_mb=MAX_RUN_FILE_MB)
            files = {
                file.relative_to(model).as_posix(): file.read_bytes() for file in model.rglob("*") if file.is_file()
            }
        tags = {PIPELINE_TAG: info.tags.get(PIPELINE_TAG, ""), MEMBER_TAG: member}
        return self._rest.register(info.name, files, tags)

    # --- aliases ---

    def alias(self, name: str, alias: str) -> int:
        """The version to which an alias points, or 0."""
        return self._rest.aliases(name).get(alias, 0)

    def move_alias(self, name: str, alias: str, version: int, *, expected: int | None = None) -> None:
        """Points an alias at a version (0 removes it), if it still points at `expected` (None: unconditionally).

        MLflow has no compare-and-set: callers hold the model's promotion lock, and this check catches other writers.

        Raises:
            PromotionConflict: the alias points at another version.
        """
        current = self.alias(name, alias)
        if expected is not None and current not in (expected, version):
            raise PromotionConflict(
                f"alias {alias!r} of {name!r} names version {current or 'none'}, not {expected or 'none'} as before",
                do="Look at `shiplift status`, then run the same command again.",
            )
        if current != version:
            self._rest.set_alias(name, alias, version)

    # --- files ---

    def download_model(self, info: VersionInfo, to: Path, *, limit_mb: float) -> Path:
        """Downloads every file of a version into the folder `to`, which is returned.

        Raises:
            NotAdmitted: the files are too large, too many, nested too deep, or not plain files.
        """
        kept_at, otherwise = self._kept_at(info), f"models:/{info.name}/{info.version}"
        with self._artifacts(kept_at, otherwise, f"the files of {info.name!r} version {info.version}") as artifacts:
            return downloads.tree(artifacts, to, limit_mb=limit_mb)

    def read_model_file(self, info: VersionInfo, path: str, limit_bytes: int) -> bytes | None:
        """A small file of a version; None if there is none at that path.

        Raises:
            NotAdmitted: the file is too large.
        """
        kept_at, otherwise = self._kept_at(info), f"models:/{info.name}/{info.version}"
        with (
            tempfile.TemporaryDirectory(prefix="shiplift-") as folder,
            self._artifacts(kept_at, otherwise, f"{path} of {info.name!r} version {info.version}") as artifacts,
        ):
            file = downloads.file(artifacts, path, Path(folder), limit_mb=limit_bytes / 2**20)
            return file.read_bytes() if file else None

    def download_run_file(self, run_id: str, path: str, to: Path, *, limit_mb: float = MAX_RUN_FILE_MB) -> Path | None:
        """Downloads one artifact of a run into the folder `to`; None if there is no such artifact.

        Raises:
            NotAdmitted: the file is too large.
        """
        if not run_id:
            return None
        try:
            kept_at, subject = str(self._run(run_id)["artifact_uri"]), f"artifact {path!r} of run {run_id}"
            with self._artifacts(kept_at, f"runs:/{run_id}", subject) as artifacts:
                return downloads.file(artifacts, path, to, limit_mb=limit_mb)
        except NotFound:
            return None

    def read_text(self, run_id: str, path: str) -> str | None:
        """A small text artifact of a run, or None."""
        with tempfile.TemporaryDirectory(prefix="shiplift-") as folder:
            file = self.download_run_file(run_id, path, Path(folder))
            return file.read_text(errors="replace") if file else None

    def write_text(self, run_id: str, path: str, body: str) -> None:
        """Writes or replaces a text artifact of a run.

        Raises:
            RegistryDenied: artifacts are kept where this process may not write.
        """
        kept_at = str(self._run(run_id)["artifact_uri"])
        root = root_of(kept_at)
        if root is not None:
            ProxiedArtifacts(ArtifactProxy(self._session.connection), root).write(path, body.encode())
            return
        with _translated(f"run {run_id}"), _writable(kept_at):
            _mlflow().MlflowClient(tracking_uri=self.uri, registry_uri=self.uri).log_text(run_id, body, path)

    def link(self, run_id: str, path: str) -> str:
        """The address of a run's artifact in MLflow's own pages."""
        experiment = self._run(run_id)["experiment_id"]
        return f"{self.uri.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}/artifacts/{quote(path)}"

    # --- runs ---

    def metrics(self, run_id: str, figures: Sequence[Figure], *, model_id: str = "", at_ms: int = 0) -> None:
        """Logs metrics of a run and, with `model_id`, of that logged model, so that MLflow's charts compare versions.

        Both are written, since MLflow compares registered versions and runs by the metrics of runs, and models of an
        experiment by those of logged models. Those of the same time `at_ms` (0: now) are written once.
        """
        about, at_ms = {"model_id": model_id} if model_id else {}, at_ms or now_ms()
        for start in range(0, len(figures), _FIGURES):
            batch = [{**_metric(each), "timestamp": at_ms, **about} for each in figures[start : start + _FIGURES]]
            if self._session.ask("POST", "/runs/log-batch", json={"run_id": run_id, "metrics": batch}) is None:
                raise absent(f"run {run_id}")

    def run_of(self, info: VersionInfo) -> str:
        """The run that holds a version's history: its own, or one created for it and named in a tag of the version."""
        run_id = info.run_id or info.tags.get(f"{TAG}run_id", "")
        if run_id:
            return run_id
        run_id = create_run(self._session, f"{info.name}-{info.version}")
        self.tag(info.name, info.version, run_id=run_id)
        return run_id

    def _run(self, run_id: str) -> dict[str, Any]:
        return run_info(self._session, run_id)

    # --- where artifacts are ---

    def _kept_at(self, info: VersionInfo) -> str:
        """The URI of a version's files. MLflow 3 names a logged model instead, which has its own URI."""
        query = {"name": info.name, "version": str(info.version)}
        body = self._session.ask("GET", "/model-versions/get-download-uri", params=query)
        if body is None:
            raise absent(f"version {info.version} of model {info.name!r}")
        uri = str(body.get("artifact_uri", ""))
        logged = uri.removeprefix("models:/")
        if logged == uri or "/" in logged or "@" in logged:
            return uri
        model = self._session.ask("GET", f"/logged-models/{quote(logged, safe='')}")
        return str(info_of(model, "model")["artifact_uri"])

    @contextmanager
    def _artifacts(self, kept_at: str, otherwise: str, subject: str) -> Iterator[Any]:
        """The artifacts at a URI; uses MLflow's own client for `otherwise`, if its server does not keep them."""
        root = root_of(kept_at)
        if root is not None:
            yield ProxiedArtifacts(ArtifactProxy(self._session.connection), root)
            return
        mlflow = _mlflow()
        from mlflow.store.artifact import artifact_repository_registry  # noqa: PLC0415

        before = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
        try:  # the client of a version's artifacts uses another client, which knows only MLflow's globals
            mlflow.set_tracking_uri(self.uri)
            mlflow.set_registry_uri(self.uri)
            with _translated(subject):
                yield artifact_repository_registry.get_artifact_repository(otherwise, self.uri, self.uri)
        finally:
            mlflow.set_tracking_uri(before[0])
            mlflow.set_registry_uri(before[1])


def _metric(figure: Figure) -> dict[str, Any]:
    """A figure as MLflow takes it. Its name may be an author's, with what MLflow allows in no name."""
    section = f"/{_FORBIDDEN.sub('_', figure.section)}/" if figure.section else "."
    name = _FORBIDDEN.sub("_", figure.name)
    named = f"_{name}" if not name.strip(".") else name  # a path of dots names another metric
    value = figure.value
    number = value if math.isfinite(value) else {"nan": "NaN", "inf": "Infinity"}.get(str(value), "-Infinity")
    return {"key": f"{FOLDER}{section}{named}"[:_KEY], "value": number, "step": figure.step}


def _mlflow() -> Any:
    prepare_environment()
    import mlflow  # noqa: PLC0415 - takes 1.3 s and 170 MB, only where it is needed

    return mlflow


@contextmanager
def _writable(kept_at: str) -> Iterator[None]:
    """Turns what a storage's own client raises into ours: each has other exceptions, and this machine no account."""
    import requests  # noqa: PLC0415 - comes with MLflow
    from mlflow.exceptions import MlflowException  # noqa: PLC0415

    try:
        yield
    except (MlflowException, requests.RequestException, ConnectionError, TimeoutError):
        raise
    except Exception as error:
        scheme, reason = kept_at.partition(":")[0], " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise RegistryDenied(
            f"the registry keeps artifacts at {scheme}:, where this process can't write: {reason}",
            do="Start MLflow with `--serve-artifacts`, or give this process that storage's library and account.",
        ) from error


@contextmanager
def _translated(subject: str) -> Iterator[None]:
    """Turns MLflow's and requests' exceptions into ours; `subject` is what was requested."""
    import requests  # noqa: PLC0415 - comes with MLflow
    from mlflow.exceptions import MlflowException  # noqa: PLC0415

    try:
        yield
    except MlflowException as error:
        code, status = error.error_code, error.get_http_status_code()
        if code in ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "ENDPOINT_NOT_FOUND") or status == 404:
            raise absent(subject) from error
        raise refused(subject, status, error) from error
    except (requests.RequestException, ConnectionError, TimeoutError) as error:
        status = getattr(getattr(error, "response", None), "status_code", 0)
        if status == 404:
            raise absent(subject) from error
        raise refused(subject, status, error) from error
