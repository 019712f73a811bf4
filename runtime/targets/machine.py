"""Targets and hardware: what this machine is, and whether a target matches it.

Measurements are valid only for the machine on which they were taken, so a match is strict: a target without VNNI is not
measured on a CPU that has it.
"""

import functools
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from shiplift.runtime.host.processor import cpu_flags
from shiplift.runtime.spec.target import Accelerator, CpuFeature, Target, capability

_FLAGS: dict[CpuFeature, str] = {"AMXBF16": "amx_bf16", "AMXINT8": "amx_int8", "AVX512BF16": "avx512_bf16"}
_VNNI = frozenset({"avx512_vnni", "avx_vnni"})
_SMI = ("--query-gpu=name,compute_cap,memory.total,driver_version", "--format=csv,noheader,nounits")
_MEMORY_SLACK = 0.95  # drivers and ECC reserve a part of a GPU's nominal memory


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """An NVIDIA GPU, as reported by its driver."""

    product: str
    capability: tuple[int, int]
    memory_mb: int
    driver: str


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What a target is matched against: the architecture, the CPU's features, the GPUs."""

    architecture: str
    flags: frozenset[str]
    gpus: tuple[Gpu, ...] = ()

    @property
    def capability(self) -> str:
        """The compute capability of the first GPU, as `9.0`; empty without one."""
        return dotted(self.gpus[0].capability) if self.gpus else ""


@functools.cache
def this_machine() -> Hardware:
    """The machine that this process runs on; detected once."""
    return Hardware(architecture=platform.machine(), flags=cpu_flags(), gpus=tuple(_gpus()))


def _gpus() -> Iterator[Gpu]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return
    try:
        completed = subprocess.run([program, *_SMI], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    if completed.returncode == 0:
        yield from parse_smi(completed.stdout)


def parse_smi(text: str) -> Iterator[Gpu]:
    """The GPUs in nvidia-smi's CSV; other lines are ignored."""
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 4 and re.fullmatch(r"[0-9]{1,2}\.[0-9]", parts[1]) and parts[2].isdecimal():
            yield Gpu(product=parts[0], capability=capability(parts[1]), memory_mb=int(parts[2]), driver=parts[3])


def unfit_here(target: Target) -> str:
    """Why a target can't run on this machine with the bundled server; empty if it can."""
    if reason := mismatch(target, this_machine()):
        return reason
    if target.server != "bundled":
        return "it needs NVIDIA's Triton image, this machine has the bundled server"
    return ""


def at_home(target: Target) -> bool:
    """Whether this machine may stand for a target's nodes: it matches, and the target has no node selector."""
    return not (target.node_selector or target.tolerations or unfit_here(target))


def mismatch(target: Target, machine: Hardware) -> str:
    """Why a machine does not match a target; empty if it does."""
    if target.gpu:
        return _gpu_mismatch(target, machine.gpus)
    if missing := [feature for feature in target.cpu_features if feature not in features_of(machine)]:
        return f"it needs a CPU with {', '.join(missing)}, which this machine lacks"
    if target.accelerator == "cpu":
        return ""
    actual = accelerator_of(machine)
    return "" if actual == target.accelerator else f"it needs {target.accelerator}, this machine is {actual}"


def features_of(machine: Hardware) -> tuple[CpuFeature, ...]:
    """The features of a machine's CPU that decide which precisions are fast."""
    return tuple(feature for feature, flag in _FLAGS.items() if flag in machine.flags)


def accelerator_of(machine: Hardware) -> Accelerator:
    """The most specific accelerator that describes a machine's CPU."""
    if machine.architecture in ("aarch64", "arm64"):
        return "cpu-arm64"
    if machine.flags & _VNNI:
        return "cpu-vnni"
    return "cpu-avx2" if "avx2" in machine.flags else "cpu"


def _gpu_mismatch(target: Target, gpus: tuple[Gpu, ...]) -> str:
    if not gpus:
        return "it needs an NVIDIA GPU, this machine has none"
    gpu = gpus[0]
    required = capability(target.compute_capability)
    if required not in ((0, 0), gpu.capability):
        return f"it needs compute capability {target.compute_capability}, {gpu.product} has {dotted(gpu.capability)}"
    if gpu.memory_mb < target.memory_mb * _MEMORY_SLACK:
        return f"it needs a GPU with {target.memory_mb} MiB, {gpu.product} has {gpu.memory_mb} MiB"
    if older(gpu.driver, target.versions.driver):
        return f"it needs driver {target.versions.driver} or newer, this machine has {gpu.driver}"
    return ""


def older(version: str, required: str) -> bool:
    """Whether a version is older than `required`, compared to the precision that `required` has."""
    actual, minimum = numbers(version), numbers(required)
    return bool(minimum) and actual[: len(minimum)] < minimum


def numbers(version: str) -> tuple[int, ...]:
    """The numbers in a version, in order."""
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))


def dotted(pair: tuple[int, int]) -> str:
    """A compute capability as `9.0`."""
    return f"{pair[0]}.{pair[1]}"
