"""Targets against hardware: which machine this is, and whether a target is meant for it.

Figures are worth something on the machine they were measured on alone, so a match is strict: a target without VNNI is
not measured on a processor that has it.
"""

import functools
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from shiplift.runtime.host.processor import cpu_flags
from shiplift.runtime.spec.target import Accelerator, Target, capability

_VNNI = frozenset({"avx512_vnni", "avx_vnni"})
_SMI = ("--query-gpu=name,compute_cap,memory.total,driver_version", "--format=csv,noheader,nounits")
_MEMORY_SLACK = 0.95  # drivers and ECC keep a part of a GPU's nominal memory


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """An NVIDIA GPU as its driver tells it."""

    product: str
    capability: tuple[int, int]
    memory_mb: int
    driver: str


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What decides whether a target is this machine: the architecture, the processor's features, its GPUs."""

    architecture: str
    flags: frozenset[str]
    gpus: tuple[Gpu, ...] = ()

    @property
    def capability(self) -> str:
        """The compute capability of its first GPU, as `9.0`; empty: it has none."""
        return dotted(self.gpus[0].capability) if self.gpus else ""


@functools.cache
def this_machine() -> Hardware:
    """The machine this process runs on, looked at once."""
    return Hardware(architecture=platform.machine(), flags=cpu_flags(), gpus=tuple(_gpus()))


def _gpus() -> Iterator[Gpu]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return
    try:
        said = subprocess.run([program, *_SMI], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    if said.returncode == 0:
        yield from parse_smi(said.stdout)


def parse_smi(text: str) -> Iterator[Gpu]:
    """GPUs from nvidia-smi's CSV; lines that are none are left out."""
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 4 and re.fullmatch(r"[0-9]{1,2}\.[0-9]", parts[1]) and parts[2].isdecimal():
            yield Gpu(product=parts[0], capability=capability(parts[1]), memory_mb=int(parts[2]), driver=parts[3])


def unfit_here(target: Target) -> str:
    """Why a target can't run on this machine with the bundled server; empty: it can."""
    if why := mismatch(target, this_machine()):
        return why
    if target.server != "bundled":
        return "it is served by NVIDIA's Triton image, this machine has the bundled server"
    return ""


def mismatch(target: Target, machine: Hardware) -> str:
    """Why a machine is not the one a target means; empty: it is."""
    if target.gpu:
        return _gpu_mismatch(target, machine.gpus)
    if target.accelerator == "cpu":
        return ""
    have = accelerator_of(machine)
    return "" if have == target.accelerator else f"it wants {target.accelerator}, this machine is {have}"


def accelerator_of(machine: Hardware) -> Accelerator:
    """The most particular accelerator that a processor is."""
    if machine.architecture in ("aarch64", "arm64"):
        return "cpu-arm64"
    if machine.flags & _VNNI:
        return "cpu-vnni"
    return "cpu-avx2" if "avx2" in machine.flags else "cpu"


def _gpu_mismatch(target: Target, gpus: tuple[Gpu, ...]) -> str:
    if not gpus:
        return "it wants an NVIDIA GPU, this machine has none"
    gpu = gpus[0]
    wanted = capability(target.compute_capability)
    if wanted not in ((0, 0), gpu.capability):
        return f"it wants compute capability {target.compute_capability}, {gpu.product} has {dotted(gpu.capability)}"
    if gpu.memory_mb < target.memory_mb * _MEMORY_SLACK:
        return f"it wants a GPU with {target.memory_mb} MiB, {gpu.product} has {gpu.memory_mb} MiB"
    if older(gpu.driver, target.versions.driver):
        return f"it wants driver {target.versions.driver} or newer, this machine has {gpu.driver}"
    return ""


def older(version: str, wanted: str) -> bool:
    """Whether a version is older than the one wanted, as far as `wanted` is given."""
    have, want = numbers(version), numbers(wanted)
    return bool(want) and have[: len(want)] < want


def numbers(version: str) -> tuple[int, ...]:
    """The numbers in a version, in their order."""
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))


def dotted(pair: tuple[int, int]) -> str:
    """A compute capability as `9.0`."""
    return f"{pair[0]}.{pair[1]}"
