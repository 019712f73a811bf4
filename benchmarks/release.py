"""`make bench-release`: what a release costs, by model, and what the stack costs around it.

Each run has a fresh home, so nothing is cached from the previous one, and begins when the stack is idle. A model is
logged as a team would log it, which starts its release. The figures are medians: from registration to promotion, the
part of it outside export, calibration and measurement windows, the CPU time of all of the stack's processes, and where
the time went, by stage and part. The demo adds a rerun with everything cached, and the memory of the stack: at its
start, and when idle, with what waits for the next release. `make bench-own` measures more.

`--against PYTHON` names the interpreter of another checkout. Its releases and ours then take turns, because two series
on a machine that others use can't be compared.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from shiplift.pipelines.commands.start import demo_story as demo
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.pipelines.settings import Settings
from shiplift.runtime.base.names import release_name
from shiplift.runtime.host.processor import cpu_flags, usable_cores

RESULTS = Path(__file__).parent / "results" / "release.json"
RUNS = 3


def one_run(home: Path) -> dict[str, float]:
    """Starts a stack, registers the demo model, waits for its release, reruns it, and measures the idle stack."""
    settings = Settings(home=home, free_ports=True)
    running = stack.up(settings)
    try:
        cold = sum(stack.memory(running).values())
        version = demo.train(home, running, print_nothing, epochs=6, samples=1200)
        releases, name = Releases(home), release_name(demo.MODEL, version, "")
        while releases.result(name) is None:
            time.sleep(0.1)
        report = releases.result(name)
        if report is None or report.exit_code:
            raise SystemExit(f"the release failed: {report}")
        shiplift = [sys.executable, "-m", "shiplift.pipelines.commands.app", "--home", str(home)]
        rerun = timed([*shiplift, "rerun", f"{demo.MODEL}/{version}"])
        settle(running)
        warm = sum(stack.memory(running).values())
    finally:
        stack.down(home)
    return {
        "registered_to_promoted_s": report.since_request_seconds,
        "overhead_s": report.overhead_seconds,
        "cached_rerun_s": rerun,
        "stack_at_start_mb": cold,
        "idle_stack_mb": warm,
        **{f"stage.{stage.name}_s": stage.seconds - stage.measured_seconds for stage in report.stages},
    }


def settle(running: stack.Stack) -> None:
    """Waits until the process that waits for the next release has imported what it needs."""
    dispatcher = psutil.Process(running.processes["dispatcher"].pid)
    used = -1.0
    while (now := sum(sum(each.cpu_times()[:2]) for each in dispatcher.children(recursive=True))) > used + 0.2:
        used = now
        time.sleep(4)


def timed(command: list[str]) -> float:
    """The seconds that a command takes; it must succeed."""
    started = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - started


def print_nothing(_: str) -> None:
    """A listener that drops every message."""


def measured_release(runs: int = RUNS) -> dict[str, Any]:
    """The median and runs of each figure; `stage.*` leave out export, calibration and measurement windows."""
    measured = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="shiplift-bench-") as folder:
            measured.append(one_run(Path(folder) / "home"))
    return {
        name: {
            "median": round(median(run[name] for run in measured), 2),
            "runs": [round(run[name], 2) for run in measured],
        }
        for name in measured[0]
    }


# --- by model --------------------------------------------------------------------------------------------------------


def log_sklearn(name: str) -> None:
    """A scaler and a logistic regression of 30 columns, from a data frame: 1 KB of weights."""
    import mlflow
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    data = load_breast_cancer(as_frame=True)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)).fit(data.data, data.target)
    with mlflow.start_run():
        mlflow.sklearn.log_model(model, name="model", registered_model_name=name, input_example=data.data.head(8))


def log_torch(name: str, module: Any, columns: int) -> None:
    """A torch module that takes rows of so many columns."""
    import mlflow
    import numpy as np
    import torch

    rows = np.random.default_rng(0).normal(size=(8, columns)).astype(np.float32)
    signature = mlflow.models.infer_signature(rows, module.eval()(torch.from_numpy(rows)).detach().numpy())
    with mlflow.start_run():
        mlflow.pytorch.log_model(
            module, name="model", registered_model_name=name, input_example=rows, signature=signature
        )


def mlp(*widths: int) -> Any:
    """Linear layers of these widths, with a ReLU between them."""
    import torch

    torch.manual_seed(0)
    layers: list[Any] = []
    for before, after in pairwise(widths):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


MODELS: dict[str, Callable[[str], None]] = {
    "sklearn, 1 KB": log_sklearn,
    "torch, 5 KB": lambda name: log_torch(name, mlp(16, 64, 4), 16),
    "torch, 5 MB": lambda name: log_torch(name, mlp(128, 1024, 1024, 10), 128),
    "torch, 100 MB": lambda name: log_torch(name, mlp(512, 3600, 3600, 2700, 10), 512),
}


def released(model: str) -> dict[str, Any]:
    """One release of a model on a stack of its own, as JSON-ready figures."""
    with tempfile.TemporaryDirectory(prefix="shiplift-bench-") as folder:
        home = Path(folder) / "home"
        running = stack.up(Settings(home=home, free_ports=True))
        try:
            settle(running)
            return _released(home, running, model)
        finally:
            stack.down(home)


def _released(home: Path, running: stack.Stack, model: str) -> dict[str, Any]:
    before, load = cpu_s(running), os.getloadavg()[0]
    variables = {**os.environ, "MLFLOW_TRACKING_URI": running.registry_uri, "MLFLOW_DISABLE_TELEMETRY": "true"}
    subprocess.run([sys.executable, __file__, "--log", model], env=variables, check=True, stdout=subprocess.DEVNULL)
    releases, name = Releases(home), release_name("measured", 1, "")
    while (report := releases.result(name)) is None:
        time.sleep(0.05)
    if report.exit_code:
        raise SystemExit(f"the release of {model} failed: {report.reason}")
    parts: dict[str, float] = defaultdict(float)
    for run in report.stages:
        parts[run.name] += run.seconds
        for part in getattr(run, "parts", ()):  # a checkout before timelines has none
            parts[f"{run.name}: {part.name}"] += part.seconds
    return {
        "registered_to_promoted_s": report.since_request_seconds,
        "overhead_s": report.overhead_seconds,
        "cpu_s": cpu_s(running) - before,
        "load_average": load,
        **{f"stage.{name}_s": seconds for name, seconds in parts.items()},
    }


def cpu_s(running: stack.Stack) -> float:
    """The CPU time of the stack's processes, and of their children that have ended, in seconds."""
    total = 0.0
    for known in running.processes.values():
        process = psutil.Process(known.pid)
        for each in (process, *process.children(recursive=True)):
            try:
                total += sum(each.cpu_times()[:4])
            except psutil.NoSuchProcess:
                continue
    return total


