"""`make bench-own`: the overhead of Shiplift itself, and how it grows with the registry.

It measures a release's overhead per stage and the start of the command. For 10, 100 and 1,000 models of 20 versions, on
SQLite and PostgreSQL, it measures `shiplift status`, the sweep of either engine, the receiver under signed webhooks,
and the dispatcher's idle CPU time. Growth is the slope of time over models on a log-log scale: 1 is linear, and the
verdict judges the steepest step. `--quick` leaves out the 1,000 models.
"""

import argparse
import base64
import hashlib
import hmac
import json
import math
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks import big_registry
from benchmarks.machine import processor, until
from benchmarks.ratios import percentile
from benchmarks.release import measured_release
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.pipelines.settings import Settings
from shiplift.pipelines.triggers import registry_sweep
from shiplift.pipelines.triggers.receiver import on_this_machine, serve
from shiplift.pipelines.triggers.settings import DeliveryLimits, Listening
from shiplift.runtime.base.secrets import load_secrets
from shiplift.runtime.host.processes import free_port, listening
from shiplift.runtime.store.registry.rest import RestRegistry

RESULTS = Path(__file__).parent / "results" / "own_cost.json"
SIZES = (10, 100, 1000)
LINEAR = 1.15  # slopes up to this count as linear, since times of a few milliseconds scatter
_HELP_RUNS, _RUNS, _IDLE_S = 15, 5, 5.0
_SENDERS, _DELIVERIES = 8, 1000
_OWN = [sys.executable, "-m", "shiplift.pipelines.commands.app"]
_ROWS = {
    "status_s": "shiplift status",
    "status_model_s": "shiplift status MODEL",
    "report_s": "shiplift report MODEL/VERSION",
    "index_s": "shiplift report --index",
    "sweep_s": "sweep of either engine",
    "dispatcher_idle_percent": "dispatcher idle, % of a core",
    "receiver_new_p99_ms": "receiver, new version, p99 ms",
    "receiver_known_p99_ms": "receiver, known version, p99 ms",
    "receiver_new_per_s": "receiver, new versions/s",
    "receiver_known_per_s": "receiver, known versions/s",
    "receiver_forged_per_s": "receiver, forged/s",
}


# --- the command ----------------------------------------------------------------------------------------------------


def seconds_of(act: Callable[[], object], runs: int, summarize: Callable[[list[float]], float] = min) -> float:
    """The seconds of an action, summarized over several runs; the fastest has the least noise of other processes."""
    seconds = []
    for _ in range(runs):
        started = time.monotonic()
        act()
        seconds.append(time.monotonic() - started)
    return round(summarize(seconds), 4)


def shiplift(*words: str) -> None:
    """Runs the `shiplift` command, which must succeed."""
    subprocess.run([*_OWN, *words], check=True, stdout=subprocess.DEVNULL)


# --- the receiver ---------------------------------------------------------------------------------------------------


def _receive(home: str, port: int) -> None:
    """The local engine's receiver, but without a rate limit per sender."""
    address = Listening(host=big_registry.HOST, port=port)
    with (Path(home) / "receiver.log").open("w") as sys.stdout:
        serve(on_this_machine(Path(home)), address, DeliveryLimits(deliveries_per_minute=10**9))


@contextmanager
def receiver(home: Path) -> Iterator[int]:
    """Runs a home's receiver in its own process; yields its port."""
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=_receive, args=(str(home), port))
    process.start()
    try:
        until(lambda: listening(big_registry.HOST, port), "the receiver")
        yield port
    finally:
        process.terminate()
        process.join()


def deliver(port: int, secret: str, versions: Iterator[tuple[str, int]], expect: int) -> dict[str, float]:
    """Rate and p99 of signed deliveries from several senders in parallel, each in closed loop."""
    spent: list[float] = []
    unexpected: list[int] = []
    lock = threading.Lock()

    def send() -> None:
        connection = HTTPConnection(big_registry.HOST, port, timeout=30)  # light: it shares the cores
        while True:
            with lock:
                version = next(versions, None)
            if version is None:
                return
            body, headers = _delivery(*version, secret)
            started = time.monotonic()
            connection.request("POST", "/webhooks/mlflow", body, headers)
            answer = connection.getresponse()
            answer.read()
            with lock:
                spent.append(time.monotonic() - started)
                if answer.status != expect:
                    unexpected.append(answer.status)

    senders = [threading.Thread(target=send) for _ in range(_SENDERS)]
    started = time.monotonic()
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    seconds = time.monotonic() - started
    if unexpected:
        statuses = sorted(set(unexpected))
        raise SystemExit(f"{len(unexpected)} deliveries were answered with {statuses}, not {expect}")
    return {"per_s": round(len(spent) / seconds, 1), "p99_ms": round(1000 * percentile(spent, 99), 2)}


