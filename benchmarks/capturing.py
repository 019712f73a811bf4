"""What capture costs: one server, whose model is captured in every second block of time, at a share of 1.

    python -m benchmarks.capturing [--blocks 100] [--seconds 0.5] [--clients 4]

The blocks alternate, and each is compared with the one before it, so that what else the machine does counts for both.
The writer runs in a process of its own, as in production. Prints the median ratios of throughput and latency.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from tritonclient import grpc

from shiplift.runtime.capture.ring import Ring
from shiplift.runtime.capture.writer import CaptureWriter
from shiplift.runtime.confinement.watch import worker
from shiplift.runtime.records.capturing import Capturing
from shiplift.runtime.serving.machine.server import Server, private_server
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.command_line import Features
from tests.integration.backends import ENVIRONMENT, model, put

_ALL = Capturing(share=1.0, limit_bytes=10**9, retention_s=86400)
_COLUMNS = 32


def small() -> Any:
    """A small model: 32 numbers, and their sum."""
    from onnx import helper, numpy_helper

    axis = numpy_helper.from_array(np.array([1], np.int64), "axis")
    nodes = [helper.make_node("ReduceSum", ["x", "axis"], ["y"], keepdims=1)]
    return model(nodes, [("x", "FP32", ["n", _COLUMNS])], [("y", "FP32", ["n", 1])], (axis,))


def measured(address: str, seconds: float, clients: int) -> list[float]:
    """The latencies, in seconds, of closed-loop clients."""
    until = time.monotonic() + seconds
    latencies: list[list[float]] = [[] for _ in range(clients)]

    def ask(own: list[float]) -> None:
        client = grpc.InferenceServerClient(address)
        tensor = grpc.InferInput("x", [1, _COLUMNS], "FP32")
        tensor.set_data_from_numpy(np.ones((1, _COLUMNS), np.float32))
        while (began := time.monotonic()) < until:
            client.infer("m", [tensor])
            own.append(time.monotonic() - began)
        client.close()

    threads = [threading.Thread(target=ask, args=(own,)) for own in latencies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [each for own in latencies for each in own]


def write(rings: Path, kept: Path) -> None:
    """What the writing process does, until it is ended."""
    writer = CaptureWriter(kept, "secret")
    while True:
        writer.look(rings, {"m": _ALL})
        time.sleep(0.25)


def compare(server: Server, ring: Ring, blocks: int, seconds: float, clients: int) -> dict[str, Any]:
    """Medians over pairs of blocks, without and with capture; which comes first changes from pair to pair."""
    process = psutil.Process(worker(server.process.pid))
    ratios: dict[str, list[float]] = {"throughput": [], "p50": [], "p99": [], "server_cpu_per_request": []}
    counts, late = [], []
    for pair in range(blocks + 1):
        found: dict[bool, tuple[list[float], float]] = {}
        for on in (False, True) if pair % 2 else (True, False):
            ring.set_share(1.0 if on else 0.0)
            before = process.cpu_times()
            latencies = sorted(measured(server.grpc, seconds, clients))
            after = process.cpu_times()
            spent = after.user + after.system - before.user - before.system
            found[on] = latencies, spent / len(latencies)
        if not pair:  # it warms up
            continue
        (off, off_cpu), (on_, on_cpu) = found[False], found[True]
        counts.append(len(off))
        late.append(off[int(len(off) * 0.99)] * 1e3)
        ratios["throughput"].append(len(on_) / len(off))
        ratios["server_cpu_per_request"].append(on_cpu / off_cpu)
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            ratios[name].append(on_[int(len(on_) * share)] / off[int(len(off) * share)])
    counted = ring.counters()
    return {
        "pairs": blocks,
        "requests_per_block": statistics.median(counts),
        "p99_ms_without": round(statistics.median(late), 3),
        **{f"{name}_ratio": round(statistics.median(values), 4) for name, values in ratios.items()},
        **{f"{name}_quartiles": [round(q, 3) for q in statistics.quantiles(v, n=4)] for name, v in ratios.items()},
        "captured": counted.captured,
        "dropped": counted.dropped,
    }


def main() -> None:
    """Runs the benchmark, or with two folders the writer."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--blocks", type=int, default=100, help="pairs of blocks")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--write", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write(*options.write)
    with tempfile.TemporaryDirectory() as folder:
        work, kept = Path(folder), Path(folder) / "kept"
        kept.mkdir()
        put(work, small())
        features = Features(cache_mb=0, captures=True)
        with (
            private_server(ENVIRONMENT, work / "models", features, log=work / "log") as server,
            TritonClient(server.grpc, repository_key=server.key) as client,
        ):
            client.load("m")
            rings = Path(f"/proc/{worker(server.process.pid)}/root/tmp/shiplift-capture")
            command = [sys.executable, "-m", "benchmarks.capturing", "--write", str(rings), str(kept)]
            writer = subprocess.Popen(command)
            try:
                ring = Ring(os.open(rings, os.O_RDONLY), "m")
                print(json.dumps(compare(server, ring, options.blocks, options.seconds, options.clients), indent=1))
            finally:
                writer.kill()
                writer.wait()


if __name__ == "__main__":
    main()
