"""Runs of the registry's tracking server, over REST. They hold what is logged for a version."""

import time
from typing import Any

from shiplift.runtime.base.errors import NotFound, Temporary, UsageError
from shiplift.runtime.store.mlflow.settings import account
from shiplift.runtime.store.registry.session import Session
from shiplift.runtime.store.registry.terms import FOLDER


def create_run(session: Session, name: str) -> str:
    """Creates a finished run, in the experiment of runs that were created here; returns its id.

    Raises:
        Temporary, RegistryDenied: as for every request to the registry.
    """
    body = {"experiment_id": _experiment(session), "run_name": name, "start_time": now_ms()}
    run_id = str(info_of(session.ask("POST", "/runs/create", json=body, once=True), "run")["run_id"])
    session.ask("POST", "/runs/update", json={"run_id": run_id, "status": "FINISHED", "end_time": now_ms()})
    return run_id


def run_info(session: Session, run_id: str) -> dict[str, Any]:
    """The information about a run.

    Raises:
        NotFound: there is no run with that id.
    """
    body = session.ask("GET", "/runs/get", params={"run_id": run_id})
    if body is None:
        raise absent(f"run {run_id}")
    return info_of(body, "run")


def info_of(body: dict[str, Any] | None, what: str) -> dict[str, Any]:
    """The information about a run or a logged model, from the registry's answer.

    Raises:
        Temporary: the answer is malformed.
    """
    try:
        info: dict[str, Any] = (body or {})[what]["info"]
    except (KeyError, TypeError) as error:
        raise Temporary(f"the registry sent a malformed {what}: {error!r}", do="Check MLFLOW_TRACKING_URI.") from error
    return {"artifact_uri": "", "experiment_id": "", **info}


def absent(subject: str) -> NotFound:
    """The error for something that the registry does not have."""
    return NotFound(f"the registry has no {subject}", do="Check the name in the registry.")


def now_ms() -> int:
    """The time as MLflow writes it, in ms since the epoch."""
    return int(time.time() * 1000)


def _experiment(session: Session) -> str:
    """The experiment for the runs that this account creates here: it may not write to other accounts' experiments."""
    name = f"{FOLDER}-{account()}" if account() else FOLDER
    named = {"experiment_name": name}
    known = session.ask("GET", "/experiments/get-by-name", params=named)
    if known is None:
        try:
            made = session.ask("POST", "/experiments/create", json={"name": name})
            return str((made or {}).get("experiment_id", ""))
        except UsageError:  # another process has created it meanwhile
            known = session.ask("GET", "/experiments/get-by-name", params=named)
    if known is None:
        raise absent(f"the experiment {name!r}")
    return str(known.get("experiment", {}).get("experiment_id", ""))
