"""What NVIDIA's server is started through in a pod: a plan that its GPU or TensorRT can't run is refused with words.

    python3 guard.py --model /models/digits -- tritonserver --load-model=digits ...

Which GPU a pod gets, and which TensorRT an image holds, is known for certain only here. The init container copies this
file into the server's container, whose Python has none of our packages: it uses the standard library alone. Then this
process becomes the server (execve(2)). The APIs that load models and share memory are closed with a key: one that
nobody keeps, or for the pod of a bench the one in the variable SHIPLIFT_REPOSITORY_KEY, which its search alone knows.
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
_CLOSED = "model-repository,shared-memory"
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/tensorrt/lib", "/usr/lib64")


def refusal(stamps: Iterable[dict[str, str]], *, tensorrt: str, compute_capability: str) -> str:
    """Why plans with these stamps can't be loaded here; empty: they can. What is not known is not compared."""
    for stamp in stamps:
        built, pair = stamp.get("tensorrt", ""), stamp.get("compute_capability", "")
        have = tensorrt.split(".")
        if tensorrt and built and built.split(".")[: len(have)] != have:
            return f"the plan was built by TensorRT {built}, this server has TensorRT {tensorrt}"
        if compute_capability and pair and pair != compute_capability:
            return f"the plan was built for compute capability {pair}, this node's GPU has {compute_capability}"
    return ""


def stamps_of(model: Path) -> list[dict[str, str]]:
    """The stamps of a model's versions."""
    return [json.loads(file.read_text()) for file in sorted(model.glob(f"*/{STAMP}"))]


def compute_capability() -> str:
    """The compute capability of the GPU that this container was given, as `9.0`; empty: nobody can say."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    words = [program, "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    first = next(iter(said.stdout.split()), "") if said.returncode == 0 else ""
    return first if re.fullmatch(r"[0-9]{1,2}\.[0-9]", first) else ""


def tensorrt_version(folders: Iterable[str]) -> str:
    """The version of the TensorRT library in the first folder that has one, as `10.9.0`; empty: none has.

    The library is named after its version; where a copy is not, it is asked.
    """
    for folder in folders:
        for file in sorted(Path(folder).glob("libnvinfer.so.*")) if folder else ():
            named = re.fullmatch(r"libnvinfer\.so\.([0-9]+\.[0-9]+\.[0-9]+)", file.resolve().name)
            if version := named.group(1) if named else _asked(file):
                return version
    return ""


def _asked(library: Path) -> str:
    try:
        return decoded(int(ctypes.CDLL(str(library)).getInferLibVersion()))
    except (OSError, AttributeError):
        return ""


def decoded(number: int) -> str:
    """TensorRT's version from its number: 100900 is 10.9.0; before 10 a minor version had one digit: 8601 is 8.6.1."""
    unit = 10000 if number >= 100000 else 1000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"


def main() -> None:
    """Checks the plans, then becomes the server."""
    parser = argparse.ArgumentParser(description="Checks TensorRT plans against this container, then starts Triton.")
    parser.add_argument("--model", type=Path, action="append", required=True, help="May be repeated.")
    parser.add_argument("--meter", default="", help="ADDRESS:PORT where meter.py tells what is used.")
    parser.add_argument("server", nargs="+")
    words = parser.parse_args()
    for model in words.model:
        _check(model)
    if words.meter:
        subprocess.Popen([sys.executable, "-I", Path(sys.argv[0]).with_name("meter.py"), words.meter])
    os.execvp(words.server[0], [*words.server, *closed(os.environ.pop(KEY, ""))])  # noqa: S606 - no shell is wanted


def _check(model: Path) -> None:
    stamps = stamps_of(model)
    if not stamps:
        return
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep), *_LIBRARIES]
    why = refusal(stamps, tensorrt=tensorrt_version(folders), compute_capability=compute_capability())
    if why:
        print(f"{model.name}: {why}. Release it again for this target.", file=sys.stderr)
        sys.exit(MISMATCH)


def closed(key: str) -> list[str]:
    """Triton's options that close the APIs to whoever lacks a key; an empty one: to everybody."""
    lock = f"{_CLOSED}:shiplift={key or secrets.token_hex(16)}"
    return [f"--http-restricted-api={lock}", f"--grpc-restricted-protocol={lock}"]


if __name__ == "__main__":
    main()