def in_turn(models: Iterable[str], pythons: dict[str, str], runs: int) -> dict[str, Any]:
    """The figures of each model and checkout, whose releases take turns; by model, then by checkout."""
    measured: dict[str, dict[str, list[dict[str, float]]]] = {model: {side: [] for side in pythons} for model in models}
    for turn in range(runs):
        for model, sides in measured.items():
            for side, python in list(pythons.items())[:: 1 if turn % 2 else -1]:
                done = subprocess.run([python, __file__, "--one", model], stdout=subprocess.PIPE, text=True, check=True)
                sides[side].append(json.loads(done.stdout.splitlines()[-1]))
                print(model, side, sides[side][-1], file=sys.stderr, flush=True)
    return {model: {side: medians(each) for side, each in sides.items()} for model, sides in measured.items()}


def medians(runs: list[dict[str, float]]) -> dict[str, Any]:
    """The median of each figure, and its runs."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {
        name: {"median": round(median(values), 2), "runs": [round(value, 2) for value in values]}
        for name in names
        if (values := [run[name] for run in runs if name in run])
    }


def conditions() -> dict[str, Any]:
    """What the figures depend on."""
    from benchmarks.machine import processor

    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "flags": [flag for flag in wanted if flag in cpu_flags()],
        "load_average": [round(each, 2) for each in os.getloadavg()],
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    """Measures, prints, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--only", choices=MODELS, action="append", help="a model; the demo is left out then")
    parser.add_argument("--against", default="", metavar="PYTHON", help="the interpreter of another checkout")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--log", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--one", choices=MODELS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.log:
        MODELS[arguments.log]("measured")
    elif arguments.one:
        print(json.dumps(released(arguments.one)))
    else:
        before = {"before": arguments.against} if arguments.against else {}
        results: dict[str, Any] = {"conditions": conditions()}
        results["models"] = in_turn(arguments.only or MODELS, {"now": sys.executable, **before}, arguments.runs)
        if not arguments.only:
            results["demo"] = measured_release(arguments.runs)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
