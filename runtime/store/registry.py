"""The model registry and its runs, and the only importer of MLflow.

MLflow is imported when a `Registry` is created, not with this module, so that the receiver and the command line stay
light. A registry that does not respond raises `Temporary`, an unknown name `NotFound`; no other error leaves this file.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shiplift.runtime.base.errors import (
    NotAdmitted,
    NotFound,
    PromotionConflict,
    RegistryDenied,
    ShipliftError,
    Temporary,
    UsageError,
)
from shiplift.runtime.base.text import printable
from shiplift.runtime.store import downloads

CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous"
TAG = "shiplift."
MAX_RUN_FILE_MB = 1024.0
FOLDER = "shiplift"  # in a run's artifacts: the author's data and spec, and Shiplift's records and reports


def prepare_environment() -> None:
    """Sets MLflow's environment variables: bounded waits, no telemetry, no progress bars.

    Called at the edge of every process that talks to MLflow.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")


@dataclass(frozen=True, kw_only=True)
class VersionInfo:
    """A model version in the registry; times are seconds since the epoch."""

    name: str
    version: int
    source: str
    run_id: str
    created_at: float
    tags: dict[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()


class Registry:
    """A model registry and its tracking store at `uri`.

    Every method raises `Temporary` if the server can't be reached or fails, `RegistryDenied` if it wants other
    credentials, and `NotFound` for unknown names.
    """

    def __init__(self, uri: str) -> None:
        prepare_environment()
        import mlflow  # noqa: PLC0415 - takes 1.3 s and 170 MB, only where it is needed

        self.uri = uri
        self._mlflow = mlflow
        self._client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)

    # --- versions ---

    def version(self, name: str, version: int) -> VersionInfo:
        """A version, as it is now."""
        with _translated(f"version {version} of model {name!r}"):
            return _info(self._client.get_model_version(name, str(version)))

    def versions(self, name: str) -> list[VersionInfo]:
        """Every version of a model, in no particular order."""
        with _translated(f"model {name!r}"):
            quoted = name.replace("'", "\\'")
            return [_info(v) for v in self._pages(self._client.search_model_versions, f"name='{quoted}'")]

    def tag(self, name: str, version: int, **tags: str) -> None:
        """Sets `shiplift.KEY` tags; values longer than the registry's limit are cut."""
        with _translated(f"version {version} of model {name!r}"):
            for key, value in tags.items():
                self._client.set_model_version_tag(name, str(version), f"{TAG}{key}", printable(value, limit=4900))

    # --- aliases ---

    def alias(self, name: str, alias: str) -> int:
        """The version that an alias points at, or 0."""
        try:
            with _translated(f"alias {alias!r} of model {name!r}"):
                return int(self._client.get_model_version_by_alias(name, alias).version)
        except NotFound:
            return 0

    def move_alias(self, name: str, alias: str, version: int, *, expected: int | None = None) -> None:
        """Points an alias at a version (0 removes it), if it still points at `expected` (None: unconditionally).

        MLflow has no compare-and-set: callers hold the model's promotion lock, and this check catches others.

        Raises:
            PromotionConflict: the alias points at another version.
        """
        current = self.alias(name, alias)
        if expected is not None and current not in (expected, version):
            raise PromotionConflict(
                f"alias {alias!r} of {name!r} names version {current or 'none'}, not {expected or 'none'} as before",
                do="Look at `shiplift status`, then run the same command again.",
            )
        with _translated(f"alias {alias!r} of model {name!r}"):
            if version and current != version:
                self._client.set_registered_model_alias(name, alias, str(version))
            elif not version and current:
                self._client.delete_registered_model_alias(name, alias)

    # --- files ---

    def download_model(self, info: VersionInfo, to: Path, *, limit_mb: float) -> Path:
        """Downloads every file of a version into the folder `to`, which is returned.

        Raises:
            NotAdmitted: the files are too large, too many, nested too deep, or not plain files.
        """
        subject, uri = f"the files of {info.name!r} version {info.version}", f"models:/{info.name}/{info.version}"
        with _translated(subject), self._artifacts(uri) as artifacts:
            return downloads.tree(artifacts, to, limit_mb=limit_mb)

    def download_run_file(self, run_id: str, path: str, to: Path, *, limit_mb: float = MAX_RUN_FILE_MB) -> Path | None:
        """Downloads one artifact of a run into the folder `to`; None if there is no such artifact.

        Raises:
            NotAdmitted: it is too large.
        """
        if not run_id:
            return None
        try:
            with _translated(f"artifact {path!r} of run {run_id}"), self._artifacts(f"runs:/{run_id}") as artifacts:
                return downloads.file(artifacts, path, to, limit_mb=limit_mb)
        except NotFound:
            return None

    @contextmanager
    def _artifacts(self, uri: str) -> Iterator[Any]:
        """MLflow's client for the artifacts at a URI. A version's asks another, which knows only MLflow's globals."""
        from mlflow.store.artifact import artifact_repository_registry  # noqa: PLC0415

        before = self._mlflow.get_tracking_uri(), self._mlflow.get_registry_uri()
        try:
            self._mlflow.set_tracking_uri(self.uri)
            self._mlflow.set_registry_uri(self.uri)
            yield artifact_repository_registry.get_artifact_repository(uri, self.uri, self.uri)
        finally:
            self._mlflow.set_tracking_uri(before[0])
            self._mlflow.set_registry_uri(before[1])

    def read_text(self, run_id: str, path: str) -> str | None:
        """A small text artifact of a run, or None."""
        with tempfile.TemporaryDirectory(prefix="shiplift-") as folder:
            file = self.download_run_file(run_id, path, Path(folder))
            return file.read_text(errors="replace") if file else None

    def write_text(self, run_id: str, path: str, body: str) -> None:
        """Writes or replaces a text artifact of a run."""
        with _translated(f"run {run_id}"):
            self._client.log_text(run_id, body, path)

    def link(self, run_id: str, path: str) -> str:
        """The address of an artifact of a run in MLflow's own pages; empty if the registry is not a server."""
        if not self.uri.startswith(("http://", "https://")):
            return ""
        with _translated(f"run {run_id}"):
            experiment = self._client.get_run(run_id).info.experiment_id
        return f"{self.uri.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}/artifacts/{quote(path)}"

    def metrics(self, run_id: str, **values: float) -> None:
        """Logs metrics of a run, so that versions can be compared in MLflow's own UI."""
        with _translated(f"run {run_id}"):
            for key, value in values.items():
                self._client.log_metric(run_id, f"{FOLDER}.{key}", value)

    def run_of(self, info: VersionInfo) -> str:
        """The run that holds a version's history: its own, or one created for it and named by a tag of the version."""
        run_id = info.run_id or info.tags.get(f"{TAG}run_id", "")
        if run_id:
            return run_id
        with _translated("the experiment 'shiplift'"):
            experiment = self._client.get_experiment_by_name(FOLDER)
            experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(FOLDER)
            run = self._client.create_run(experiment_id, run_name=f"{info.name}-{info.version}")
            self._client.set_terminated(run.info.run_id)
        self.tag(info.name, info.version, run_id=run.info.run_id)
        return str(run.info.run_id)

    def _pages(self, search: Any, query: str | None) -> Iterator[Any]:
        token = None
        while True:
            page = search(filter_string=query, max_results=1000, page_token=token)
            yield from page
            token = page.token
            if not token:
                return


