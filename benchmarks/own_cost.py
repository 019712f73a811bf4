"""`make bench-own`: what Shiplift itself costs, and how that grows with the registry.

A release's overhead per stage, the command's start, and for 10, 100 and 1,000 models of 20 versions, on SQLite and on
PostgreSQL: `shiplift status`, the sweep of either engine, the receiver under signed webhooks, the dispatcher's idle
processor time. Growth is the slope of time over models, both as logarithms: 1 is linear, and the verdict is about the
steepest step. `--quick` leaves out the 1,000.
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
from shiplift.pipelines.triggers.settings import Limits, Listening
from shiplift.runtime.base.secrets import load_secrets
from shiplift.runtime.host.processes import free_port, listening
from shiplift.runtime.store.registry_rest import RestRegistry

RESULTS = Path(__file__).parent / "results" / "own_cost.json"
SIZES = (10, 100, 1000)
LINEAR = 1.15  # a slope up to here is linear: times of a few milliseconds scatter
_HELP_RUNS, _RUNS, _IDLE_S = 15, 5, 5.0
_SENDERS, _DELIVERIES = 8, 1000
_OWN = [sys.executable, "-m", "shiplift.pipelines.commands.app"]
_ROWS = {
    "status_s": "shiplift status", "status_model_s": "shiplift status MODEL",
    "report_s": "shiplift report MODEL/VERSION", "index_s": "shiplift report --index",
    "sweep_s": "sweep of either engine",
    "dispatcher_idle_percent": "dispatcher idle, % of a core", "receiver_new_p99_ms": "receiver, new version, p99 ms",
    "receiver_known_p99_ms": "receiver, known version, p99 ms", "receiver_new_per_s": "receiver, new versions/s",
    "receiver_known_per_s": "receiver, known versions/s", "receiver_forged_per_s": "receiver, forged/s",
}  # fmt: skip


# --- the command ----------------------------------------------------------------------------------------------------


def seconds_of(act: Callable[[], object], runs: int, of: Callable[[list[float]], float] = min) -> float:
    """The quickest of several runs, since whatever else the machine does only adds; or another figure `of` them."""
    found = []
    for _ in range(runs):
        started = time.monotonic()
        act()
        found.append(time.monotonic() - started)
    return round(of(found), 4)


def shiplift(*words: str) -> None:
    """Runs the command, which must succeed."""
    subprocess.run([*_OWN, *words], check=True, stdout=subprocess.DEVNULL)


# --- the receiver ---------------------------------------------------------------------------------------------------


def _receive(home: str, port: int) -> None:
    """The local engine's receiver as it is, but with no limit on one sender's rate."""
    address = Listening(host=big_registry.HOST, port=port)
    with (Path(home) / "receiver.log").open("w") as sys.stdout:
        serve(on_this_machine(Path(home)), address, Limits(deliveries_per_minute=10**9))


@contextmanager
def receiver(home: Path) -> Iterator[int]:
    """A receiver of a home in a process of its own; gives its port."""
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=_receive, args=(str(home), port))
    process.start()
    try:
        until(lambda: listening(big_registry.HOST, port), "the receiver")
        yield port
    finally:
        process.terminate()
        process.join()


def deliver(port: int, secret: str, names: Iterator[tuple[str, int]], expect: int) -> dict[str, float]:
    """Signed deliveries from several senders at once, each the next when the last was answered: rate and p99."""
    spent: list[float] = []
    wrong: list[int] = []
    lock = threading.Lock()

    def send() -> None:
        connection = HTTPConnection(big_registry.HOST, port, timeout=30)  # lighter than the receiver: both share cores
        while True:
            with lock:
                one = next(names, None)
            if one is None:
                return
            body, headers = _delivery(*one, secret)
            started = time.monotonic()
            connection.request("POST", "/webhooks/mlflow", body, headers)
            answer = connection.getresponse()
            answer.read()
            with lock:
                spent.append(time.monotonic() - started)
                if answer.status != expect:
                    wrong.append(answer.status)

    senders = [threading.Thread(target=send) for _ in range(_SENDERS)]
    started = time.monotonic()
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    seconds = time.monotonic() - started
    if wrong:
        raise SystemExit(f"{len(wrong)} deliveries were answered with {sorted(set(wrong))}, not {expect}")
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
    """The receiver over a registry of so many models, in a home of its own where nothing takes up the releases."""
    with tempfile.TemporaryDirectory(prefix="shiplift-own-") as folder:
        home = Path(folder)
        _stack_of(home, registry)
        secret = load_secrets(home).webhook
        known = [(big_registry.name_of(n), v) for v in range(1, big_registry.VERSIONS + 1) for n in range(models)]
        some = known[:_DELIVERIES]
        found: dict[str, float] = {}
        with receiver(home) as port:
            for kind, key, expect in (("new", secret, 202), ("known", secret, 202), ("forged", "another", 401)):
                for name, value in deliver(port, key, iter(some), expect).items():
                    found[f"receiver_{kind}_{name}"] = value
        if len(Releases(home).names()) != len(some):
            raise SystemExit(f"{len(some)} versions were announced, {len(Releases(home).names())} releases made")
        return found


def _stack_of(home: Path, registry: str) -> None:
    """What a receiver reads of a stack: that of a registry, with nothing running."""
    ports = dict.fromkeys(("mlflow_port", "receiver_port", "http_port", "grpc_port", "metrics_port"), 0)
    made = stack.Stack(
        **ports, registry_uri=registry, server_environment="", cache_mb=0, rate_limiter=False, sweep_s=3600, since=0
    )
    (home / "stack.json").write_text(made.model_dump_json())


# --- a registry of some size ----------------------------------------------------------------------------------------


def with_registry(kind: str, sizes: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Every figure that may grow with the registry, by number of models."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="shiplift-own-") as folder:
        home = Path(folder) / "home"
        home.mkdir()
        with big_registry.database(kind, home) as uri, big_registry.mlflow_server(uri, home) as registry:
            big_registry.write_one(registry)
            running = stack.up(Settings(home=home, free_ports=True, registry_uri=registry, sweep_s=3600))
            try:
                there = 0
                for models in sizes:
                    big_registry.fill(uri, there, models)
                    big_registry.release_folders(home, there, models)
                    there = models
                    big_registry.check(registry, models - 1)
                    found[str(models)] = of_size(home, running, models)
                    print(json.dumps({"database": kind, "models": models} | found[str(models)]), flush=True)
            finally:
                stack.down(home)
    return found


def of_size(home: Path, running: stack.Stack, models: int) -> dict[str, float]:
    """The figures of one size."""
    one, newest = big_registry.name_of(models - 1), big_registry.VERSIONS
    command = partial(shiplift, "--home", str(home))
    releases, registry = Releases(home), RestRegistry(running.registry_uri)

    def swept() -> None:
        if registry_sweep.sweep(registry, releases.accept, since=0, tell=print):
            raise SystemExit("the sweep found a version that was released")

    return {
        "status_s": seconds_of(partial(command, "status"), _RUNS),
        "status_model_s": seconds_of(partial(command, "status", one), _RUNS),
        "report_s": seconds_of(partial(command, "report", f"{one}/{newest}"), _RUNS),
        "index_s": seconds_of(partial(command, "report", "--index"), _RUNS),
        "sweep_s": seconds_of(swept, _RUNS),
        "dispatcher_idle_percent": idle_percent(running.processes["dispatcher"].pid),
        **receiving(running.registry_uri, models),
    }


def idle_percent(pid: int) -> float:
    """The share of a core that a process takes while it waits for work."""
    process = psutil.Process(pid)
    before, started = process.cpu_times(), time.monotonic()
    time.sleep(_IDLE_S)
    after = process.cpu_times()
    spent = after.user + after.system - before.user - before.system
    return round(100 * spent / (time.monotonic() - started), 2)


# --- growth ---------------------------------------------------------------------------------------------------------


def growth(by_size: dict[str, dict[str, float]]) -> dict[str, dict[str, Any]]:
    """Of each figure that is a cost: the slope between neighbouring sizes and over all, and whether it is linear."""
    sizes = sorted(map(int, by_size))
    found = {}
    for name in next(iter(by_size.values())):
        cost = (lambda value: 1 / value) if name.endswith("_per_s") else float
        costs = [max(cost(by_size[str(size)][name]), 1e-6) for size in sizes]
        steps = [
            math.log(costs[at + 1] / costs[at]) / math.log(sizes[at + 1] / sizes[at]) for at in range(len(sizes) - 1)
        ]
        whole = math.log(costs[-1] / costs[0]) / math.log(sizes[-1] / sizes[0])
        verdict = "no worse than linear" if max(steps) <= LINEAR else "worse than linear"
        found[name] = {"steps": [round(step, 2) for step in steps], "slope": round(whole, 2), "verdict": verdict}
    return found


def table(kind: str, by_size: dict[str, dict[str, float]], slopes: dict[str, dict[str, Any]]) -> Table:
    """The figures of one database."""
    made = Table(f"{kind}: models x {big_registry.VERSIONS} versions", box=None, header_style="bold")
    for size in by_size:
        made.add_column(f"{int(size):,}", justify="right")
    made.add_column("slope", justify="right")
    made.add_column("growth")
    for name, words in _ROWS.items():
        values = [f"{found[name]:.4g}" for found in by_size.values()]
        made.add_row(words, *values, str(slopes[name]["slope"]), slopes[name]["verdict"])
    return made


def release_table(figures: dict[str, Any]) -> Table:
    """What a release costs beside export, calibration and measurement, in all and by stage."""
    made = Table("a release, in s (MiB)", box=None, header_style="bold")
    made.add_column("median", justify="right")
    made.add_column("runs")
    for name, one in figures.items():
        made.add_row(name, f"{one['median']:.2f}", ", ".join(f"{run:.2f}" for run in one["runs"]))
    return made


def _machine() -> dict[str, Any]:
    return {
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)), "memory_gb": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
    }  # fmt: skip


def main() -> None:
    """Measures, prints the tables and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 and 100 models, and one release")
    parser.add_argument("--only", choices=("release", *big_registry.DATABASES), help="bring this part up to date")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    wanted = (given.only,) if given.only else ("release", *big_registry.DATABASES)
    before = json.loads(given.out.read_text()) if given.only and given.out.is_file() else {}
    found: dict[str, Any] = {"registry": {}, "growth": {}, "skipped": {}} | before
    found |= {"machine": _machine(), "quick": given.quick, "senders": _SENDERS}
    found["help_s"] = seconds_of(partial(shiplift, "--help"), _HELP_RUNS, median)
    console = Console()
    console.print(f"shiplift --help: {found['help_s']} s")
    for part in wanted:
        if part == "release":
            found["release"] = measured_release(runs=1 if given.quick else 3)
            console.print(release_table(found["release"]))
        else:
            _measure(part, SIZES[:-1] if given.quick else SIZES, found, console)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=1) + "\n")


def _measure(kind: str, sizes: tuple[int, ...], found: dict[str, Any], console: Console) -> None:
    """One database's part of the results."""
    try:
        by_size = with_registry(kind, sizes)
    except LookupError as error:
        found["skipped"][kind] = str(error)
        console.print(f"{kind}: skipped, {error}")
        return
    found["skipped"].pop(kind, None)
    found["registry"][kind], found["growth"][kind] = by_size, growth(by_size)
    console.print(table(kind, by_size, found["growth"][kind]))


if __name__ == "__main__":
    main()
