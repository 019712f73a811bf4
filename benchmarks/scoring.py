"""`make bench-scoring`: MLflow's own clients against production, and against `mlflow models serve` of the same version.

The model is the first example of MLflow's documentation, a logistic regression on the iris data frame. Both are sent
the same requests, one row in `dataframe_split` each, in rounds that alternate them. MLflow's server runs in this
environment, with one worker as by default and with one for each core; servers that are not asked are stopped meanwhile.

    python -m benchmarks.scoring --help
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import until
from benchmarks.protocols import HOST, request_bytes
from benchmarks.ratios import Window, spread
from benchmarks.server_comparison import Effort, machine, measure, tell
from benchmarks.sides import Side
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.pipelines.settings import Settings
from shiplift.runtime.base.names import release_name
from shiplift.runtime.host.processes import free_port, identify, inherited, start_child, stop
from shiplift.runtime.records.process import Process

RESULTS = Path(__file__).parent / "results" / "scoring.json"
MODEL, OURS, GOAL = "iris", "shiplift", 3.0
WORKERS = (1, 2)
SPEC = "search: {max_batch: [8], instances: [1], queue_delay_us: [0], threads: [1], time_budget_s: 10}"


def released(home: Path, running: stack.Stack) -> list[bytes]:
    """Logs and registers the model and waits for its release; returns bodies of requests."""
    import mlflow
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    mlflow.set_tracking_uri(running.registry_uri)
    features, species = load_iris(return_X_y=True, as_frame=True)
    model = LogisticRegression(max_iter=500).fit(features, species)
    with mlflow.start_run():
        mlflow.log_text(SPEC, "shiplift/shiplift.yaml")
        info = mlflow.sklearn.log_model(
            model, name="model", input_example=features, registered_model_name=MODEL, pip_requirements=[]
        )
    releases, name = Releases(home), release_name(MODEL, int(info.registered_model_version), "")
    report = until(lambda: releases.result(name), "the release", seconds=600)
    if report.exit_code:
        raise SystemExit(f"the release failed: {report.reason}")
    rows = [features.iloc[[at]] for at in range(0, len(features), 5)]
    return [json.dumps({"dataframe_split": row.to_dict(orient="split")}).encode() for row in rows]


def side(name: str, port: int, process: Process, path: str, bodies: list[bytes]) -> Side:
    """A server that answers the bodies at a path."""
    headers = {"Content-Type": "application/json"}
    requests = tuple(request_bytes(port, path, headers, body) for body in bodies)
    return Side(name=name, port=port, process=process, requests=requests, check={}, difference=0, settings={})


@contextmanager
def mlflow_serves(running: stack.Stack, workers: int, bodies: list[bytes], work: Path) -> Iterator[Side]:
    """Runs MLflow's own server of the version, for as long as the context lasts."""
    port = free_port()
    serve = ["models", "serve", "-m", f"models:/{MODEL}/1", "--env-manager", "local", "-h", HOST, "-p", str(port)]
    command = [sys.executable, "-m", "mlflow", *serve, "--workers", str(workers)]
    variables = {
        **inherited(),
        "MLFLOW_TRACKING_URI": running.registry_uri,
        "NO_PROXY": "*",
        "PYTHONWARNINGS": "ignore",
    }
    variables["PATH"] = f"{Path(sys.executable).parent}:{variables.get('PATH', '')}"
    child = start_child(command, environment=variables, log=work / f"mlflow-{workers}.log", folder=work)
    process = identify(child.pid)
    try:
        until(lambda: _answers(port), "mlflow models serve", seconds=300)
        yield side(f"mlflow-{workers}", port, process, "/invocations", bodies)
    finally:
        stop(process)


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://{HOST}:{port}/ping", trust_env=False).is_success
    except httpx.HTTPError:
        return False


def require_equal(sides: list[Side], paths: dict[str, str], bodies: list[bytes]) -> None:
    """Checks that all sides answer every request alike."""
    headers = {"Content-Type": "application/json"}
    for body in bodies:
        answers = {
            httpx.post(
                f"http://{HOST}:{each.port}{paths.get(each.name, '/invocations')}", content=body, headers=headers
            ).text
            for each in sides
        }
        if len(answers) != 1:
            raise SystemExit(f"the answers differ: {answers}")


def run(effort: Effort, clients: int) -> dict[str, Any]:
    """Releases the model, and measures all sides in turn."""
    with tempfile.TemporaryDirectory(prefix="shiplift-scoring-") as folder, ExitStack() as servers:
        home, work = Path(folder) / "home", Path(folder)
        running = stack.up(Settings(home=home, free_ports=True, warm_minutes=0))
        servers.callback(stack.down, home)
        bodies = released(home, running)
        running, path = stack.require(home), f"/models/{MODEL}/invocations"
        ours = side(OURS, running.scoring_port, running.processes["scoring"], path, bodies)
        rivals = [servers.enter_context(mlflow_serves(running, workers, bodies, work)) for workers in WORKERS]
        sides = [ours, *rivals]
        require_equal(sides, {OURS: path}, bodies)
        windows = [
            measure(each, [other for other in sides if other is not each], clients, round_, effort, work)
            for round_ in range(effort.rounds)
            for each in sides[:: -1 if round_ % 2 else 1]
        ]
    return compared(windows)


def compared(windows: list[Window]) -> dict[str, Any]:
    """Medians and extremes of all sides, and our throughput and p99 over each rival's, round by round."""
    names = list(dict.fromkeys(window.side for window in windows))
    by = {(window.side, window.round): window for window in windows}
    pairs = {name: [(by[OURS, at], each) for (side_, at), each in by.items() if side_ == name] for name in names}
    return {
        "sides": {
            name: {
                key: spread([getattr(window, key) for window in windows if window.side == name]).model_dump()
                for key in ("throughput_per_s", "p50_ms", "p99_ms")
            }
            for name in names
        },
        "over": {
            name: {
                "throughput": spread([a.throughput_per_s / b.throughput_per_s for a, b in of]).model_dump(),
                "p99": spread([a.p99_ms / b.p99_ms for a, b in of]).model_dump(),
            }
            for name, of in pairs.items()
            if name != OURS
        },
        "errors": sum(window.errors for window in windows),
    }


def main() -> None:
    """Measures, writes the JSON, and prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds of short windows")
    parser.add_argument("--clients", type=int, default=16, help="requests at once (16)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    arguments = parser.parse_args()
    quick = Effort(rounds=2, warm_s=0.5, window_s=1.5, quick=True)
    measured = run(quick if arguments.quick else Effort(rounds=7, warm_s=1, window_s=4), arguments.clients)
    results = {"machine": machine(), "clients": arguments.clients, "goal": GOAL, **measured}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    for name, each in measured["sides"].items():
        tell(f"{name:<10} {each['throughput_per_s']['median']:>7.1f}/s  p99 {each['p99_ms']['median']:.1f} ms")
    for name, times in measured["over"].items():
        met = "met" if times["throughput"]["low"] >= GOAL else "missed"
        tell(f"{times['throughput']['median']:.1f}x {name}, p99 {times['p99']['median']:.2f}; goal {GOAL:g}x: {met}")


if __name__ == "__main__":
    main()