def _delivery(name: str, version: int, secret: str) -> tuple[bytes, dict[str, str]]:
    data: dict[str, Any] = {"name": name, "version": str(version), "source": "models:/m-1", "run_id": None, "tags": {}}
    body = json.dumps({"entity": "model_version", "action": "created", "timestamp": "now", "data": data}).encode()
    delivery, sent = str(uuid.uuid4()), str(int(time.time()))
    mac = hmac.new(secret.encode(), f"{delivery}.{sent}.".encode() + body, hashlib.sha256).digest()
    return body, {
        "X-MLflow-Signature": f"v1,{base64.b64encode(mac).decode()}",
        "X-MLflow-Delivery-Id": delivery,
        "X-MLflow-Timestamp": sent,
    }


def receiving(registry: str, models: int) -> dict[str, float]:
    """Measures the receiver over a registry of this many models, in a home where nothing runs the releases."""
    with tempfile.TemporaryDirectory(prefix="shiplift-own-") as folder:
        home = Path(folder)
        _stack_of(home, registry)
        secret = load_secrets(home).webhook
        versions = [(big_registry.name_of(n), v) for v in range(1, big_registry.VERSIONS + 1) for n in range(models)]
        announced = versions[:_DELIVERIES]
        figures: dict[str, float] = {}
        with receiver(home) as port:
            for kind, key, expect in (("new", secret, 202), ("known", secret, 202), ("forged", "another", 401)):
                for name, value in deliver(port, key, iter(announced), expect).items():
                    figures[f"receiver_{kind}_{name}"] = value
        created = len(Releases(home).names())
        if created != len(announced):
            raise SystemExit(f"{len(announced)} versions were announced, but {created} releases were created")
        return figures


def _stack_of(home: Path, registry: str) -> None:
    """Writes the part of a stack that a receiver reads, for a registry; nothing runs."""
    ports = dict.fromkeys(("mlflow_port", "receiver_port", "http_port", "grpc_port", "metrics_port"), 0)
    written = stack.Stack(
        **ports, registry_uri=registry, server_environment="", cache_mb=0, rate_limiter=False, sweep_s=3600, since=0
    )
    (home / "stack.json").write_text(written.model_dump_json())


# --- a registry of some size ----------------------------------------------------------------------------------------


def with_registry(kind: str, sizes: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """All figures that may grow with the registry, by number of models."""
    by_size: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="shiplift-own-") as folder:
        home = Path(folder) / "home"
        home.mkdir()
        with big_registry.database(kind, home) as uri, big_registry.mlflow_server(uri, home) as registry:
            big_registry.write_reference(registry)
            running = stack.up(Settings(home=home, free_ports=True, registry_uri=registry, sweep_s=3600))
            try:
                filled = 0
                for models in sizes:
                    big_registry.fill(uri, filled, models)
                    big_registry.release_folders(home, filled, models)
                    filled = models
                    big_registry.check(registry, models - 1)
                    by_size[str(models)] = figures_of_size(home, running, models)
                    print(json.dumps({"database": kind, "models": models} | by_size[str(models)]), flush=True)
            finally:
                stack.down(home)
    return by_size


def figures_of_size(home: Path, running: stack.Stack, models: int) -> dict[str, float]:
    """The figures for one registry size."""
    model, newest = big_registry.name_of(models - 1), big_registry.VERSIONS
    command = partial(shiplift, "--home", str(home))
    releases, registry = Releases(home), RestRegistry(running.registry_uri)

    def swept() -> None:
        if registry_sweep.sweep(registry, releases.accept, since=0, tell=print):
            raise SystemExit("the sweep found a version that was released")

    return {
        "status_s": seconds_of(partial(command, "status"), _RUNS),
        "status_model_s": seconds_of(partial(command, "status", model), _RUNS),
        "report_s": seconds_of(partial(command, "report", f"{model}/{newest}"), _RUNS),
        "index_s": seconds_of(partial(command, "report", "--index"), _RUNS),
        "sweep_s": seconds_of(swept, _RUNS),
        "dispatcher_idle_percent": idle_percent(running.processes["dispatcher"].pid),
        **receiving(running.registry_uri, models),
    }


