"""What a shadow costs production: one champion's server, in every second block of time shadowed by a challenger.

    python -m benchmarks.shadowing [--pairs 40] [--seconds 4] [--rate 50] [--share 0.2]

Clients ask at a fixed rate, as users do. The blocks alternate, and each is compared with the one before it, so that
what else the machine does counts for both. The shadow runs in a process of its own, with the challenger's server as
its child, as in a release. Prints the median ratios of latency, with and without, and what the shadow saw.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient import grpc

from benchmarks.capturing import small
from shiplift.runtime.measure.shadowing.on_machine import LocalShadow
from shiplift.runtime.records.deployment import Deployment, Endpoint, ServerProcess
from shiplift.runtime.serving.machine.served import note_served
from shiplift.runtime.serving.machine.server import Server, private_server
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.command_line import Features
from shiplift.runtime.spec.shadowing import Shadow
from tests.integration.backends import ENVIRONMENT, put
from tests.unit.examples import package, site

_COLUMNS = 32
_CHAMPION, _CHALLENGER = package(model="m", version=1), package(model="m", version=2)
_STALL_S = 0.5  # a block with such a request says more of the machine
_SETTLE_S = 1.5  # after the shadow begins or ends


def serving(stack: ExitStack, work: Path) -> Server:
    """A server with the model."""
    work.mkdir()
    put(work, small())
    features = Features(cache_mb=0, captures=True)
    server = stack.enter_context(private_server(ENVIRONMENT, work / "models", features, log=work / "log"))
    stack.enter_context(TritonClient(server.grpc, repository_key=server.key)).load("m")
    return server


def shadow(home: Path, share: float) -> None:
    """The shadow's process: begins and ends with each line of its input, and answers each with what it saw."""
    wanted = Shadow.model_validate({"for": "1h", "share": share})
    with ExitStack() as stack:
        server = serving(stack, home / "challenger")
        workload = ServerProcess(process=server.process, repository="")
        deployment = Deployment(package=_CHALLENGER, endpoint=Endpoint(http="", grpc=server.grpc), workload=workload)
        print("ready", flush=True)
        for _ in sys.stdin:
            ended = threading.Event()
            threading.Thread(target=lambda end: (sys.stdin.readline(), end.set()), args=(ended,)).start()
            with LocalShadow(site(home)).mirroring(deployment, _CHAMPION, wanted) as mirror:
                print("begun", flush=True)
                while not ended.is_set():
                    seen = mirror.look()
            print(seen.model_dump_json(), flush=True)


def measured(address: str, seconds: float, rate: float) -> list[float]:
    """The latencies, in seconds, of requests at a fixed rate: each from when it should have been sent."""
    client, latencies, done = grpc.InferenceServerClient(address), list[float](), threading.Semaphore(0)
    tensor = grpc.InferInput("x", [1, _COLUMNS], "FP32")
    tensor.set_data_from_numpy(np.ones((1, _COLUMNS), np.float32))
    count, began = int(seconds * rate), time.monotonic()

    def answered(due: float) -> Any:
        def at_once(result: Any, error: Any) -> None:
            assert result
            assert error is None, error
            latencies.append(time.monotonic() - due)
            done.release()

        return at_once

    for number in range(count):
        due = began + number / rate
        time.sleep(max(0.0, due - time.monotonic()))
        client.async_infer("m", [tensor], callback=answered(due))
    for _ in range(count):
        done.acquire()
    client.close()
    return sorted(latencies)


def compare(server: Server, process: "subprocess.Popen[str]", options: argparse.Namespace) -> dict[str, Any]:
    """Medians over pairs of blocks, without and with the shadow; which comes first changes from pair to pair."""
    assert process.stdin
    assert process.stdout
    ratios: dict[str, list[float]] = {"p50": [], "p99": []}
    every: dict[bool, list[float]] = {True: [], False: []}
    longest: dict[bool, list[float]] = {True: [], False: []}  # of each block
    seen: dict[str, Any] = {}
    for pair in range(options.pairs + 1):
        found: dict[bool, list[float]] = {}
        for on in (False, True) if pair % 2 else (True, False):
            if on:
                process.stdin.write("\n")
                process.stdin.flush()
                process.stdout.readline()
            time.sleep(_SETTLE_S)
            found[on] = measured(server.grpc, options.seconds, options.rate)
            if on:
                process.stdin.write("\n")
                process.stdin.flush()
                seen = json.loads(process.stdout.readline())
        if not pair:  # it warms up
            continue
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            ratios[name].append(
                found[True][int(len(found[True]) * share)] / found[False][int(len(found[False]) * share)]
            )
        for on, latencies in found.items():
            every[on] += latencies
            longest[on].append(latencies[-1])
    p99 = {on: sorted(values)[int(len(values) * 0.99)] * 1e3 for on, values in every.items()}
    return {
        "pairs": options.pairs,
        "requests_per_block": int(options.seconds * options.rate),
        "p99_ms_without": round(p99[False], 3),
        "p99_ms_with": round(p99[True], 3),
        "stalls_without": sum(each > _STALL_S for each in longest[False]),
        "stalls_with": sum(each > _STALL_S for each in longest[True]),
        **{f"{name}_ratio": round(statistics.median(values), 4) for name, values in ratios.items()},
        **{f"{name}_quartiles": [round(q, 3) for q in statistics.quantiles(v, n=4)] for name, v in ratios.items()},
        "last_block": {name: seen[name] for name in ("requests", "failed", "dropped")},
    }


def main() -> None:
    """Runs the benchmark, or with a folder the shadow's process."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--pairs", type=int, default=40, help="pairs of blocks")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rate", type=float, default=50, help="requests per second")
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--shadow", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.shadow:
        return shadow(options.shadow, options.share)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        server = serving(stack, home / "champion")
        started = {"processes": {"triton": server.process.model_dump()}}
        (home / "stack.json").write_text(json.dumps(started))
        note_served(home, _CHAMPION)
        command = [sys.executable, "-m", "benchmarks.shadowing", "--share", str(options.share), "--shadow", folder]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout
            process.stdout.readline()
            print(json.dumps(compare(server, process, options), indent=1))
        finally:
            process.kill()
            process.wait()
    return None


if __name__ == "__main__":
    main()
