"""A registry of any size on a real database, behind MLflow's own server, and a home with a release of every version.

Rows go straight into MLflow's tables, since its API writes only a few dozen per second. One model is still written
through the API: the REST API must describe our models exactly as it describes that one.
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
_REFERENCE = "written-by-mlflow"
_STAGES = ("admit", "export", "quantize", "package", "tune", "deploy", "load_test", "gate", "promote")
_API = "/api/2.0/mlflow"
_SOURCE, _RUN = "s3://models/1", "0" * 32


def name_of(number: int) -> str:
    """The name of a model."""
    return f"model-{number:05}"


# --- databases ------------------------------------------------------------------------------------------------------


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """Creates an empty database of a kind and yields its URI for MLflow.

    Raises:
        LookupError: the database or its Python driver is not installed.
    """
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'mlflow.db'}"
        return
    with _postgres() as port:
        yield f"postgresql+psycopg://shiplift@{HOST}:{port}/shiplift"


@contextmanager
def _postgres() -> Iterator[int]:
    """Runs a PostgreSQL server with default settings, not as root, and yields its port."""
    programs = _postgres_programs()
    user = "postgres" if os.geteuid() == 0 else None
    folder, port = Path(tempfile.mkdtemp(prefix="shiplift-postgres-")), free_port()
    if user:
        shutil.chown(folder, user)
    options: dict[str, Any] = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
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
    subprocess.run(initdb, check=True, **options)
    settings = ["-c", f"listen_addresses={HOST}", "-c", "unix_socket_directories="]
    server = subprocess.Popen([programs / "postgres", "-D", folder / "data", "-p", str(port), *settings], **options)
    try:
        until(lambda: listening(HOST, port), "PostgreSQL")
        address = ["-h", HOST, "-p", str(port), "-U", "shiplift"]
        until(
            lambda: subprocess.run([programs / "pg_isready", *address], check=False, **options).returncode == 0,
            "PostgreSQL to accept connections",
        )
        subprocess.run([programs / "createdb", *address, "shiplift"], check=True, **options)
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
    folders = [Path(initdb).resolve().parent] if (initdb := shutil.which("initdb")) else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if not folders:
        raise LookupError("PostgreSQL is not installed (Debian: postgresql)")
    return folders[0]


# --- MLflow ---------------------------------------------------------------------------------------------------------


@contextmanager
def mlflow_server(uri: str, home: Path) -> Iterator[str]:
    """Runs MLflow on a database, as the embedded stack starts it, and yields its address."""
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


def write_reference(address: str) -> None:
    """Writes a model with its versions, their tags and its alias, through the API."""
    with _client(address) as client:
        client.post("/registered-models/create", json={"name": _REFERENCE}).raise_for_status()
        for version in range(1, VERSIONS + 1):
            body = {"name": _REFERENCE, "source": _SOURCE, "run_id": _RUN}
            client.post("/model-versions/create", json=body).raise_for_status()
            for key, value in _tags(_REFERENCE, version).items():
                tag = {"name": _REFERENCE, "version": str(version), "key": key, "value": value}
                client.post("/model-versions/set-tag", json=tag).raise_for_status()
        alias = {"name": _REFERENCE, "alias": "champion", "version": str(VERSIONS)}
        client.post("/registered-models/alias", json=alias).raise_for_status()


def check(address: str, number: int) -> None:
    """Checks that the REST API describes a model of ours as it describes the reference.

    Raises:
        AssertionError: the descriptions differ.
    """
    with _client(address) as client:
        descriptions = []
        for name in (_REFERENCE, name_of(number)):
            model = client.get("/registered-models/get", params={"name": name})
            versions = client.get("/model-versions/search", params={"filter": f"name='{name}'", "max_results": 1000})
            answers = [response.raise_for_status().json() for response in (model, versions)]
            descriptions.append(_normalized(answers, name))
        reference, ours = descriptions
        if reference != ours:
            raise AssertionError(f"MLflow wrote {str(reference)[:400]}, we wrote {str(ours)[:400]}")


def _client(address: str) -> httpx.Client:
    return httpx.Client(base_url=address + _API, trust_env=False, timeout=60)


def _normalized(answer: Any, name: str) -> Any:
    """An answer without what differs between any two models (names and times), and with sorted lists."""
    if isinstance(answer, dict):
        return {key: _normalized(value, name) for key, value in answer.items() if not key.endswith("timestamp")}
    if isinstance(answer, list):
        return sorted((_normalized(item, name) for item in answer), key=repr)
    if isinstance(answer, str):
        return re.sub(rf"{name}-(\d+)-[0-9a-f]{{10}}", r"RELEASE-\1", answer).replace(name, "NAME")
    return answer


def fill(uri: str, first: int, last: int) -> None:
    """Adds models `first` to `last` (exclusive), each with 20 released versions, the newest of them the champion."""
    from mlflow.store.model_registry.dbmodels import models as tables
    from sqlalchemy import create_engine, insert, text

    now = int(time.time() * 1000) - 86_400_000
    models, versions, tags, aliases = [], [], [], []
    for number in range(first, last):
        name = name_of(number)
        models.append({"name": name, "creation_time": now, "last_updated_time": now})
        aliases.append({"name": name, "alias": "champion", "version": VERSIONS})
        for version in range(1, VERSIONS + 1):
            versions.append(
                {
                    "name": name,
                    "version": version,
                    "creation_time": now,
                    "last_updated_time": now,
                    "description": "",
                    "current_stage": "None",
                    "source": _SOURCE,
                    "run_id": _RUN,
                    "status": "READY",
                    "run_link": "",
                }
            )
            tags += [{"name": name, "version": version, "key": k, "value": v} for k, v in _tags(name, version).items()]
    engine = create_engine(uri)
    tables_and_rows = (
        (tables.SqlRegisteredModel, models),
        (tables.SqlModelVersion, versions),
        (tables.SqlModelVersionTag, tags),
        (tables.SqlRegisteredModelAlias, aliases),
    )
    with engine.begin() as connection:
        for table, rows in tables_and_rows:
            connection.execute(insert(table), rows)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))  # autovacuum would have done so in a registry that took months to fill
    engine.dispose()


def _tags(name: str, version: int) -> dict[str, str]:
    fields = {
        "release": release_name(name, version, ""),
        "outcome": "promoted",
        "verdict": "pass",
        "reason": "every check passed",
        "run_id": _RUN,
    }
    return {f"shiplift.{key}": value for key, value in fields.items()}


# --- the home -------------------------------------------------------------------------------------------------------


def release_folders(home: Path, first: int, last: int) -> None:
    """Adds the same models to a home as finished releases."""
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
        Check(name=name, measured=1.0, limit=2.0, unit="ms", verdict=Outcome.PASS, reason="1 is within 2")
        for name in ("p99", "throughput", "memory", "failures", "score", "parity")
    )
    return ReleaseReport(
        model=name,
        version=version,
        verdict=Outcome.PASS,
        alias="champion",
        endpoint=None,
        stages=tuple(StageRun(name=stage, seconds=1.0) for stage in _STAGES),
        checks=checks,
        release=release_name(name, version, ""),
        reason="every check passed",
        exit_code=0,
        seconds=9.0,
        since_request_seconds=9.0,
        overhead_seconds=1.0,
        trigger="webhook",
    )