def check_name(name: str) -> str:
    """The name, if it is valid for a registered model.

    Raises:
        NotAdmitted: the name is empty, too long, or has a character that MLflow does not allow.
    """
    if not name or len(name) > 256 or any(c in name for c in "/:") or not name.isprintable() or name != name.strip():
        raise NotAdmitted(
            f"{name[:80]!r} can't be a model's name: it needs 1 to 256 printable characters, without `/` and `:`",
            do="Register the model under another name.",
        )
    return name


def model_and_version(name: str) -> tuple[str, int | None]:
    """`digits/3` as a model and a version; the version is None where there is none.

    Raises:
        UsageError: the version is not a positive number.
        NotAdmitted: the model's name can't be one.
    """
    model, slash, version = name.rpartition("/")
    if not slash:
        return check_name(name), None
    if not (version.isascii() and version.isdecimal() and len(version) <= 10) or int(version) < 1:
        raise UsageError(f"{version!r} is not a version number", do="Write MODEL/VERSION, such as digits/3.")
    return check_name(model), int(version)


def _info(version: Any) -> VersionInfo:
    return VersionInfo(
        name=version.name,
        version=int(version.version),
        source=version.source or "",
        run_id=version.run_id or "",
        created_at=version.creation_timestamp / 1000,
        tags=dict(version.tags or {}),
        aliases=tuple(version.aliases or ()),
    )


@contextmanager
def _translated(subject: str) -> Iterator[None]:
    """Turns MLflow's and requests' exceptions into ours; `subject` is what was asked for."""
    import requests  # noqa: PLC0415 - comes with MLflow
    from mlflow.exceptions import MlflowException  # noqa: PLC0415

    try:
        yield
    except MlflowException as error:
        code, status = error.error_code, error.get_http_status_code()
        if code in ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "ENDPOINT_NOT_FOUND") or status == 404:
            raise NotFound(f"the registry has no {subject}", do="Check the name in the registry.") from error
        if code == "INVALID_PARAMETER_VALUE" and "not found" in str(error).lower():
            raise NotFound(f"the registry has no {subject}", do="Check the name in the registry.") from error
        raise refused(subject, status, error) from error
    except (requests.RequestException, ConnectionError, TimeoutError) as error:
        status = getattr(getattr(error, "response", None), "status_code", 0)
        if status == 404:
            raise NotFound(f"the registry has no {subject}", do="Check the name in the registry.") from error
        raise refused(subject, status, error) from error


def refused(subject: str, status: int, cause: object) -> ShipliftError:
    """The error for an HTTP status that is no success: 401 and 403 are for good, and any other may pass."""
    if status == 401:
        return RegistryDenied(
            f"the registry wants the user name and password of an account for {subject}: it answered 401",
            do="Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to those of your account.",
        )
    if status == 403:
        return RegistryDenied(
            f"the registry does not let this account do that: it answered 403 for {subject}",
            do="Use an account with more rights (MLFLOW_TRACKING_USERNAME), or ask its administrator.",
        )
    return unreachable(subject, cause)


def unreachable(subject: str, cause: object) -> Temporary:
    """The error for a registry that does not respond, or makes no sense; `subject` is what was asked for."""
    return Temporary(
        f"the registry does not answer for {subject}: {' '.join(str(cause).split())[:300]}",
        do="Check that MLflow is up (`shiplift status`), then run the same command again.",
    )