def idle_percent(pid: int) -> float:
    """The share of a core, in percent, that a process uses while it waits for work."""
    process = psutil.Process(pid)
    before, started = process.cpu_times(), time.monotonic()
    time.sleep(_IDLE_S)
    after = process.cpu_times()
    spent = after.user + after.system - before.user - before.system
    return round(100 * spent / (time.monotonic() - started), 2)


# --- growth ---------------------------------------------------------------------------------------------------------


def growth(by_size: dict[str, dict[str, float]]) -> dict[str, dict[str, Any]]:
    """The growth of each figure as a cost: its slope between neighbouring sizes and overall, and a verdict."""
    sizes = sorted(map(int, by_size))
    slopes = {}
    for name in next(iter(by_size.values())):
        cost = (lambda value: 1 / value) if name.endswith("_per_s") else float
        costs = [max(cost(by_size[str(size)][name]), 1e-6) for size in sizes]
        steps = [
            math.log(costs[index + 1] / costs[index]) / math.log(sizes[index + 1] / sizes[index])
            for index in range(len(sizes) - 1)
        ]
        overall = math.log(costs[-1] / costs[0]) / math.log(sizes[-1] / sizes[0])
        verdict = "no worse than linear" if max(steps) <= LINEAR else "worse than linear"
        slopes[name] = {"steps": [round(step, 2) for step in steps], "slope": round(overall, 2), "verdict": verdict}
    return slopes


def table(kind: str, by_size: dict[str, dict[str, float]], slopes: dict[str, dict[str, Any]]) -> Table:
    """The figures of one database."""
    rows = Table(f"{kind}: models x {big_registry.VERSIONS} versions", box=None, header_style="bold")
    for size in by_size:
        rows.add_column(f"{int(size):,}", justify="right")
    rows.add_column("slope", justify="right")
    rows.add_column("growth")
    for name, label in _ROWS.items():
        values = [f"{figures[name]:.4g}" for figures in by_size.values()]
        rows.add_row(label, *values, str(slopes[name]["slope"]), slopes[name]["verdict"])
    return rows


def release_table(figures: dict[str, Any]) -> Table:
    """The overhead of a release besides export, calibration and measurement, in total and by stage."""
    rows = Table("a release, in s (MiB)", box=None, header_style="bold")
    rows.add_column("median", justify="right")
    rows.add_column("runs")
    for name, figure in figures.items():
        rows.add_row(name, f"{figure['median']:.2f}", ", ".join(f"{run:.2f}" for run in figure["runs"]))
    return rows


def _machine() -> dict[str, Any]:
    return {
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
    }


def main() -> None:
    """Measures, prints the tables and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 and 100 models, and one release")
    parts = ("release", *big_registry.DATABASES)
    parser.add_argument("--only", choices=parts, help="measure this part and keep the other results")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    selected = (arguments.only,) if arguments.only else parts
    previous = json.loads(arguments.out.read_text()) if arguments.only and arguments.out.is_file() else {}
    results: dict[str, Any] = {"registry": {}, "growth": {}, "skipped": {}} | previous
    results |= {"machine": _machine(), "quick": arguments.quick, "senders": _SENDERS}
    results["help_s"] = seconds_of(partial(shiplift, "--help"), _HELP_RUNS, median)
    console = Console()
    console.print(f"shiplift --help: {results['help_s']} s")
    for part in selected:
        if part == "release":
            results["release"] = measured_release(runs=1 if arguments.quick else 3)
            console.print(release_table(results["release"]))
        else:
            _measure(part, SIZES[:-1] if arguments.quick else SIZES, results, console)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


def _measure(kind: str, sizes: tuple[int, ...], results: dict[str, Any], console: Console) -> None:
    """Measures one database and adds its part to the results."""
    try:
        by_size = with_registry(kind, sizes)
    except LookupError as error:
        results["skipped"][kind] = str(error)
        console.print(f"{kind}: skipped, {error}")
        return
    results["skipped"].pop(kind, None)
    results["registry"][kind], results["growth"][kind] = by_size, growth(by_size)
    console.print(table(kind, by_size, results["growth"][kind]))


if __name__ == "__main__":
    main()
