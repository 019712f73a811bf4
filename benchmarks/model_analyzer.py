"""Triton Model Analyzer, the tuner of Triton's own project, in a separate environment, against a running server."""

import csv
import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.extras import Missing, own_python
from shiplift.runtime.host.processes import inherited
from shiplift.runtime.serving.machine.server import Server
from shiplift.runtime.serving.triton.environment import ServerEnvironment

_LIMIT_S = 600
_RATE = "Throughput (infer/sec)"
Mode = Literal["quick", "optuna"]


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How far it may search, and how long it measures."""

    instances: int
    max_batch: int
    concurrency: int
    window_ms: int


@dataclass(frozen=True, kw_only=True)
class Analyzed:
    """The best configuration and its reported throughput, or, if `why` is not empty, why there is none."""

    max_batch: int = 0
    instances: int = 0
    reported: float = 0.0
    seconds: float = 0.0
    why: str = ""


def analyze(
    server: Server,
    environment: ServerEnvironment,
    model: str,
    bounds: Bounds,
    work: Path,
    mode: Mode,
    requests: Path | None = None,
) -> Analyzed:
    """Searches in one of its modes for a model in the server's repository, which it loads with other settings.

    Without `requests`, in perf_analyzer's format, inputs are random, which is wrong for tokens.
    """
    try:
        python = own_python("model-analyzer.txt", lambda _: None)
    except Missing as error:
        return Analyzed(why=str(error))
    work.mkdir()
    config = _config(server, environment, model, bounds, work, mode, requests)
    command = [str(python.with_name("model-analyzer")), "profile", "-f", str(config)]
    started = time.monotonic()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
            cwd=work,
            env=inherited() | {"NO_PROXY": "*", "no_proxy": "*"},
        )
    except subprocess.TimeoutExpired:
        return Analyzed(seconds=time.monotonic() - started, why=f"Model Analyzer took more than {_LIMIT_S} s")
    seconds = time.monotonic() - started
    table = work / "export" / "results" / "metrics-model-inference.csv"
    if done.returncode or not table.is_file():
        output = " ".join((done.stderr or done.stdout).split())[-300:]
        return Analyzed(seconds=seconds, why=f"Model Analyzer ended with {done.returncode}: {output}")
    return best(table.read_text(), seconds)


def best(table: str, seconds: float) -> Analyzed:
    """The row with the highest throughput of its CSV."""
    row = max(csv.DictReader(table.splitlines()), key=lambda row: float(row[_RATE]))
    return Analyzed(
        max_batch=int(row["Max Batch Size"]),
        instances=int(row["Instance Group"].split(":")[0]),
        reported=float(row[_RATE]),
        seconds=seconds,
    )


def _config(
    server: Server,
    environment: ServerEnvironment,
    model: str,
    bounds: Bounds,
    work: Path,
    mode: Mode,
    requests: Path | None,
) -> Path:
    """Writes its configuration, and a wrapper with which perf_analyzer finds its libraries."""
    wrapper = work / "perf_analyzer"
    libraries = environment.library_path
    wrapper.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {environment.perf_analyzer} "$@"\n')
    wrapper.chmod(0o755)
    flags: dict[str, str | int] = {"measurement-interval": max(500, bounds.window_ms)}
    if requests:
        flags["input-data"] = str(requests)
    config = {
        "model_repository": str(server.repository),
        "output_model_repository_path": str(work / "variants"),
        "override_output_model_repository": True,
        "triton_launch_mode": "remote",
        "client_protocol": "grpc",
        "triton_http_endpoint": server.http,
        "triton_grpc_endpoint": server.grpc,
        "triton_metrics_url": server.metrics,
        "perf_analyzer_path": str(wrapper),
        "export_path": str(work / "export"),
        "checkpoint_directory": str(work / "checkpoints"),
        "run_config_search_mode": mode,
        "run_config_search_max_instance_count": bounds.instances,
        "run_config_search_max_model_batch_size": bounds.max_batch,
        "run_config_search_max_concurrency": bounds.concurrency,
        "perf_analyzer_flags": flags,
        "profile_models": {model: {"cpu_only": True}},
    }
    file = work / "analyzer.json"  # JSON is YAML
    file.write_text(json.dumps(config))
    return file
