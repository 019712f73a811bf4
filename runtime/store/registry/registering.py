"""Registers a model version from files, over REST. A run of its own holds them, as with MLflow's clients."""

import posixpath
from collections.abc import Mapping
from contextlib import suppress

from shiplift.runtime.base.errors import NotAdmitted, Temporary, UsageError
from shiplift.runtime.store.mlflow.artifact_proxy import ArtifactProxy
from shiplift.runtime.store.registry.proxied import ProxiedArtifacts, root_of
from shiplift.runtime.store.registry.runs import create_run, run_info
from shiplift.runtime.store.registry.session import Session
from shiplift.runtime.store.registry.terms import VersionInfo, version_info

_FOLDER = "model"  # below the run's artifacts


def register(session: Session, name: str, files: Mapping[str, bytes], tags: Mapping[str, str]) -> VersionInfo:
    """Registers the next version of a model, which consists of `files` by their paths; makes the model if necessary.

    Receivers of the announcement find everything in place: the tags come with the new version.

    Raises:
        NotAdmitted: the registry does not keep artifacts itself, so that they can't be written from here.
        Temporary, RegistryDenied: as for every request to the registry.
    """
    run_id = create_run(session, name)
    kept_at = str(run_info(session, run_id)["artifact_uri"])
    root = root_of(kept_at)
    if root is None:
        raise NotAdmitted(
            f"the registry keeps artifacts at {kept_at.partition(':')[0]}:, where this command can't write",
            do="Start MLflow with `--serve-artifacts`, as `shiplift up` does.",
        )
    artifacts = ProxiedArtifacts(ArtifactProxy(session.connection), root)
    for path, body in files.items():
        artifacts.write(posixpath.join(_FOLDER, path), body)
    with suppress(UsageError):  # the model exists already
        session.ask("POST", "/registered-models/create", json={"name": name})
    listed = [{"key": key, "value": value} for key, value in tags.items()]
    version = {"name": name, "source": posixpath.join(kept_at, _FOLDER), "run_id": run_id, "tags": listed}
    made = session.ask("POST", "/model-versions/create", json=version, once=True)
    if made is None:
        raise Temporary(f"the registry made no version of {name!r}", do="Run the same command again.")
    return version_info(made.get("model_version"))
