"""The guard that starts NVIDIA's server: plans are checked against the GPU and the TensorRT that are really there.

There is neither on a machine without a GPU: `nvidia-smi` is a script here, and the library a file with its name.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shiplift.runtime.guest.pod import guard
from shiplift.runtime.precision.tensorrt_plans import STAMP, Stamp
from shiplift.runtime.serving.kubernetes import diagnosis

BUILT = {"tensorrt": "10.9.0.34", "compute_capability": "9.0"}


@pytest.mark.parametrize(
    ("version", "capability", "reason"),
    [
        ("10.9.0", "9.0", ""),
        ("", "", ""),
        ("10.13.3", "9.0", "the plan was built by TensorRT 10.9.0.34, this server has TensorRT 10.13.3"),
        ("10.9.0", "8.6", "the plan was built for compute capability 9.0, this node's GPU has 8.6"),
    ],
)
def test_a_plan_is_held_against_what_is_there(version: str, capability: str, reason: str) -> None:
    assert guard.refusal([BUILT], tensorrt=version, compute_capability=capability) == reason
    assert guard.refusal([], tensorrt=version, compute_capability=capability) == ""


@pytest.mark.parametrize(("number", "text"), [(100900, "10.9.0"), (101303, "10.13.3"), (8601, "8.6.1")])
def test_the_library_s_number_is_a_version(number: int, text: str) -> None:
    assert guard.version_text(number) == text


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """A container's folders: a served plan, a GPU of capability 9.0, TensorRT 10.9.0, and a server that says hello."""
    version = tmp_path / "models" / "digits" / "3"
    version.mkdir(parents=True)
    (version / STAMP).write_text(Stamp(**BUILT, profiles={}).model_dump_json())
    library = tmp_path / "lib"
    library.mkdir()
    (library / "libnvinfer.so.10.9.0").touch()
    (library / "libnvinfer.so.10").symlink_to("libnvinfer.so.10.9.0")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in (("nvidia-smi", "echo 9.0"), ("tritonserver", 'echo "$$ $@"')):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    return tmp_path


def started(container: Path) -> "subprocess.Popen[str]":
    """As in the pod: a copy of the file, run by a Python without our packages."""
    copied = container / "guard.py"
    copied.write_text(Path(guard.__file__).read_text())
    words: list[str | Path] = [
        "--model",
        container / "models" / "digits",
        "--",
        "tritonserver",
        "--model-repository=/models",
    ]
    environment = {"PATH": f"{container / 'bin'}:{os.environ['PATH']}", "LD_LIBRARY_PATH": str(container / "lib")}
    return subprocess.Popen(
        [sys.executable, "-I", copied, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_a_plan_that_fits_is_served_by_the_same_process(container: Path) -> None:
    child = started(container)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    pid, *words = out.split()
    assert int(pid) == child.pid
    assert words[0] == "--model-repository=/models"
    assert words[1].startswith("--http-restricted-api=model-repository,shared-memory,trace,logging:shiplift=")
    assert words[2].startswith("--grpc-restricted-protocol=model-repository,shared-memory,trace,logging:shiplift=")


def test_another_gpu_is_refused_with_both_named(container: Path) -> None:
    (container / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho 8.6\n")
    child = started(container)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (guard.MISMATCH, "")
    assert err.startswith("digits: the plan was built for compute capability 9.0, this node's GPU has 8.6.")


def test_another_tensorrt_is_refused_with_both_named(container: Path) -> None:
    (container / "lib" / "libnvinfer.so.10.9.0").rename(container / "lib" / "libnvinfer.so.10.13.3")
    (container / "lib" / "libnvinfer.so.10").unlink()
    child = started(container)
    _, err = child.communicate(timeout=60)
    assert child.returncode == guard.MISMATCH
    assert "built by TensorRT 10.9.0.34, this server has TensorRT 10.13.3" in err


def test_a_model_without_a_plan_runs_on_any_gpu(container: Path) -> None:
    (container / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho 8.6\n")
    (container / "models" / "digits" / "3" / STAMP).unlink()
    child = started(container)
    child.communicate(timeout=60)
    assert child.returncode == 0


def test_no_gpu_and_no_library_are_nothing_to_compare_with(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(container / "nowhere"))
    assert guard.compute_capability() == ""
    assert guard.tensorrt_version(["", str(container / "nowhere")]) == ""
    assert guard.tensorrt_version([str(container / "lib")]) == "10.9.0"
    (container / "lib" / "libnvinfer.so.10").unlink()
    (container / "lib" / "libnvinfer.so.10.9.0").rename(container / "lib" / "libnvinfer.so.10")
    assert guard.tensorrt_version([str(container / "lib")]) == ""  # no library at all: it can't be asked


def test_a_driver_that_does_not_answer_is_nothing_to_compare_with(
    container: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(container / "bin"), prepend=os.pathsep)
    (container / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho No devices were found; exit 6\n")
    assert guard.compute_capability() == ""


def test_the_release_ends_at_once_with_the_guard_s_message() -> None:
    message = "digits: the plan was built for compute capability 9.0, this node's GPU has 8.6."
    ended = {"exitCode": guard.MISMATCH, "message": message}
    pod: Any = {"status": {"containerStatuses": [{"name": "triton", "state": {"terminated": ended}}]}}
    why = diagnosis.of_pod(pod)
    assert why is not None
    assert (why.sentence, why.prospect) == (f"triton ended with exit code 40: {message}", diagnosis.Prospect.NOTHING)
    other: Any = {"status": {"containerStatuses": [{"name": "triton", "state": {"terminated": {"exitCode": 1}}}]}}
    why = diagnosis.of_pod(other)
    assert why is not None
    assert why.prospect is diagnosis.Prospect.RESTART
    assert json.loads(Stamp(**BUILT, profiles={}).model_dump_json())["tensorrt"] == BUILT["tensorrt"]
