"""A registry of any size on a real database, behind MLflow's own server, and a home that released all of it.

Rows go straight into MLflow's tables, since its API writes a few dozen a second. The first model is written through
the API all the same: what the REST API then says of a model of ours must be what it says of that one.
"""

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import until
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.releases import Order
from shiplift.runtime.base.names import release_name
from shiplift.runtime.host.processes import free_port, listening, start_daemon, stop
from shiplift.runtime.records.release import ReleaseReport, StageRun
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import Check, Outcome

VERSIONS = 20
HOST = stack.HOST
DATABASES = ("sqlite", "postgresql")
_BY_HAND = "written-by-mlflow"
_STAGES = ("admit", "export", "quantize", "package", "tune", "deploy", "load_test", "gate", "promote")
_API = "/api/2.0/mlflow"
_SOURCE, _RUN = "s3://models/1", "0" * 32


def name_of(number: int) -> str:
    """A model's name."""
    return f"model-{number:05}"


# --- databases ------------------------------------------------------------------------------------------------------


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """An empty database of one kind; gives its URI for MLflow.

    Raises:
        LookupError: this machine has no such database, or Python no driver for it.
    """
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'mlflow.db'}"
        return
    with _postgres() as port:
        yield f"postgresql+psycopg://shiplift@{HOST}:{port}/shiplift"


@contextmanager
def _postgres() -> Iterator[int]:
    """A PostgreSQL server with its defaults, as a user that is not root; gives its port."""
    programs = _postgres_programs()
    user = "postgres" if os.geteuid() == 0 else None
    folder, port = Path(tempfile.mkdtemp(prefix="shiplift-postgres-")), free_port()
    if user:
        shutil.chown(folder, user)
    said: dict[str, Any] = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    initdb: list[str | Path] = [
        programs / "initdb",
        "-D",
        folder / "data",
        "-U",
        "shiplift",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--no-sync",
    ]
    subprocess.run(initdb, check=True, **said)
    options = ["-c", f"listen_addresses={HOST}", "-c", "unix_socket_directories="]
    server = subprocess.Popen([programs / "postgres", "-D", folder / "data", "-p", str(port), *options], **said)
    try:
        until(lambda: listening(HOST, port), "PostgreSQL")
        where = ["-h", HOST, "-p", str(port), "-U", "shiplift"]
        until(
            lambda: subprocess.run([programs / "pg_isready", *where], check=False, **said).returncode == 0,
            "PostgreSQL to take connections",
        )
        subprocess.run([programs / "createdb", *where, "shiplift"], check=True, **said)
        yield port
    finally:
        server.send_signal(signal.SIGINT)  # a fast shutdown: SIGTERM waits for every client to hang up
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _postgres_programs() -> Path:
    if find_spec("psycopg") is None:
        raise LookupError("psycopg is not installed (shiplift[cluster])")
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError as error:
            raise LookupError("PostgreSQL does not run as root, and there is no user 'postgres'") from error
    found = [Path(which).resolve().parent] if (which := shutil.which("initdb")) else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if not found:
        raise LookupError("PostgreSQL is not installed (Debian: postgresql)")
    return found[0]


# --- MLflow ---------------------------------------------------------------------------------------------------------


@contextmanager
def mlflow_server(uri: str, home: Path) -> Iterator[str]:
    """MLflow on a database, started as the embedded stack starts it; gives its address."""
    port = free_port()
    command = stack.mlflow_command(port, uri, home / "artifacts")
    variables = os.environ | stack.mlflow_variables(home)
    process = start_daemon(command, environment=variables, log=home / "mlflow.log", folder=home)
    try:
        health = f"http://{HOST}:{port}/health"
        until(lambda: listening(HOST, port), "MLflow", seconds=180)
        until(lambda: httpx.get(health, trust_env=False, timeout=30).is_success, "MLflow's health", seconds=180)
        yield f"http://{HOST}:{port}"
    finally:
        stop(process)


def write_one(address: str) -> None:
    """A model with its versions, their tags and its alias, through the API."""
    with _client(address) as client:
        client.post("/registered-models/create", json={"name": _BY_HAND}).raise_for_status()
        for version in range(1, VERSIONS + 1):
            made = {"name": _BY_HAND, "source": _SOURCE, "run_id": _RUN}
            client.post("/model-versions/create", json=made).raise_for_status()
            for key, value in _tags(_BY_HAND, version).items():
                body = {"name": _BY_HAND, "version": str(version), "key": key, "value": value}
                client.post("/model-versions/set-tag", json=body).raise_for_status()
        named = {"name": _BY_HAND, "alias": "champion", "version": str(VERSIONS)}
        client.post("/registered-models/alias", json=named).raise_for_status()


