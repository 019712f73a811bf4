"""Starts NVIDIA's server in a pod, and explains why it refuses a plan that the pod's GPU or TensorRT can't run.

    python3 guard.py --model /models/digits -- tritonserver --load-model=digits ...

Only in the pod is it certain which GPU it got and which TensorRT the image contains. The init container copies this
file into the server's container. After the check, this process becomes the server (execve(2)). The APIs that load
models and share memory are closed with a key that is thrown away; in the pod of a bench the key is
SHIPLIFT_REPOSITORY_KEY, which only the search knows.

Process: the server's container, as `guard.py`, until it becomes the server.
Python: the image's
Packages: none
"""

import argparse
import ctypes
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

MISMATCH = 40  # ServerFailed's exit code
STAMP = "plan.json"
KEY = "SHIPLIFT_REPOSITORY_KEY"
_RESTRICTED_APIS = "model-repository,shared-memory,trace,logging"
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/tensorrt/lib", "/usr/lib64")


def refusal(stamps: Iterable[dict[str, str]], *, tensorrt: str, compute_capability: str) -> str:
    """Why plans with these stamps can't be loaded here; empty if they can. Unknown values are not compared."""
    for stamp in stamps:
        built_by, built_for = stamp.get("tensorrt", ""), stamp.get("compute_capability", "")
        installed = tensorrt.split(".")
        if tensorrt and built_by and built_by.split(".")[: len(installed)] != installed:
            return f"the plan was built by TensorRT {built_by}, this server has TensorRT {tensorrt}"
        if compute_capability and built_for and built_for != compute_capability:
            return f"the plan was built for compute capability {built_for}, this node's GPU has {compute_capability}"
    return ""


def stamps_of(model: Path) -> list[dict[str, str]]:
    """The stamps of a model's versions."""
    return [json.loads(file.read_text()) for file in sorted(model.glob(f"*/{STAMP}"))]


def compute_capability() -> str:
    """The compute capability of this container's GPU, such as `9.0`; empty if unknown."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    first = next(iter(result.stdout.split()), "") if result.returncode == 0 else ""
    return first if re.fullmatch(r"[0-9]{1,2}\.[0-9]", first) else ""


def tensorrt_version(folders: Iterable[str]) -> str:
    """The version of the TensorRT library in the first folder that has one, such as `10.9.0`; empty if none has.

    The file name usually has the version; otherwise the library is loaded and asked.
    """
    for folder in folders:
        for file in sorted(Path(folder).glob("libnvinfer.so.*")) if folder else ():
            match = re.fullmatch(r"libnvinfer\.so\.([0-9]+\.[0-9]+\.[0-9]+)", file.resolve().name)
            if version := match.group(1) if match else _reported_version(file):
                return version
    return ""


def _reported_version(library: Path) -> str:
    try:
        return version_text(int(ctypes.CDLL(str(library)).getInferLibVersion()))
    except (OSError, AttributeError):
        return ""


def version_text(number: int) -> str:
    """TensorRT's version as text: 100900 is 10.9.0. Before 10, minor versions had one digit: 8601 is 8.6.1."""
    unit = 10000 if number >= 100000 else 1000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"


def main() -> None:
    """Checks the plans, then becomes the server."""
    parser = argparse.ArgumentParser(description="Checks TensorRT plans against this container, then starts Triton.")
    parser.add_argument("--model", type=Path, action="append", required=True, help="May be repeated.")
    parser.add_argument("--meter", default="", help="ADDRESS:PORT where meter.py reports resource usage.")
    parser.add_argument("--heartbeat", default="", help="ADDRESS:PORT where heartbeat.py answers the liveness probe.")
    parser.add_argument("--patience", default="", help="Seconds without an answer after which the server is stuck.")
    parser.add_argument("server", nargs="+")
    options = parser.parse_args()
    for model in options.model:
        _check(model)
    folder = Path(sys.argv[0]).parent
    if options.meter:
        subprocess.Popen([sys.executable, "-I", folder / "meter.py", options.meter])
    if options.heartbeat:
        patience = ["--patience", options.patience] if options.patience else []
        subprocess.Popen([sys.executable, "-I", folder / "heartbeat.py", options.heartbeat, *patience])
    server = [*options.server, *restrictions(os.environ.pop(KEY, ""))]
    os.execvp(server[0], server)  # noqa: S606 - no shell is needed


def _check(model: Path) -> None:
    stamps = stamps_of(model)
    if not stamps:
        return
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep), *_LIBRARIES]
    reason = refusal(stamps, tensorrt=tensorrt_version(folders), compute_capability=compute_capability())
    if reason:
        print(f"{model.name}: {reason}. Release it again for this target.", file=sys.stderr)
        sys.exit(MISMATCH)


def restrictions(key: str) -> list[str]:
    """Triton's options that close APIs to callers without this key; an empty key closes them to all callers."""
    restricted = f"{_RESTRICTED_APIS}:shiplift={key or secrets.token_hex(16)}"
    return [f"--http-restricted-api={restricted}", f"--grpc-restricted-protocol={restricted}"]


if __name__ == "__main__":
    main()
