"""`shiplift demo`: the whole workflow on one machine, narrated and checked as it runs.

The example script that `shiplift init` writes trains and registers three versions of a digit classifier, and only that
starts the releases. The first version is promoted, the second refused. The third is promoted while a client keeps
sending requests, then rolled back under the same load.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from shiplift.pipelines.commands import console
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.engine import LocalEngine
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.pipelines.settings import Settings
from shiplift.pipelines.triggers.registry_sweep import sweep
from shiplift.runtime.base.errors import ShipliftError, StackDown, Temporary
from shiplift.runtime.base.names import release_name
from shiplift.runtime.host.processes import start_child
from shiplift.runtime.model.tensors import Arrays, load_npz
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.rest import PATIENT_S, RestRegistry
from shiplift.runtime.store.registry.terms import CHAMPION
from shiplift.steps.rollback import rollback

MODEL = "digits"
_SCRIPT = Path(str(files("shiplift.templates").joinpath("starters/train_torch.py")))
# The demo's own clients take their share of the machine: a closer comparison would take them half a minute more.
_SPEC = """\
quality: {min_score: 0.9}
slo: {p99_ms: 100, throughput_per_s: 200, regression: {p99_percent: 200, throughput_percent: 60}}
search: {time_budget_s: 6}
load: {concurrency: [1, 8, 32]}
"""
_WEBHOOK_S = 30
Tell = Callable[[str], None]


@dataclass
class TrafficClient:
    """A client that sends requests over both protocols without a pause, and counts those that fail.

    `image` is a float32 array for the input named `input`.
    """

    model: str
    http: str
    grpc: str
    image: Any
    sent: int = 0
    failures: list[str] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Starts two senders over gRPC and one over HTTP."""
        for send in (self._over_grpc, self._over_grpc, self._over_http):
            thread = threading.Thread(target=send, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stops sending, and waits for the last responses."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30)

    def _over_grpc(self) -> None:
        import tritonclient.grpc as triton

        client = triton.InferenceServerClient(self.grpc)
        image = triton.InferInput("input", list(self.image.shape), "FP32")
        image.set_data_from_numpy(self.image)
        self._until_stopped(lambda: str(client.infer(self.model, [image]).get_response().model_version))

    def _over_http(self) -> None:
        import httpx

        body = {
            "inputs": [
                {
                    "name": "input",
                    "shape": list(self.image.shape),
                    "datatype": "FP32",
                    "data": self.image.ravel().tolist(),
                }
            ]
        }
        with httpx.Client(trust_env=False, timeout=30) as client:

            def infer() -> str:
                response = client.post(f"{self.http}/infer", json=body)
                response.raise_for_status()
                return str(response.json()["model_version"])

            self._until_stopped(infer)

    def _until_stopped(self, infer: Callable[[], str]) -> None:
        while not self._stop.is_set():
            try:
                version = infer()
            except Exception as error:
                with self._lock:
                    self.failures.append(str(error)[:200])
            else:
                with self._lock:
                    self.sent += 1
                    self.versions.add(version)
            time.sleep(0.005)


def play(settings: Settings, tell: Tell, *, keep: bool) -> dict[str, Any]:
    """Plays the demo in the home of `settings`; returns the summary that the command prints last.

    Raises:
        ShipliftError: a release did not start, or did not end as expected.
    """
    started = time.monotonic()
    home = settings.root
    tell("1. The embedded stack")
    running = stack.up(settings, tell)
    try:
        summary = _story(home, running, tell)
        summary["idle_memory_mb"] = round(sum(stack.memory(running).values()))
    finally:
        if not keep:
            stack.down(home)
    summary["seconds"] = round(time.monotonic() - started, 1)
    tell(f"State is in {home}; `shiplift up` starts the stack again.")
    return summary


def _story(home: Path, running: stack.Stack, tell: Tell) -> dict[str, Any]:
    site, unfinished = stack.site(home, running), _unfinished(home)
    settle(home, running, tell)
    tell("\n2. Version 1: training and registering it starts its release")
    first = _release(home, running, tell, epochs=6, expect=Outcome.PASS)
    answers = load_npz(home / "demo" / "answers.npz")
    difference = _compare(running, answers)
    tell(f"Production's outputs are within {difference:.2g} of torch's (largest logit: {_largest(answers):.1f}).")

    traffic = TrafficClient(
        model=MODEL,
        http=f"http://{stack.HOST}:{running.http_port}/v2/models/{MODEL}",
        grpc=f"{stack.HOST}:{running.grpc_port}",
        image=answers["image"][:1],
    )
    traffic.start()
    try:
        tell("\n3. Version 2 is worse: it is refused, and version 1 keeps serving")
        second = _release(home, running, tell, epochs=1, samples=600, expect=Outcome.FAIL)
        tell("\n4. Version 3 is better: it is promoted while a client keeps sending requests")
        unfinished.write_text(str(first.version))
        third = _release(home, running, tell, epochs=30, expect=Outcome.PASS)
        tell("\n5. Rollback, under the same load")
        back = rollback(site, MODEL)
        unfinished.unlink()
        tell(f"Version {back.version} is the champion again.")
        time.sleep(1)  # the count includes a second of traffic after the switch
    finally:
        traffic.stop()
    tell(
        f"{traffic.sent} requests were answered by versions {', '.join(sorted(traffic.versions))}; "
        f"{len(traffic.failures)} failed.\n"
    )
    return {
        "releases": [report.model_dump(mode="json") for report in (first, second, third)],
        "rollback": {"model": back.model, "version": back.version, "alias": back.alias},
        "requests": traffic.sent,
        "failed_requests": len(traffic.failures),
        "failures": sorted(set(traffic.failures)),
        "max_difference_from_torch": difference,
    }


def _unfinished(home: Path) -> Path:
    """The file that exists while version 3 may be the champion; it contains version 1's number."""
    return home / "demo" / "unfinished"


def settle(home: Path, running: stack.Stack, tell: Tell) -> None:
    """Finishes an earlier demo that was stopped, so that this one starts with a champion that it can improve on.

    The earlier demo may have been stopped at any point. Its training stopped too, but the release of the last version
    that it registered continues, or starts with the stack: wait for that release, and roll it back if it was promoted.

    Raises:
        StackDown: the dispatcher is gone, so a running release would never end.
        Temporary: the registry or production does not answer.
    """
    releases = Releases(home)
    registry = RestRegistry(running.registry_uri, timeout_s=PATIENT_S)
    sweep(registry, releases.accept, since=running.since, tell=tell)  # its webhook may have been lost with the stack
    own = set(releases.of(MODEL))
    for name in releases.pending():
        if name in own:
            _wait_for(LocalEngine(home), name, tell)
    _roll_back(stack.site(home, running), _unfinished(home), tell)


def _wait_for(engine: LocalEngine, name: str, tell: Tell) -> None:
    """Follows a release to its end. A release that was taken off the queue has ended too, without a result."""
    tell(f"Release {name} of an earlier demo is still running: waiting for its end.")
    try:
        console.follow(engine, name)
    except StackDown:
        if engine.under_way(name):
            raise


def _roll_back(site: Site, unfinished: Path, tell: Tell) -> None:
    """Rolls back the version that a stopped demo had promoted."""
    if not unfinished.is_file():
        return
    if Registry(site.registry_uri).alias(MODEL, CHAMPION) > int(unfinished.read_text()):
        back = rollback(site, MODEL)
        tell(f"An earlier demo was stopped before its rollback: version {back.version} is the champion again.")
    unfinished.unlink()


def _release(
    home: Path, running: stack.Stack, tell: Tell, *, epochs: int, expect: Outcome, samples: int = 1200
) -> ReleaseReport:
    """Trains and registers a version, follows the release that this starts, and checks how it ends."""
    version = train(home, running, tell, epochs=epochs, samples=samples)
    releases, name = Releases(home), release_name(MODEL, version, "")
    deadline = time.monotonic() + _WEBHOOK_S
    while not releases.folder(name).is_dir():
        if time.monotonic() > deadline:
            raise Temporary(
                f"no webhook arrived for {MODEL}/{version} within {_WEBHOOK_S} s", do="See `shiplift logs receiver`."
            )
        time.sleep(0.05)
    report = console.follow(LocalEngine(home), name)
    console.show_report(report)
    if report.exit_code != expect.exit_code:
        raise ShipliftError(
            f"version {version} ended with exit code {report.exit_code} instead of {expect.exit_code}: {report.reason}",
            do=f"See `shiplift logs {MODEL}/{version}`.",
        )
    return report


def train(home: Path, running: stack.Stack, tell: Tell, *, epochs: int, samples: int) -> int:
    """Trains and registers a version with the example script, as a user would; returns its number.

    Raises:
        ShipliftError: the script failed.
    """
    folder = home / "demo"
    folder.mkdir(exist_ok=True)
    (folder / "shiplift.yaml").write_text(_SPEC)
    variables = {**os.environ, "MLFLOW_TRACKING_URI": running.registry_uri, "MLFLOW_DISABLE_TELEMETRY": "true"}
    arguments = ["--name", MODEL, "--epochs", str(epochs), "--samples", str(samples), "--answers", "answers.npz"]
    log = folder / "train.log"
    log.unlink(missing_ok=True)
    child = start_child([sys.executable, _SCRIPT, *arguments], environment=variables, log=log, folder=folder)
    try:
        failed = child.wait()
    finally:
        child.kill()  # a stopped demo must not register another version
    output = log.read_text(errors="replace")
    if failed:
        raise ShipliftError(f"training failed: {output[-500:]}", do="Run `shiplift doctor`.")
    lines = output.splitlines()
    tell(next((line for line in lines if line.startswith("accuracy")), ""))
    version = next(line for line in lines if line.startswith("Created version"))
    return int(version.split("'")[1])


def _compare(running: stack.Stack, answers: Arrays) -> float:
    """The largest absolute difference between production's outputs and torch's, for the same images."""
    from shiplift.runtime.serving.triton.client import TritonClient

    with TritonClient(f"{stack.HOST}:{running.grpc_port}") as client:
        signature = client.signature(MODEL)
        outputs = [
            client.infer(MODEL, signature, {signature.inputs[0].name: image[None]})[signature.outputs[0].name]
            for image in answers["image"]
        ]
    return float(np.abs(np.concatenate(outputs) - answers["logits"]).max())


def _largest(answers: Arrays) -> float:
    return float(np.abs(answers["logits"]).max())