def check(address: str, number: int) -> None:
    """Whether the REST API says of a model of ours what it says of MLflow's own.

    Raises:
        AssertionError: it says something else.
    """
    with _client(address) as client:
        found = []
        for name in (_BY_HAND, name_of(number)):
            model = client.get("/registered-models/get", params={"name": name})
            versions = client.get("/model-versions/search", params={"filter": f"name='{name}'", "max_results": 1000})
            said = [one.raise_for_status().json() for one in (model, versions)]
            found.append(_plain(said, name))
        if found[0] != found[1]:
            raise AssertionError(f"MLflow wrote {str(found[0])[:400]}, we wrote {str(found[1])[:400]}")


def _client(address: str) -> httpx.Client:
    return httpx.Client(base_url=address + _API, trust_env=False, timeout=60)


def _plain(said: Any, name: str) -> Any:
    """An answer without what differs between any two models, names and times, and without an order of its lists."""
    if isinstance(said, dict):
        return {key: _plain(value, name) for key, value in said.items() if not key.endswith("timestamp")}
    if isinstance(said, list):
        return sorted((_plain(one, name) for one in said), key=repr)
    if isinstance(said, str):
        return re.sub(rf"{name}-(\d+)-[0-9a-f]{{10}}", r"RELEASE-\1", said).replace(name, "NAME")
    return said


def fill(uri: str, first: int, last: int) -> None:
    """Adds the models from `first` to before `last`: 20 released versions each, the newest one the champion."""
    from mlflow.store.model_registry.dbmodels import models as tables
    from sqlalchemy import create_engine, insert, text

    now = int(time.time() * 1000) - 86_400_000
    models, versions, tags, aliases = [], [], [], []
    for number in range(first, last):
        name = name_of(number)
        models.append({"name": name, "creation_time": now, "last_updated_time": now})
        aliases.append({"name": name, "alias": "champion", "version": VERSIONS})
        for version in range(1, VERSIONS + 1):
            versions.append({
                "name": name, "version": version, "creation_time": now, "last_updated_time": now, "description": "",
                "current_stage": "None", "source": _SOURCE, "run_id": _RUN, "status": "READY", "run_link": "",
            })  # fmt: skip
            tags += [{"name": name, "version": version, "key": k, "value": v} for k, v in _tags(name, version).items()]
    engine = create_engine(uri)
    rows = (
        (tables.SqlRegisteredModel, models), (tables.SqlModelVersion, versions),
        (tables.SqlModelVersionTag, tags), (tables.SqlRegisteredModelAlias, aliases),
    )  # fmt: skip
    with engine.begin() as connection:
        for table, given in rows:
            connection.execute(insert(table), given)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))  # as autovacuum has done, in a registry that took months to fill
    engine.dispose()


def _tags(name: str, version: int) -> dict[str, str]:
    told = {"release": release_name(name, version, ""), "outcome": "promoted", "verdict": "pass",
            "reason": "every check passed", "run_id": _RUN}  # fmt: skip
    return {f"shiplift.{key}": value for key, value in told.items()}


# --- the home -------------------------------------------------------------------------------------------------------


def release_folders(home: Path, first: int, last: int) -> None:
    """The same models as ended releases of a home."""
    for number in range(first, last):
        for version in range(1, VERSIONS + 1):
            name = name_of(number)
            report = _report(name, version)
            folder = home / "releases" / report.release
            folder.mkdir(parents=True)
            order = Order(request=Request(model=name, version=version), trigger=Trigger(kind="webhook"))
            (folder / "order.json").write_text(order.model_dump_json())
            (folder / "result.json").write_text(report.model_dump_json(indent=1))


def _report(name: str, version: int) -> ReleaseReport:
    checks = tuple(
        Check(name=one, measured=1.0, limit=2.0, unit="ms", verdict=Outcome.PASS, reason="1 is within 2")
        for one in ("p99", "throughput", "memory", "failures", "score", "parity")
    )
    return ReleaseReport(
        model=name, version=version, verdict=Outcome.PASS, alias="champion", endpoint=None,
        stages=tuple(StageRun(name=one, seconds=1.0) for one in _STAGES), checks=checks,
        release=release_name(name, version, ""), reason="every check passed", exit_code=0, seconds=9.0,
        since_request_seconds=9.0, overhead_seconds=1.0, trigger="webhook",
    )  # fmt: skip
